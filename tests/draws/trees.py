"""Random trees of optimizers: each as the package makes it, and as `truth.py` has it."""

import random
from dataclasses import dataclass, field
from typing import Any

import keras

import tf_graft as tg
from draws import truth
from support import oracles

PATTERNS = ("bias$", "kernel", "table", "scale|bias", "^(products/)?k")
FACTORS = {"table": 0.5, "kernel": 0.75, "bias": 1.5, "scale": 0.125}
CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")
AVERAGES = ("use_ema", "ema_momentum", "ema_overwrite_frequency")
SMALL = 2.0**-10  # an epsilon at which a rounding of a gradient near zero does not show
# The rule, the class, and hyperparameters to choose from.
LEAVES = {
    "sgd": (oracles.sgd, tg.SGD, [{}, {"momentum": 0.75}, {"momentum": 0.5, "nesterov": True}]),
    "adagrad": (oracles.adagrad, tg.Adagrad, [{}, {"initial_accumulator_value": 0.5}]),
    "rmsprop": (oracles.rmsprop, tg.RMSprop, [{"epsilon": SMALL}, {"momentum": 0.5}]),
    "adam": (oracles.adam, tg.Adam, [{"epsilon": SMALL}, {"epsilon": SMALL, "amsgrad": True}]),
    "adadelta": (oracles.adadelta, tg.Adadelta, [{"epsilon": SMALL}]),
    "novograd": (oracles.novograd, tg.NovoGrad, [{}, {"grad_averaging": True}]),
    "lars": (oracles.lars, tg.LARS, [{"eeta": 0.125, "weight_decay_rate": 0.125}]),
    "lamb": (oracles.lamb, tg.LAMB, [{"epsilon": SMALL, "weight_decay_rate": 0.125}]),
    "keras_sgd": (oracles.sgd, keras.optimizers.SGD, [{}, {"momentum": 0.75}]),
    "keras_adagrad": (oracles.adagrad, keras.optimizers.Adagrad, [{}]),
}
AROUND = ("larc", "cautious", "mixed", "agn")  # what acts for the optimizer in it


@dataclass
class Spec:
    """One optimizer of a tree.

    Attributes:
        kind: a key of `LEAVES`, or what wraps the children.
        own: its own arguments.
        given: the common arguments that it is given.
        children: the optimizers in it; of an `agn` the second is the center's.
    """

    kind: str
    own: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    children: list["Spec"] = field(default_factory=list)

    @property
    def of_keras(self):
        return self.kind.startswith("keras")

    def chain(self):
        """The optimizers, from the outermost, of which each acts for the next."""
        return [self, *(self.children[0].chain() if self.kind in AROUND else [])]

    def everyone(self):
        return [self, *(spec for child in self.children for spec in child.everyone())]


def drawn(r: random.Random) -> tuple[Spec, dict[str, Any]]:
    """A tree of up to three wrappers, and the options that its pipeline has in the end."""
    wrappers = r.choice([0, 1, 1, 1, 2, 2, 3])
    top = r.choice([["agn"], ["mixed"], ["agn", "mixed"], [], []])[:wrappers]
    spec = _structure(r, wrappers - len(top))
    for kind in reversed(top):
        spec = _outermost(r, kind, spec)
    _give_decay(r, spec)
    options = _options(r, spec)
    _give_options(r, spec, options)
    return spec, options


def _structure(r, wrappers) -> Spec:
    kinds = ["larc", "cautious", "graft", "layerwise"] if wrappers else list(LEAVES)
    kind = r.choice(kinds)
    if kind in LEAVES:
        own = dict(r.choice(LEAVES[kind][2]))
        return Spec(kind, own | {"learning_rate": r.choice([0.125, 0.25, 0.5])})
    children = [_structure(r, wrappers - 1)]
    if kind == "larc":
        return Spec(
            kind,
            {"eta": r.choice([0.1875, 0.4375]), "mode": r.choice(["clip", "scale"])},
            {},
            children,
        )
    if kind == "cautious":
        return Spec(kind, {}, {}, children)
    own = {"learning_rate": r.choice([0.5, 1.0])}
    if kind == "graft":
        own["use_global_norm"] = r.random() < 0.3
        children = r.sample([*children, _structure(r, 0)], 2)
    return Spec(kind, own, {}, children)


def _outermost(r, kind, spec) -> Spec:
    if kind == "mixed":
        return Spec(kind, {"loss_scale": r.choice([None, 8, "backoff"])}, {}, [spec])
    own = {
        "communication_period": r.choice([1, 2, 3]),
        "mode": r.choice(["gradients", "updates", "difference"]),
        "reset_local_state": r.random() < 0.3,
    }
    return Spec(kind, own, {}, [spec, _structure(r, 0)])


def _give_decay(r, spec) -> None:
    """Weight decay and exclusions anywhere: inside, outside or on both."""
    for each in spec.everyone():
        end = each.chain()[-1]
        twice = end is not each and end.of_keras and "weight_decay" in end.given
        if r.random() < 0.4 and each.kind != "agn" and not twice:
            each.given["weight_decay"] = r.choice([0.125, 0.25])
        if r.random() < 0.35 and not each.of_keras:
            each.given["exclude_from_weight_decay"] = [r.choice(PATTERNS)]
    for each in spec.everyone():  # of Keras' own there is one decay, and it cannot be taken over
        *outer, end = each.chain()
        if end.of_keras and "weight_decay" in end.given:
            for other in outer:
                other.given.pop("weight_decay", None)


def _options(r, spec) -> dict[str, Any]:
    """Options of the whole pipeline."""
    options: dict[str, Any] = {"sparse": r.choice(["lazy", "exact"])}
    if spec.of_keras:
        options["sparse"] = "lazy"  # which Keras' own cannot be given
    if r.random() < 0.4:
        options[r.choice(CLIPS)] = r.choice([0.5, 1.0])
    if r.random() < 0.25:
        options |= {"use_ema": True, "ema_momentum": 0.75}
        options["ema_overwrite_frequency"] = r.choice([None, 2])
    if r.random() < 0.25:
        options["gradient_accumulation_steps"] = 2
    scaled = any(each.kind == "mixed" for each in spec.chain())
    if r.random() < 0.2 and not scaled:
        options["loss_scale_factor"] = r.choice([8.0, 0.5])  # exact in half precision, too
    return options


def _give_options(r, spec, options) -> None:
    """Gives each option to one of those that take it over, and now and then another one inside."""
    for name, value in options.items():
        if spec.kind == "agn" and name in AVERAGES:
            spec.children[1].given[name] = value
            continue
        able = [s for s in spec.chain() if not (s.of_keras and name == "sparse")]
        if not able:
            continue
        place = r.randrange(len(able))
        if name in AVERAGES[1:]:
            place = next(i for i, each in enumerate(able) if "use_ema" in each.given)
        able[place].given[name] = value
        if name in ("clipnorm", "clipvalue", "global_clipnorm") and r.random() < 0.3:
            for inner in able[place + 1 :]:
                inner.given[r.choice(CLIPS)] = 0.25
                break


def made(spec: Spec):
    """The optimizer, as the package makes it."""
    children = [made(child) for child in spec.children]
    arguments = spec.own | spec.given
    if spec.kind in LEAVES:
        return LEAVES[spec.kind][1](**arguments)
    if spec.kind == "agn":
        return tg.AGN(children[0], center_optimizer=children[1], **arguments)
    if spec.kind == "layerwise":
        rates = tg.report.MeasuredRates("constant", FACTORS)
        return tg.LayerwiseRates(children[0], rates, **arguments)
    classes = {"larc": tg.LARC, "cautious": tg.Cautious, "mixed": tg.MixedPrecision}
    return (classes | {"graft": tg.AdaGraft})[spec.kind](*children, **arguments)


def node(spec: Spec):
    """The same in `truth.py`, as far as it gives steps."""
    decay = spec.given.get("weight_decay", 0.0)
    excluded = spec.given.get("exclude_from_weight_decay", ())
    if spec.kind in LEAVES:
        own = dict(spec.own)
        return truth.Leaf(LEAVES[spec.kind][0], own.pop("learning_rate"), own, decay, excluded)
    children = [node(child) for child in spec.children]
    if spec.kind in AROUND:
        if "weight_decay" in spec.given:
            children[0].set_decay(decay)
        if spec.kind == "larc":
            return truth.Larc(children[0], **spec.own, excluded=excluded)
        if spec.kind == "cautious":
            return truth.Cautious(children[0], excluded)
        return truth.Around(children[0], excluded)
    lr = spec.own["learning_rate"]
    if spec.kind == "graft":
        return truth.Graft(children, lr, spec.own["use_global_norm"], decay, excluded)
    return truth.Layerwise(children, lr, FACTORS, decay, excluded)


def right(spec: Spec, options: dict[str, Any], weights, replicas: int):
    """What is right, of weights by path."""
    whole = options["sparse"] == "exact"
    if spec.kind != "agn":
        return truth.One(truth.Pipeline(node(spec), weights, options, whole))
    averages = {name: value for name, value in options.items() if name in AVERAGES}
    local = {name: value for name, value in options.items() if name not in averages}
    center = truth.Around(node(spec.children[1]), spec.given.get("exclude_from_weight_decay", ()))
    own = spec.own
    return truth.Workers(
        truth.Pipeline(node(spec), weights, local, whole),
        truth.Pipeline(center, weights, averages, whole),
        own["communication_period"],
        own["mode"],
        own["reset_local_state"],
        replicas,
    )


def said(spec: Spec) -> str:
    """A tree in words."""
    children = [said(child) for child in spec.children]
    arguments = [f"{name}={value!r}" for name, value in (spec.own | spec.given).items()]
    return f"{spec.kind}({', '.join([*children, *arguments])})"
