"""One table of every optimizer, and the small problem that the guarantees run on.

A guarantee loops over `SAMPLES`; where an optimizer is an exception, that is data on its row with
the reason beside it.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft
from support import oracles, outside
from tf_graft.compose.of_keras import Wrapped
from tf_graft.core.arguments import registry

RATE = 0.1


class Refusal(NamedTuple):
    """Arguments that the constructor refuses, and how."""

    kwargs: dict[str, Any]
    error: type[Exception]
    message: str


@dataclass(frozen=True)
class Sample:
    """One optimizer in one configuration.

    Attributes:
        name: how tests call it.
        cls: its class.
        kwargs: what is given beside the learning rate and the common options.
        idle: declared: a zero gradient changes neither slots nor weights.
        rowwise: declared: each row is updated from that row alone.
        whole: a row-sparse gradient acts as the equal dense one, whatever `sparse` says.
        of_vectors: whether it can be built where there are only vectors.
        stock: Keras' optimizer with the same arguments; None where there is none.
        oracle: its update rule in float64 NumPy; None where Keras' optimizer is what is right.
        hyperparameters: what the oracle or Keras' optimizer takes, where it is not `kwargs`.
        slots: the roles it remembers for each variable; or those by the variable's rank.
        shared: the roles of the state that is not of one variable.
        late: the roles whose state the first two steps leave as it is.
        rates: how many learning rates it keeps, its children's included.
        spoils: what a NaN that is applied as told spoils: its "entry", its "row", its "column",
            "all" of the variable, or "nothing".
        slow: whether every test of it is slow.
        spans: a step depends on all variables of the call, so that their order shows in its last
            bit.
        of_eigenvectors: a step depends on all eigenvectors of the sides of matrices, of which a
            matrix of a lower rank leaves some arbitrary.
        of_entries: a step depends on how many entries a variable has, touched or not.
        remembers_rates: a step depends on the rates of earlier ones.
        grows: a step at three times the rate is longer, whatever came before.
        tiny: a rate with which a step is about 1e-4, and 200 of them are above 1e-2.
        rtol: float32 against float64, relative to the largest step.
        stock_rtol: against Keras in float32, relative to the learning rate.
        graph_ulps: how far `tf.function` may lie from eager, in the units of `xla_ulps`: TensorFlow
            regroups sums and products in a graph, and only our own arithmetic is written so that it
            cannot.
        xla_ulps: how far the sum of a few steps compiled by XLA, or done by a kernel, may lie from
            the same uncompiled, and so may each slot: in units in the last place of the largest
            entry of the variable.
        refuses: what its own arguments must not be.
    """

    name: str
    cls: type[tf_graft.Optimizer]
    kwargs: dict[str, Any]
    idle: bool
    stock: Callable[..., keras.optimizers.Optimizer] | None
    oracle: Callable[..., Any] | None
    hyperparameters: dict[str, Any] | None = None
    slots: tuple[str, ...] | dict[int, tuple[str, ...]] = ()
    shared: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    rates: int = 1
    rowwise: bool = True
    whole: bool = False
    of_vectors: bool = True
    spoils: str = "entry"
    slow: bool = False
    spans: bool = False
    of_eigenvectors: bool = False
    of_entries: bool = False
    remembers_rates: bool = False
    grows: bool = True
    tiny: float = 2e-4
    rtol: float = 2e-6
    stock_rtol: float = 2e-6
    graph_ulps: int = 0
    xla_ulps: int = 4
    refuses: tuple[Refusal, ...] = field(default=(), repr=False)

    def make(
        self, learning_rate: Any = RATE, inside: dict[str, Any] | None = None, **options: Any
    ) -> tf_graft.Optimizer:
        """A new optimizer, with common options or other arguments.

        Those `inside` are for the optimizers in it; for itself if there is none that takes them.
        """
        children = {name: self.kwargs[name] for name in CHILDREN if name in self.kwargs}
        if inside and "optimizers" in self.kwargs:
            parts = self.kwargs["optimizers"].items()
            given = {"optimizers": {key: _given(config, inside) for key, config in parts}}
        elif inside and self.takes_inside(inside):
            given = {name: _given(config, inside) for name, config in children.items()}
        else:
            given = inside or {}
        return self.cls(learning_rate=learning_rate, **(self.kwargs | given | options))

    def takes_inside(self, inside: dict[str, Any]) -> bool:
        """Whether there are optimizers in it that take these options in a config."""
        if self.cls is Wrapped:
            return [*inside] == ["weight_decay"] and self.name in DECAY_BESIDE
        return any(name in self.kwargs for name in (*CHILDREN, "optimizers"))

    def make_stock(self, learning_rate: Any = RATE, **options: Any) -> keras.optimizers.Optimizer:
        """Keras' counterpart."""
        return self.stock(learning_rate, **(self.own() | options))

    def make_oracle(
        self,
        weights: dict[str, Any],
        learning_rate: Any = RATE,
        inside: dict[str, Any] | None = None,
        **options: Any,
    ):
        """The whole pipeline in float64, from the same arguments."""
        own, excluded = self.own(), options.get("exclude_from_weight_decay") or ()
        if self.cls is tf_graft.MultiOptimizer:
            names = {"weight_decay", "weight_decay_mode"} & options.keys()
            inside = {**(inside or {}), **{name: options.pop(name) for name in names}}
        children = {name: x for name, x in own.items() if isinstance(x, oracles.Child)}
        if children:
            own = own | {name: x.given(inside or {}, excluded) for name, x in children.items()}
        else:
            options = options | (inside or {})
        everything = own | options
        own = {k: v for k, v in everything.items() if k not in COMMON_NAMES}
        common = {k: v for k, v in everything.items() if k in COMMON_NAMES}
        return oracles.Oracle(self.oracle, weights, learning_rate, own, **common)

    def roles(self, rank: int) -> tuple[str, ...]:
        """What it remembers for a variable of that rank."""
        return self.slots[rank] if isinstance(self.slots, dict) else self.slots

    def own(self) -> dict[str, Any]:
        """The arguments of the algorithm itself, for the oracle and for Keras' optimizer."""
        return self.kwargs if self.hyperparameters is None else self.hyperparameters


# The arguments that are optimizers, each given as a config.
CHILDREN = ("optimizer", "magnitude_optimizer", "direction_optimizer", "others")
# Of Keras' optimizers those whose step does not depend on the weights, which decay before it.
DECAY_BESIDE = ("wrapped_nadam", "wrapped_adam", "wrapped_lion", "wrapped_sgd_momentum")


def _given(config: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """A config, flat or as Keras serializes it, with options."""
    if "config" in config:
        return {**config, "config": config["config"] | options}
    return config | options


# Written out here, so that an argument that appears in the package and not in the tests is noticed.
COMMON_NAMES = (
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "loss_scale_factor",
    "gradient_accumulation_steps",
    "name",
    "mesh",
    "jit_compile",
    "sparse",
    "nonfinite",
    "exclude_from_weight_decay",
    "weight_decay_mode",
    "learning_rate_multipliers",
    "count_rows",
    "clip_rows",
    "state_dtype",
    "master_weights",
)


# Whose weight decay is a part of their step, so that it has no modes.
DECAYING_THEMSELVES = (
    *("Adan", "Ftrl", "NovoGrad", "Prodigy"),
    *("ScheduleFreeSGD", "ScheduleFreeAdamW", "ScheduleFreeRAdam"),
)


def _number(
    owner: str, name: str, *wrong: Any, must: str, nothing: type[Exception] = TypeError
) -> tuple[Refusal, ...]:
    """Refusals of one argument: values out of range, then what is no number at all.

    Args:
        owner: the class.
        name: of the argument.
        wrong: values out of range.
        must: what the message says of the range.
        nothing: the error for None.
    """
    out_of_range = [
        Refusal({name: value}, ValueError, f"{owner}({name}={value}): {name} must {must}.")
        for value in (*wrong, float("nan"), float("inf"))
    ]
    no_number = [
        Refusal(
            {name: value},
            nothing if value is None else TypeError,
            f"{owner}({name}={value!r}): {name} must be a number.",
        )
        for value in ("0.1", True, None, [0.1])
    ]
    return (*out_of_range, *no_number)


def _boolean(owner: str, name: str) -> tuple[Refusal, ...]:
    message = f"{owner}({name}={{!r}}): {name} must be True or False."
    return tuple(Refusal({name: v}, TypeError, message.format(v)) for v in (1, "yes", None))


# Keras takes 1 - beta_2^t in float32, where it loses half its digits at the first steps.
_ADAM_STOCK_RTOL = 1e-4

_UNIT = "lie in [0, 1]"
_BETA = "lie in [0, 1)"
_SHARE = "lie in [0, 0.999]"
_POSITIVE = "be finite and above 0"
_NOT_NEGATIVE = "be finite and at least 0"

_SGD = (
    *_number("SGD", "momentum", -0.1, 1.1, must=_UNIT),
    *_boolean("SGD", "nesterov"),
)
_ADAGRAD = (
    *_number("Adagrad", "initial_accumulator_value", -0.1, must=_NOT_NEGATIVE),
    *_number("Adagrad", "epsilon", 0, -1e-7, must=_POSITIVE),
)
_FTRL = (
    *_number("Ftrl", "learning_rate_power", -1.5, 0.5, must="lie in [-1, 0]"),
    *_number("Ftrl", "initial_accumulator_value", -0.1, must=_NOT_NEGATIVE),
    *_number("Ftrl", "l1_regularization_strength", -0.1, must=_NOT_NEGATIVE),
    *_number("Ftrl", "l2_regularization_strength", -0.1, must=_NOT_NEGATIVE),
    *_number("Ftrl", "l2_shrinkage_regularization_strength", -0.1, must=_NOT_NEGATIVE),
    *_number("Ftrl", "beta", -0.1, must=_NOT_NEGATIVE),
)
_ADADELTA = (
    *_number("Adadelta", "rho", -0.1, 1.1, must=_UNIT),
    *_number("Adadelta", "epsilon", 0, -1e-7, must=_POSITIVE),
)
_RMSPROP = (
    *_number("RMSprop", "rho", -0.1, 1.1, must=_UNIT),
    *_number("RMSprop", "momentum", -0.1, 1.1, must=_UNIT),
    *_number("RMSprop", "epsilon", 0, -1e-7, must=_POSITIVE),
    *_boolean("RMSprop", "centered"),
    *_number("RMSprop", "initial_velocity", -0.1, must=_NOT_NEGATIVE),
)


def _adam(owner: str) -> tuple[Refusal, ...]:
    return (
        *_betas(owner),
        *_number(owner, "epsilon", 0, -1.0, must=_POSITIVE),
        *_boolean(owner, "amsgrad"),
    )


def _betas(owner: str) -> tuple[Refusal, ...]:
    return (
        *_number(owner, "beta_1", -0.1, 1, 1.5, must=_BETA),
        *_number(owner, "beta_2", -0.1, 1, 1.5, must=_BETA),
    )


def _count(owner: str, name: str, least: int = 1) -> tuple[Refusal, ...]:
    wrong, must = least - 1, f"{name} must be at least {least}."
    return (
        Refusal({name: wrong}, ValueError, f"{owner}({name}={wrong}): {must}"),
        Refusal({name: 1.5}, ValueError, f"{owner}({name}=1.5): {name} must be a whole number."),
        Refusal({name: "2"}, TypeError, f"{owner}({name}='2'): {name} must be a number."),
    )


def _patterns(owner: str, name: str) -> tuple[Refusal, ...]:
    return (
        Refusal(
            {name: "bias"}, TypeError, f"{owner}({name}='bias'): {name} must be a list of patterns."
        ),
        Refusal({name: [3]}, TypeError, f"{owner}({name}=[3]): 3 is not a pattern (a string)."),
    )


def _of_sides(*kinds: str) -> tuple[str, ...]:
    """The roles that an optimizer keeps for the two sides of a matrix."""
    return tuple(f"{side}_{kind}" for side in ("inputs", "outputs") for kind in kinds)


def _axes(owner: str) -> tuple[Refusal, ...]:
    """Refusals of the arguments of every optimizer of matrices."""
    axes = "it is 3, and must be None (no matrix), 'layer' (as its layer says) or a dict of axes "
    return (
        *_no_optimizer("others"),
        *_boolean(owner, "divide"),
        Refusal(
            {"axes": "kernel"},
            TypeError,
            f"{owner}(axes='kernel'): axes must be a dict by pattern.",
        ),
        Refusal(
            {"axes": {"kernel": 3}},
            ValueError,
            f"{owner}(axes={{'kernel': ...}}): {axes}such as {{'inputs': [0], 'outputs': [1]}}.",
        ),
        *(
            Refusal(
                {"heads": heads},
                ValueError,
                f"{owner}(heads={heads!r}): heads must be one of 'merged', 'apart'.",
            )
            for heads in ("each", None)
        ),
    )


def _iterations(owner: str) -> tuple[Refusal, ...]:
    """Of Newton-Schulz iterations, and of the factor of a step."""
    scales = "'original', 'spectral', 'match_rms_adamw', 'none'"
    threes = (
        "'polar_express', three numbers a, b and c, or a list of threes, one for each iteration"
    )
    return (
        *_number(owner, "epsilon", 0, -1.0, must=_POSITIVE),
        *_count(owner, "ns_steps"),
        *(
            Refusal(
                {"ns_dtype": x},
                ValueError,
                f"{owner}(ns_dtype={x!r}): ns_dtype must be one of None, 'bfloat16'.",
            )
            for x in ("float16", 16)
        ),
        *_axes(owner),
        *(
            Refusal(
                {"scale": x}, ValueError, f"{owner}(scale={x!r}): scale must be one of {scales}."
            )
            for x in ("foo", None, 1)
        ),
        *(
            Refusal(
                {"ns_coefficients": x},
                ValueError,
                f"{owner}(ns_coefficients={x!r}): ns_coefficients must be {threes}.",
            )
            for x in ("abc", None, 3, [], (1.0, 2.0), [(1.0, 2.0)])
        ),
    )


def _muon(owner: str) -> tuple[Refusal, ...]:
    return (
        *_number(owner, "momentum", -0.1, 1, 1.5, must=_BETA),
        *_boolean(owner, "nesterov"),
        *_iterations(owner),
    )


def _soap(owner: str) -> tuple[Refusal, ...]:
    return (
        *_number(owner, "beta_1", -0.1, 1, must=_BETA),
        *_number(owner, "beta_2", -0.1, 1, must=_BETA),
        *_number(owner, "shampoo_beta", -0.1, 1, must=_BETA),
        *_count(owner, "precondition_frequency"),
        *_count(owner, "max_size"),
        *_boolean(owner, "spread"),
    )


_LARS = (
    *_number("LARS", "momentum", -0.1, 1.1, must=_UNIT),
    *_number("LARS", "weight_decay_rate", -0.1, must=_NOT_NEGATIVE),
    *_number("LARS", "eeta", 0, -0.1, must=_POSITIVE),
    *_number("LARS", "epsilon", -0.1, must=_NOT_NEGATIVE),
    *_boolean("LARS", "nesterov"),
    *_boolean("LARS", "classic_momentum"),
    *_boolean("LARS", "sum_of_norms"),
    *_patterns("LARS", "exclude_from_weight_decay"),
    *_patterns("LARS", "exclude_from_layer_adaptation"),
    Refusal(
        {"sum_of_norms": True, "classic_momentum": False},
        ValueError,
        "LARS(sum_of_norms=True, classic_momentum=False): the paper's sum of norms is of "
        "gradients, not of momentum; give one of the two.",
    ),
)
_LAMB = (
    *_number("LAMB", "beta_1", -0.1, 1, 1.5, must=_BETA),
    *_number("LAMB", "beta_2", -0.1, 1, 1.5, must=_BETA),
    *_number("LAMB", "epsilon", 0, -1.0, must=_POSITIVE),
    *_number("LAMB", "weight_decay_rate", -0.1, must=_NOT_NEGATIVE),
    *_patterns("LAMB", "exclude_from_weight_decay"),
    *_patterns("LAMB", "exclude_from_layer_adaptation"),
)
_LARC = (
    *_number("LARC", "eta", 0, -0.1, must=_POSITIVE),
    *_number("LARC", "min_update", -0.1, 1.1, must=_UNIT),
    *_number("LARC", "epsilon", -0.1, must=_NOT_NEGATIVE),
    *_patterns("LARC", "exclude_from_layer_adaptation"),
    *(
        Refusal(
            {"mode": mode}, ValueError, f"LARC(mode={mode!r}): mode must be one of 'clip', 'scale'."
        )
        for mode in ("foo", None, 1)
    ),
)


_AGC = (
    *_number("AdaptiveGradientClipping", "clipping", 0, -0.1, must=_POSITIVE),
    *_number("AdaptiveGradientClipping", "epsilon", 0, -0.1, must=_POSITIVE),
    *_patterns("AdaptiveGradientClipping", "by_row"),
    *_patterns("AdaptiveGradientClipping", "exclude_from_clipping"),
)


def _no_optimizer(name: str) -> tuple[Refusal, ...]:
    message = "get(3): give an optimizer, a name, or a dict with 'name' or 'class_name'."
    return (Refusal({name: 3}, TypeError, message),)


# Children come as configs, so that each optimizer has its own. All rates are exact in float32.
_HALVES = keras.saving.serialize_keras_object(
    keras.optimizers.schedules.PiecewiseConstantDecay([0, 2], [0.5, 0.25, 0.125])
)


def _halves(count: int) -> float:
    return 0.5 if count <= 0 else 0.25 if count <= 2 else 0.125


_SGD_CHILD = {"name": "sgd", "learning_rate": 0.5}
_ADAM_CHILD = {"name": "adam", "learning_rate": 0.25}
_MOMENTUM_CHILD = {"name": "sgd", "learning_rate": 0.125, "momentum": 0.9}
_GRAFT_CHILD = tf_graft.serialize(
    tf_graft.AdaGraft(
        tf_graft.SGD(0.5, name="inner_sgd"), _ADAM_CHILD, learning_rate=0.5, name="inner"
    )
)
_SGD_ORACLE = oracles.Child(oracles.sgd, 0.5)
_ADAM_ORACLE = oracles.Child(oracles.adam, 0.25)
_MOMENTUM_ORACLE = oracles.Child(oracles.sgd, 0.125, momentum=0.9)
_GRAFT_ORACLE = oracles.Child(oracles.adagraft, 0.5, magnitude=_SGD_ORACLE, direction=_ADAM_ORACLE)


def _graft(
    name: str, magnitude: tuple[Any, Any, Any], direction: tuple[Any, Any, Any], **more: Any
) -> Sample:
    """A graft of two children, each a config, its oracle, and the roles it remembers."""
    options = {k: more.pop(k) for k in ("use_global_norm", "diagnostic") if k in more}
    norms = ("magnitude_norm", "direction_norm") if "diagnostic" in options else ()
    roles = [
        f"{role}/{slot}"
        for role, (_, _, slots) in (("magnitude", magnitude), ("direction", direction))
        for slot in slots
    ]
    return Sample(
        name=name,
        cls=tf_graft.AdaGraft,
        kwargs={"magnitude_optimizer": magnitude[0], "direction_optimizer": direction[0]} | options,
        idle=False,
        stock=None,
        oracle=oracles.adagraft,
        hyperparameters={"magnitude": magnitude[1], "direction": direction[1]} | options,
        slots=(*roles, *norms),
        rowwise=False,
        spoils="nothing",
        **({"rates": 3, "tiny": 2e-4, "slow": True, "rtol": 1e-5, "xla_ulps": 16} | more),
    )


def _of_matrices(name: str, cls: Any, oracle: Any, slots: tuple[str, ...]) -> Sample:
    """An optimizer of matrices, with momentum SGD for the rest."""
    beta = _number("NorMuon", "beta_2", -0.1, 1, 1.5, must=_BETA) if name == "normuon" else ()
    return Sample(
        name=name,
        cls=cls,
        kwargs={"others": {"name": "sgd", "learning_rate": 0.125, "momentum": 0.9}},
        idle=False,
        stock=None,  # Keras' Muon has another scale, and other arguments for the rest
        oracle=oracle,
        hyperparameters={"others": oracles.Child(oracles.sgd, 0.125, momentum=0.9)},
        slots={2: slots, **dict.fromkeys((0, 1), ("others/momentum",))},
        rates=2,
        rowwise=False,
        whole=True,
        of_vectors=False,
        xla_ulps=8,  # sums over several products of matrices
        spoils="all",
        slow=True,
        refuses=(*_muon(cls.__name__), *beta),
    )


def _wrapped(stock: Callable[..., Any], name: str, /, **more: Any) -> Sample:
    """Keras' optimizer, wrapped; what is right is what Keras' own does."""
    arguments = more.pop("arguments", {})
    config = keras.saving.serialize_keras_object(stock(**arguments))
    return Sample(
        name=f"wrapped_{name}",
        cls=Wrapped,
        kwargs={"optimizer": config},
        idle=False,
        stock=stock,
        oracle=None,
        hyperparameters=arguments,
        **({"slow": True, "graph_ulps": 4, "xla_ulps": 16} | more),
    )


SAMPLES = (
    Sample(
        name="sgd",
        cls=tf_graft.SGD,
        kwargs={},
        idle=True,
        stock=keras.optimizers.SGD,
        oracle=oracles.sgd,
        refuses=_SGD,
    ),
    Sample(
        name="sgd_momentum",
        cls=tf_graft.SGD,
        kwargs={"momentum": 0.9},
        idle=False,
        stock=keras.optimizers.SGD,
        oracle=oracles.sgd,
        slots=("momentum",),
        remembers_rates=True,
        tiny=4e-5,  # momentum makes ten steps of one
    ),
    Sample(
        name="sgd_nesterov",
        cls=tf_graft.SGD,
        kwargs={"momentum": 0.9, "nesterov": True},
        idle=False,
        stock=keras.optimizers.SGD,
        oracle=oracles.sgd,
        slots=("momentum",),
        remembers_rates=True,
        tiny=4e-5,  # momentum makes ten steps of one
    ),
    Sample(
        name="adagrad",
        cls=tf_graft.Adagrad,
        kwargs={},
        idle=True,
        stock=keras.optimizers.Adagrad,
        oracle=oracles.adagrad,
        slots=("accumulator",),
        tiny=1e-3,
        refuses=_ADAGRAD,
    ),
    Sample(
        name="ftrl",
        cls=tf_graft.Ftrl,
        kwargs={},
        idle=False,
        stock=keras.optimizers.Ftrl,
        oracle=oracles.ftrl,
        slots=("accumulator", "linear"),
        grows=False,  # its weights are those of all gradients, not a sum of steps
        refuses=_FTRL,
    ),
    Sample(
        name="ftrl_regularized",
        cls=tf_graft.Ftrl,
        kwargs={
            "learning_rate_power": -0.25,
            "initial_accumulator_value": 0.5,
            "l1_regularization_strength": 0.125,
            "l2_regularization_strength": 0.0625,
            "l2_shrinkage_regularization_strength": 0.03125,
            "beta": 0.5,
        },
        idle=False,
        stock=keras.optimizers.Ftrl,
        oracle=oracles.ftrl,
        slots=("accumulator", "linear"),
        slow=True,
        grows=False,
    ),
    Sample(
        name="adadelta",
        cls=tf_graft.Adadelta,
        kwargs={},
        idle=False,
        stock=keras.optimizers.Adadelta,
        oracle=oracles.adadelta,
        slots=("accumulated_gradient", "accumulated_delta"),
        tiny=0.5,
        xla_ulps=16,  # a product of two roots, which XLA rounds otherwise, feeds the next step's
        refuses=_ADADELTA,
    ),
    Sample(
        name="rmsprop",
        cls=tf_graft.RMSprop,
        kwargs={},
        idle=False,
        stock=keras.optimizers.RMSprop,
        oracle=oracles.rmsprop,
        slots=("velocity",),
        refuses=_RMSPROP,
    ),
    Sample(
        name="rmsprop_initial_velocity",
        cls=tf_graft.RMSprop,
        kwargs={"momentum": 0.9, "initial_velocity": 0.75},
        idle=False,
        stock=None,
        oracle=oracles.rmsprop,
        slots=("velocity", "momentum"),
        remembers_rates=True,
        tiny=4e-5,
        slow=True,
        xla_ulps=16,  # the momentum of the scalar all but cancels
    ),
    Sample(
        name="rmsprop_momentum",
        cls=tf_graft.RMSprop,
        kwargs={"momentum": 0.5},
        idle=False,
        stock=keras.optimizers.RMSprop,
        oracle=oracles.rmsprop,
        slots=("velocity", "momentum"),
        remembers_rates=True,
        tiny=4e-5,
    ),
    Sample(
        name="rmsprop_centered_momentum",
        cls=tf_graft.RMSprop,
        kwargs={"momentum": 0.5, "centered": True},
        idle=False,
        stock=keras.optimizers.RMSprop,
        oracle=oracles.rmsprop,
        slots=("velocity", "momentum", "average_gradient"),
        remembers_rates=True,
        tiny=4e-5,
    ),
    Sample(
        name="adam",
        cls=tf_graft.Adam,
        kwargs={},
        idle=False,
        stock=keras.optimizers.Adam,
        oracle=oracles.adam,
        slots=("momentum", "velocity"),
        stock_rtol=_ADAM_STOCK_RTOL,
        refuses=_adam("Adam"),
    ),
    Sample(
        name="adam_amsgrad",
        cls=tf_graft.Adam,
        kwargs={"amsgrad": True},
        idle=False,
        stock=keras.optimizers.Adam,
        oracle=oracles.adam,
        slots=("momentum", "velocity", "velocity_hat"),
        stock_rtol=_ADAM_STOCK_RTOL,
    ),
    Sample(
        name="adamw",
        cls=tf_graft.AdamW,
        kwargs={"weight_decay": 0.05},
        idle=False,
        stock=keras.optimizers.AdamW,
        oracle=oracles.adam,
        slots=("momentum", "velocity"),
        stock_rtol=_ADAM_STOCK_RTOL,
        refuses=(
            *_adam("AdamW"),
            *_number("AdamW", "weight_decay", -0.1, must=_NOT_NEGATIVE, nothing=ValueError),
        ),
    ),
    Sample(
        name="momentum",
        cls=tf_graft.Momentum,
        kwargs={},
        idle=False,
        stock=None,
        oracle=oracles.momentum,
        slots=("momentum",),
        tiny=4e-5,  # momentum makes ten steps of one
        refuses=(
            *_number("Momentum", "momentum", -0.1, 1.1, must=_UNIT),
            *_boolean("Momentum", "use_nesterov"),
        ),
    ),
    Sample(
        name="momentum_nesterov",
        cls=tf_graft.Momentum,
        kwargs={"use_nesterov": True},
        idle=False,
        stock=None,
        oracle=oracles.momentum,
        slots=("momentum",),
        tiny=4e-5,
        slow=True,
    ),
    Sample(
        name="novograd",
        cls=tf_graft.NovoGrad,
        kwargs={},
        idle=False,
        stock=None,
        oracle=oracles.novograd,
        slots=("momentum", "squared_norm"),
        rowwise=False,
        spoils="all",
        tiny=4e-5,
        refuses=(
            *_number("NovoGrad", "beta1", -0.1, 1, 1.5, must=_BETA),
            *_number("NovoGrad", "beta2", -0.1, 1, 1.5, must=_BETA),
            *_number("NovoGrad", "epsilon", 0, -1.0, must=_POSITIVE),
            *_number("NovoGrad", "weight_decay", -0.1, must=_NOT_NEGATIVE),
            *_boolean("NovoGrad", "grad_averaging"),
        ),
    ),
    Sample(
        name="lion",
        cls=tf_graft.Lion,
        kwargs={},
        idle=False,
        stock=keras.optimizers.Lion,
        oracle=oracles.lion,
        slots=("momentum",),
        refuses=_betas("Lion"),
    ),
    Sample(
        name="radam",
        cls=tf_graft.RAdam,
        kwargs={"beta_2": 0.9},
        slow=True,
        idle=False,
        stock=None,
        oracle=oracles.radam,
        slots=("momentum", "velocity"),
        refuses=(
            *_betas("RAdam"),
            *_number("RAdam", "epsilon", 0, -1.0, must=_POSITIVE),
            *_number("RAdam", "threshold", 3.9, 0, must="be finite and at least 4"),
        ),
    ),
    Sample(
        name="adabelief",
        cls=tf_graft.AdaBelief,
        kwargs={"epsilon": 1e-3},
        slow=True,
        idle=False,
        stock=None,
        oracle=oracles.adabelief,
        slots=("momentum", "velocity"),
        refuses=(
            *_betas("AdaBelief"),
            *_number("AdaBelief", "epsilon", 0, -1.0, must=_POSITIVE),
            *_number("AdaBelief", "epsilon_root", -1.0, must=_NOT_NEGATIVE),
        ),
    ),
    Sample(
        name="ademamix",
        cls=tf_graft.AdEMAMix,
        kwargs={"beta_3_warmup": 6, "alpha_warmup": 3},
        slow=True,
        idle=False,
        stock=None,
        oracle=oracles.ademamix,
        slots=("momentum", "slow_momentum", "velocity"),
        refuses=(
            *_number("AdEMAMix", "beta_1", 0, -0.1, 1, must="lie in (0, 1)"),
            *_number("AdEMAMix", "beta_2", -0.1, 1, 1.5, must=_BETA),
            *_number("AdEMAMix", "beta_3", 0, 1, must="lie in (0, 1)"),
            *_number("AdEMAMix", "alpha", -0.1, must=_NOT_NEGATIVE),
            *_number("AdEMAMix", "epsilon", 0, -1.0, must=_POSITIVE),
            *_count("AdEMAMix", "beta_3_warmup"),
            *_count("AdEMAMix", "alpha_warmup"),
        ),
    ),
    Sample(
        name="nadam",
        cls=tf_graft.NAdam,
        kwargs={},
        slow=True,
        idle=False,
        stock=keras.optimizers.Nadam,
        oracle=oracles.nadam,
        slots=("momentum", "velocity"),
        shared=("u_product",),
        stock_rtol=_ADAM_STOCK_RTOL,
        refuses=(
            *_betas("NAdam"),
            *_number("NAdam", "epsilon", 0, -1.0, must=_POSITIVE),
            *(
                refusal
                for refusal in _number("NAdam", "momentum_decay", -0.1, must=_NOT_NEGATIVE)
                if refusal.kwargs["momentum_decay"] is not None
            ),
        ),
    ),
    Sample(
        name="nadamw",
        cls=tf_graft.NAdamW,
        kwargs={"weight_decay": 0.05},
        slow=True,
        idle=False,
        stock=None,
        oracle=oracles.nadamw,
        slots=("momentum", "velocity"),
        refuses=(
            *_betas("NAdamW"),
            *_number("NAdamW", "epsilon", 0, -1.0, must=_POSITIVE),
            *_number("NAdamW", "weight_decay", -0.1, must=_NOT_NEGATIVE, nothing=ValueError),
        ),
    ),
    Sample(
        name="adamax",
        cls=tf_graft.Adamax,
        kwargs={},
        slow=True,
        idle=False,
        stock=keras.optimizers.Adamax,
        oracle=oracles.adamax,
        slots=("momentum", "norm"),
        refuses=(
            *_betas("Adamax"),
            *_number("Adamax", "epsilon", 0, -1.0, must=_POSITIVE),
        ),
    ),
    Sample(
        name="adan",
        cls=tf_graft.Adan,
        kwargs={},
        slow=True,
        idle=False,
        stock=None,
        oracle=oracles.adan,
        slots=("momentum", "difference", "previous_gradient", "velocity"),
        refuses=(
            *_betas("Adan"),
            *_number("Adan", "beta_3", -0.1, 1, 1.5, must=_BETA),
            *_number("Adan", "epsilon", 0, -1.0, must=_POSITIVE),
            *_boolean("Adan", "no_prox"),
        ),
    ),
    Sample(
        name="yogi",
        cls=tf_graft.Yogi,
        kwargs={},
        slow=True,
        idle=False,
        stock=None,
        oracle=oracles.yogi,
        slots=("momentum", "velocity"),
        refuses=(
            *_betas("Yogi"),
            *_number("Yogi", "epsilon", 0, -1.0, must=_POSITIVE),
            *_number("Yogi", "initial_accumulator_value", -0.1, must=_NOT_NEGATIVE),
            *_boolean("Yogi", "epsilon_hat"),
        ),
    ),
    Sample(
        name="adopt",
        cls=tf_graft.ADOPT,
        kwargs={},
        slow=True,
        idle=False,
        stock=None,
        oracle=oracles.adopt,
        slots=("momentum", "velocity"),
        refuses=(
            *_betas("ADOPT"),
            *_number("ADOPT", "epsilon", 0, -1.0, must=_POSITIVE),
            *_boolean("ADOPT", "clips"),
        ),
    ),
    Sample(
        name="rowwise_adagrad",
        cls=tf_graft.RowWiseAdagrad,
        kwargs={},
        idle=True,
        stock=None,
        oracle=oracles.rowwise_adagrad,
        slots=("accumulator",),
        spoils="row",
        slow=True,
        tiny=1e-3,
        refuses=(
            *_number("RowWiseAdagrad", "epsilon", 0, -1.0, must=_POSITIVE),
            *_number("RowWiseAdagrad", "initial_accumulator_value", -0.1, must=_NOT_NEGATIVE),
        ),
    ),
    Sample(
        name="rowwise_adam",
        cls=tf_graft.RowWiseAdam,
        kwargs={},
        idle=False,
        stock=None,
        oracle=oracles.rowwise_adam,
        slots=("momentum", "velocity"),
        spoils="row",
        slow=True,
        refuses=(
            *_betas("RowWiseAdam"),
            *_number("RowWiseAdam", "epsilon", 0, -1.0, must=_POSITIVE),
        ),
    ),
    _of_matrices("muon", tf_graft.Muon, oracles.muon, ("momentum",)),
    _of_matrices("normuon", tf_graft.NorMuon, oracles.normuon, ("momentum", "velocity")),
    Sample(
        name="adafactor",
        cls=tf_graft.Adafactor,
        kwargs={},
        slow=True,
        idle=False,
        stock=keras.optimizers.Adafactor,
        oracle=oracles.adafactor,
        slots={2: ("row", "column"), 1: ("velocity",), 0: ("velocity",)},
        rowwise=False,
        spoils="all",
        xla_ulps=16,  # quotients of roots
        refuses=(
            *_number("Adafactor", "beta_2_decay", 0, 0.1, must="be finite and below 0"),
            *_number("Adafactor", "epsilon_1", 0, -1.0, must=_POSITIVE),
            *_number("Adafactor", "epsilon_2", 0, -1.0, must=_POSITIVE),
            *_number("Adafactor", "clip_threshold", 0, -1.0, must=_POSITIVE),
            *_number("Adafactor", "beta_1", -0.1, 1, must=_BETA),
            *_boolean("Adafactor", "relative_step"),
            *_boolean("Adafactor", "multiply_by_parameter_scale"),
            *_count("Adafactor", "min_dim_size_to_factor"),
            Refusal(
                {"factored_axes": "first"},
                ValueError,
                "Adafactor(factored_axes='first'): factored_axes must be one of 'last', 'largest'.",
            ),
        ),
    ),
    Sample(
        name="prodigy",
        cls=tf_graft.Prodigy,
        kwargs={"d0": 0.1},
        slow=True,
        idle=False,
        stock=None,
        oracle=oracles.prodigy,
        slots=("momentum", "gradient_sum", "initial", "velocity", "gradient_norm"),
        shared=("distance", "largest_distance", "numerator"),
        late=("initial", "distance", "largest_distance"),
        rowwise=False,
        spoils="all",
        spans=True,
        remembers_rates=True,
        tiny=4e-4,
        xla_ulps=16,
        refuses=(
            *_betas("Prodigy"),
            *_number("Prodigy", "epsilon", 0, -1.0, must=_POSITIVE),
            *_number("Prodigy", "d0", 0, -1.0, must=_POSITIVE),
            *_number("Prodigy", "d_coef", 0, -1.0, must=_POSITIVE),
            Refusal({"beta_3": 1}, ValueError, "Prodigy(beta_3=1): beta_3 must lie in [0, 1)."),
            Refusal(
                {"growth_rate": 0.5},
                ValueError,
                "Prodigy(growth_rate=0.5): growth_rate must be finite and at least 1.",
            ),
            *_boolean("Prodigy", "use_bias_correction"),
            *_boolean("Prodigy", "safeguard_warmup"),
            *_boolean("Prodigy", "decouple"),
        ),
    ),
    Sample(
        name="mars",
        cls=tf_graft.MARS,
        kwargs={},
        slow=True,
        idle=False,
        stock=None,
        oracle=oracles.mars,
        slots={
            2: ("momentum", "velocity", "last_gradient"),
            1: ("momentum", "velocity"),
            0: ("momentum", "velocity"),
        },
        rowwise=False,
        spoils="all",
        refuses=(
            *_betas("MARS"),
            *_number("MARS", "epsilon", 0, -1.0, must=_POSITIVE),
            *_number("MARS", "gamma", -0.1, must=_NOT_NEGATIVE),
            *_number("MARS", "beta_1_1d", -0.1, 1, must=_BETA),
            *_number("MARS", "beta_2_1d", -0.1, 1, must=_BETA),
            *_boolean("MARS", "optimize_1d"),
            Refusal(
                {"mars_type": "sgd"},
                ValueError,
                "MARS(mars_type='sgd'): mars_type must be one of 'adamw', 'lion'.",
            ),
        ),
    ),
    Sample(
        name="sgdsai",
        cls=tf_graft.SGDSaI,
        kwargs={},
        slow=True,
        idle=False,
        stock=None,
        oracle=oracles.sgdsai,
        slots=("momentum", "signal_to_noise"),
        rowwise=False,
        of_entries=True,
        tiny=1e-4,
        refuses=(
            *_number("SGDSaI", "momentum", -0.1, 1, must=_BETA),
            *_number("SGDSaI", "epsilon", 0, -1.0, must=_POSITIVE),
        ),
    ),
    Sample(
        name="cocob",
        cls=tf_graft.COCOB,
        kwargs={"alpha": 5000.0},  # bets grow by a factor of 50 in 200 steps, not of 1e30
        slow=True,
        idle=True,
        stock=None,
        oracle=oracles.cocob,
        slots=("largest_gradient", "gradient_magnitudes", "reward", "gradient_sum", "bet"),
        tiny=0.5,
        refuses=_number("COCOB", "alpha", 0, -1.0, must=_POSITIVE),
    ),
    Sample(
        name="schedule_free_sgd",
        cls=tf_graft.ScheduleFreeSGD,
        kwargs={"warmup_steps": 2, "r": 1.0},
        slow=True,
        idle=False,
        stock=None,
        oracle=oracles.schedule_free_sgd,
        slots=("averaged_weights", "weight_sum"),
        shared=("largest_rate", "evaluating"),
        late=("evaluating",),
        remembers_rates=True,
        rtol=1e-5,  # z is y, which is rounded, less 0.9 x, times ten
        xla_ulps=16,  # likewise
        refuses=(
            *_number("ScheduleFreeSGD", "momentum", -0.1, 0.9991, 1, must=_SHARE),
            *_number("ScheduleFreeSGD", "r", -1.0, must=_NOT_NEGATIVE),
            *_number("ScheduleFreeSGD", "weight_lr_power", -1.0, must=_NOT_NEGATIVE),
            *_count("ScheduleFreeSGD", "warmup_steps", 0),
        ),
    ),
    Sample(
        name="schedule_free_adamw",
        cls=tf_graft.ScheduleFreeAdamW,
        kwargs={"warmup_steps": 2},
        slow=True,
        idle=False,
        stock=None,
        oracle=oracles.schedule_free_adamw,
        slots=("averaged_weights", "weight_sum", "velocity"),
        shared=("largest_rate", "evaluating"),
        late=("evaluating",),
        remembers_rates=True,
        rtol=1e-5,  # z is y, which is rounded, less 0.9 x, times ten
        xla_ulps=16,  # likewise
        refuses=(
            *_number("ScheduleFreeAdamW", "beta_1", -0.1, 0.9991, 1, must=_SHARE),
            *_number("ScheduleFreeAdamW", "beta_2", -0.1, 1, 1.5, must=_BETA),
            *_number("ScheduleFreeAdamW", "epsilon", 0, -1.0, must=_POSITIVE),
            *_number("ScheduleFreeAdamW", "r", -1.0, must=_NOT_NEGATIVE),
            *_number("ScheduleFreeAdamW", "weight_lr_power", -1.0, must=_NOT_NEGATIVE),
            *_count("ScheduleFreeAdamW", "warmup_steps", 0),
        ),
    ),
    Sample(
        name="schedule_free_radam",
        cls=tf_graft.ScheduleFreeRAdam,
        kwargs={"beta_2": 0.9, "silent_sgd_phase": False},
        slow=True,
        idle=False,
        stock=None,
        oracle=oracles.schedule_free_radam,
        slots=("averaged_weights", "weight_sum", "velocity"),
        shared=("largest_rate", "evaluating"),
        late=("evaluating",),
        remembers_rates=True,
        rtol=1e-5,  # z is y, which is rounded, less 0.9 x, times ten
        xla_ulps=16,  # likewise
        refuses=(
            *_number("ScheduleFreeRAdam", "beta_1", -0.1, 0.9991, 1, must=_SHARE),
            *_number("ScheduleFreeRAdam", "beta_2", 0.6, 1, must="lie in (0.6, 1)"),
            *_number("ScheduleFreeRAdam", "epsilon", 0, -1.0, must=_POSITIVE),
            *_number("ScheduleFreeRAdam", "r", -1.0, must=_NOT_NEGATIVE),
            *_number("ScheduleFreeRAdam", "weight_lr_power", -1.0, must=_NOT_NEGATIVE),
            *_boolean("ScheduleFreeRAdam", "silent_sgd_phase"),
        ),
    ),
    Sample(
        name="shampoo",
        cls=tf_graft.Shampoo,
        kwargs={
            "precondition_frequency": 2,
            "beta_2": 0.9,
            "epsilon": 0.01,
            "others": {"name": "sgd", "learning_rate": 0.125},
        },
        idle=False,
        stock=None,
        oracle=oracles.shampoo,
        hyperparameters={
            "precondition_frequency": 2,
            "beta_2": 0.9,
            "epsilon": 0.01,
            "others": oracles.Child(oracles.sgd, 0.125),
        },
        slots={2: ("momentum", *_of_sides("factor", "root"), "failed_roots"), 1: (), 0: ()},
        rates=2,
        rowwise=False,
        whole=True,
        spoils="all",
        of_vectors=False,
        slow=True,
        rtol=1e-5,  # roots by eigenvalues
        refuses=(
            *_number("Shampoo", "beta_1", -0.1, 1, must=_BETA),
            *_number("Shampoo", "beta_2", -0.1, 1.5, must="lie in [0, 1]"),
            *_number("Shampoo", "epsilon", 0, -1.0, must=_POSITIVE),
            *_boolean("Shampoo", "relative_epsilon"),
            Refusal(
                {"exponent": 0},
                ValueError,
                "Shampoo(exponent=0): exponent must be finite and above 0.",
            ),
            Refusal(
                {"sides": "left"},
                ValueError,
                "Shampoo(sides='left'): sides must be one of 'both', 'inputs', 'outputs', "
                "'smaller'.",
            ),
            *_count("Shampoo", "precondition_frequency"),
            *_count("Shampoo", "start"),
            *_count("Shampoo", "block_size"),
            *_boolean("Shampoo", "spread"),
            *_axes("Shampoo"),
        ),
    ),
    Sample(
        name="kl_shampoo",
        cls=tf_graft.KLShampoo,
        kwargs={
            "precondition_frequency": 2,
            "beta_2": 0.9,
            "epsilon": 0.01,
            "others": {"name": "sgd", "learning_rate": 0.125},
        },
        idle=False,
        stock=None,
        oracle=oracles.kl_shampoo,
        hyperparameters={
            "precondition_frequency": 2,
            "beta_2": 0.9,
            "epsilon": 0.01,
            "others": oracles.Child(oracles.sgd, 0.125),
        },
        slots={2: ("momentum", *_of_sides("factor", "root"), "failed_roots"), 1: (), 0: ()},
        rates=2,
        rowwise=False,
        whole=True,
        spoils="all",
        of_vectors=False,
        slow=True,
        rtol=1e-5,  # roots by eigenvalues
        xla_ulps=32,  # moments of products with roots of small eigenvalues
        refuses=(
            *_number("KLShampoo", "beta_1", -0.1, 1, must=_BETA),
            *_number("KLShampoo", "beta_2", -0.1, 1, must=_BETA),
            *_number("KLShampoo", "epsilon", 0, -1.0, must=_POSITIVE),
            *_boolean("KLShampoo", "relative_epsilon"),
            *_number("KLShampoo", "exponent", 0, -0.5, must=_POSITIVE),
            *_count("KLShampoo", "precondition_frequency"),
            *_count("KLShampoo", "start"),
            *_count("KLShampoo", "block_size"),
            *_boolean("KLShampoo", "spread"),
            *_axes("KLShampoo"),
        ),
    ),
    Sample(
        name="soap",
        cls=tf_graft.SOAP,
        kwargs={"precondition_frequency": 2, "others": {"name": "sgd", "learning_rate": 0.125}},
        idle=False,
        stock=None,
        oracle=oracles.soap,
        hyperparameters={"precondition_frequency": 2, "others": oracles.Child(oracles.sgd, 0.125)},
        slots={2: ("momentum", "velocity", *_of_sides("factor", "basis")), 1: (), 0: ()},
        rates=2,
        rowwise=False,
        whole=True,
        spoils="all",
        of_eigenvectors=True,
        of_vectors=False,
        slow=True,
        xla_ulps=8,  # quotients of roots, of sums over two sides
        refuses=(
            *_soap("SOAP"),
            *_number("SOAP", "epsilon", 0, -1.0, must=_POSITIVE),
            *_axes("SOAP"),
        ),
    ),
    Sample(
        name="kl_soap",
        cls=tf_graft.KLSOAP,
        kwargs={"precondition_frequency": 2, "others": {"name": "sgd", "learning_rate": 0.125}},
        idle=False,
        stock=None,
        oracle=oracles.kl_soap,
        hyperparameters={"precondition_frequency": 2, "others": oracles.Child(oracles.sgd, 0.125)},
        slots={2: ("momentum", "velocity", *_of_sides("factor", "basis")), 1: (), 0: ()},
        rates=2,
        rowwise=False,
        whole=True,
        spoils="all",
        of_eigenvectors=True,
        of_vectors=False,
        slow=True,
        rtol=2e-5,  # quotients by eigenvalues far below the largest
        xla_ulps=32,
        refuses=(
            *_soap("KLSOAP"),
            *_number("KLSOAP", "shampoo_epsilon", 0, -1.0, must=_POSITIVE),
            *_number("KLSOAP", "epsilon", 0, -1.0, must=_POSITIVE),
            *_axes("KLSOAP"),
        ),
    ),
    Sample(
        name="soap_muon",
        cls=tf_graft.SOAPMuon,
        kwargs={"precondition_frequency": 2, "others": {"name": "sgd", "learning_rate": 0.125}},
        idle=False,
        stock=None,
        oracle=oracles.soap_muon,
        hyperparameters={"precondition_frequency": 2, "others": oracles.Child(oracles.sgd, 0.125)},
        slots={2: ("momentum", "velocity", *_of_sides("factor", "basis")), 1: (), 0: ()},
        rates=2,
        rowwise=False,
        whole=True,
        spoils="all",
        of_eigenvectors=True,
        of_vectors=False,
        slow=True,
        rtol=2e-5,  # the iterations multiply singular values near zero by hundreds
        xla_ulps=8,
        refuses=(
            *_soap("SOAPMuon"),
            *_iterations("SOAPMuon"),
        ),
    ),
    Sample(
        name="novograd_averaging_decay",
        cls=tf_graft.NovoGrad,
        kwargs={"beta1": 0.95, "beta2": 0.5, "weight_decay": 0.1, "grad_averaging": True},
        idle=False,
        stock=None,
        oracle=oracles.novograd,
        slots=("momentum", "squared_norm"),
        rowwise=False,
        spoils="all",
        slow=True,
        xla_ulps=32,  # the momentum of the scalar all but cancels
    ),
    Sample(
        name="lars",
        cls=tf_graft.LARS,
        kwargs={"eeta": 0.5, "weight_decay_rate": 0.1},
        idle=False,
        stock=None,
        oracle=oracles.lars,
        slots=("momentum",),
        rowwise=False,
        remembers_rates=True,
        tiny=4e-5,
        refuses=_LARS,
    ),
    Sample(
        name="lars_popular_nesterov",
        cls=tf_graft.LARS,
        kwargs={
            "eeta": 0.5,
            "weight_decay_rate": 0.1,
            "classic_momentum": False,
            "nesterov": True,
            "exclude_from_layer_adaptation": ["scale$"],
        },
        idle=False,
        stock=None,
        oracle=oracles.lars,
        slots=("momentum",),
        rowwise=False,
        slow=True,
    ),
    Sample(
        name="lars_sum_of_norms",
        cls=tf_graft.LARS,
        kwargs={"eeta": 0.5, "weight_decay_rate": 0.1, "momentum": 0.0, "sum_of_norms": True},
        idle=False,
        stock=None,
        oracle=oracles.lars,
        rowwise=False,
        slow=True,
    ),
    Sample(
        name="lamb",
        cls=tf_graft.LAMB,
        kwargs={"weight_decay_rate": 0.1},
        idle=False,
        stock=None,
        oracle=oracles.lamb,
        slots=("momentum", "velocity"),
        rowwise=False,
        refuses=_LAMB,
    ),
    Sample(
        name="lamb_as_keras",
        cls=tf_graft.LAMB,
        kwargs={"epsilon": 1e-6},
        idle=False,
        stock=keras.optimizers.Lamb,
        oracle=oracles.lamb,
        slots=("momentum", "velocity"),
        rowwise=False,
        slow=True,
        stock_rtol=_ADAM_STOCK_RTOL,
    ),
    Sample(
        name="larc_clip",
        cls=tf_graft.LARC,
        kwargs={"optimizer": _MOMENTUM_CHILD, "eta": 0.08},  # some are clipped, others are not
        idle=False,
        stock=None,
        oracle=oracles.larc,
        hyperparameters={"child": oracles.sgd, "momentum": 0.9, "eta": 0.08},
        slots=("optimizer/momentum",),
        rowwise=False,
        remembers_rates=True,
        tiny=4e-5,
        refuses=(*_LARC, *_no_optimizer("optimizer")),
    ),
    Sample(
        name="larc_scale",
        cls=tf_graft.LARC,
        kwargs={"optimizer": _SGD_CHILD, "eta": 0.5, "mode": "scale"},
        idle=True,
        stock=None,
        oracle=oracles.larc,
        hyperparameters={"child": oracles.sgd, "eta": 0.5, "mode": "scale"},
        rowwise=False,
        slow=True,
    ),
    Sample(
        name="agc",
        cls=tf_graft.AdaptiveGradientClipping,
        kwargs={"optimizer": _MOMENTUM_CHILD, "clipping": 0.25, "by_row": []},
        idle=False,
        stock=None,
        oracle=oracles.agc,
        hyperparameters={"child": oracles.sgd, "momentum": 0.9, "clipping": 0.25},
        slots=("optimizer/momentum",),
        rowwise=False,
        whole=True,
        slow=True,
        refuses=(*_AGC, *_no_optimizer("optimizer")),
    ),
    Sample(
        name="centralized",
        cls=tf_graft.GradientCentralization,
        kwargs={"optimizer": _MOMENTUM_CHILD, "exclude_from_centralization": []},
        idle=False,
        stock=None,
        oracle=oracles.centralized,
        hyperparameters={"child": oracles.sgd, "momentum": 0.9},
        slots=("optimizer/momentum",),
        rowwise=False,
        whole=True,
        slow=True,
        spoils="column",
        refuses=(
            *_patterns("GradientCentralization", "exclude_from_centralization"),
            *_no_optimizer("optimizer"),
        ),
    ),
    Sample(
        name="hyperball",
        cls=tf_graft.Hyperball,
        kwargs={"optimizer": _MOMENTUM_CHILD, "exclude_from_hyperball": []},
        idle=False,
        stock=None,
        oracle=oracles.hyperball,
        hyperparameters={"child": oracles.sgd, "momentum": 0.9},
        slots={
            2: ("radius", "optimizer/momentum"),
            **dict.fromkeys((0, 1), ("optimizer/momentum",)),
        },
        rowwise=False,
        whole=True,
        spoils="all",
        slow=True,
        refuses=(
            *_patterns("Hyperball", "exclude_from_hyperball"),
            *_no_optimizer("optimizer"),
        ),
    ),
    Sample(
        name="radial_brake",
        cls=tf_graft.RadialBrake,
        kwargs={
            "optimizer": _MOMENTUM_CHILD,
            "outward": 0.5,
            "floor": 0.4,
            "exclude_from_brake": [],
        },
        idle=False,
        stock=None,
        oracle=oracles.radial_brake,
        hyperparameters={"child": oracles.sgd, "outward": 0.5, "floor": 0.4, "momentum": 0.9},
        slots=("optimizer/momentum",),
        rowwise=False,
        whole=True,
        spoils="all",
        slow=True,
        refuses=(
            *_number("RadialBrake", "outward", 1.5, must=_UNIT),
            *_number("RadialBrake", "floor", -0.1, must=_NOT_NEGATIVE),
            *_patterns("RadialBrake", "exclude_from_brake"),
            *_no_optimizer("optimizer"),
        ),
    ),
    Sample(
        name="ema_nesterov",
        cls=tf_graft.EMANesterov,
        kwargs={"optimizer": _MOMENTUM_CHILD, "momentum": 0.5, "ahead": 0.25},
        idle=False,
        stock=None,
        oracle=oracles.ema_nesterov,
        hyperparameters={
            **{"child": oracles.sgd, "momentum": 0.9},
            **{"mean_momentum": 0.5, "ahead": 0.25},
        },
        slots=("averaged_weights", "weight_sum", "displacement", "optimizer/momentum"),
        shared=("evaluating",),
        late=("evaluating",),
        slow=True,
        refuses=(
            *_number("EMANesterov", "momentum", -0.1, 1, must=_BETA),
            *_number("EMANesterov", "ahead", -0.1, 1, must=_BETA),
            *_no_optimizer("optimizer"),
        ),
    ),
    Sample(
        name="cautious",
        cls=tf_graft.Cautious,
        kwargs={"optimizer": _MOMENTUM_CHILD},
        idle=False,
        stock=None,
        oracle=oracles.cautious,
        hyperparameters={"child": oracles.sgd, "momentum": 0.9},
        slots=("optimizer/momentum",),
        rowwise=False,
        remembers_rates=True,
        slow=True,
        tiny=4e-5,
        refuses=(
            *_number("Cautious", "xi", -0.1, must=_NOT_NEGATIVE),
            *_no_optimizer("optimizer"),
        ),
    ),
    Sample(
        name="larc_adam",
        cls=tf_graft.LARC,
        kwargs={"optimizer": _ADAM_CHILD},
        idle=False,
        stock=None,
        oracle=oracles.larc,
        hyperparameters={"child": oracles.adam},
        slots=("optimizer/momentum", "optimizer/velocity"),
        rowwise=False,
        slow=True,
    ),
    Sample(
        name="multi",
        cls=tf_graft.MultiOptimizer,
        kwargs={"optimizers": {"^bias$": _MOMENTUM_CHILD, ".*": _ADAM_CHILD}},
        idle=False,
        stock=None,
        oracle=oracles.multi,
        hyperparameters={"^bias$": _MOMENTUM_ORACLE, ".*": _ADAM_ORACLE},
        slots={
            rank: ("group2/momentum", "optimizer_2/velocity") if rank != 1 else ("group1/momentum",)
            for rank in range(5)
        },
        rates=3,
        slow=True,
        tiny=8e-4,
        refuses=(
            Refusal(
                {"optimizers": ["adam"]},
                TypeError,
                "MultiOptimizer(optimizers=['adam']): optimizers must be a dict of optimizers by "
                "regular expression.",
            ),
        ),
    ),
    _graft(
        "graft_sgd_adam",
        (_SGD_CHILD, _SGD_ORACLE, ()),
        (_ADAM_CHILD, _ADAM_ORACLE, ("momentum", "velocity")),
        slow=False,
        refuses=(
            *_no_optimizer("magnitude_optimizer"),
            *_no_optimizer("direction_optimizer"),
            *_boolean("AdaGraft", "use_global_norm"),
            *_boolean("AdaGraft", "diagnostic"),
        ),
    ),
    _graft(
        "graft_schedules_global",
        (
            {"name": "rmsprop", "learning_rate": _HALVES},
            oracles.Child(oracles.rmsprop, _halves),
            ("velocity",),
        ),
        (_MOMENTUM_CHILD, _MOMENTUM_ORACLE, ("momentum",)),
        use_global_norm=True,
        rates=2,
        spans=True,
        grows=False,  # its children's rates fall
        tiny=8e-4,
    ),
    _graft(
        "graft_decays_diagnostic",
        (
            {"name": "adamw", "learning_rate": 0.25, "weight_decay": 0.25},
            oracles.Child(oracles.adam, 0.25, weight_decay=0.25),
            ("momentum", "velocity"),
        ),
        (
            {**_SGD_CHILD, "weight_decay": 0.125, "exclude_from_weight_decay": ["bias$"]},
            oracles.Child(oracles.sgd, 0.5, weight_decay=0.125, exclude="bias$"),
            (),
        ),
        diagnostic=True,
    ),
    _graft(
        "graft_nested",
        (_MOMENTUM_CHILD, _MOMENTUM_ORACLE, ("momentum",)),
        (_GRAFT_CHILD, _GRAFT_ORACLE, ("direction/momentum", "direction/velocity")),
        rates=5,
    ),
    _wrapped(
        keras.optimizers.Nadam,
        "nadam",
        slots=("momentum", "velocity"),
        shared=("u_product",),
        slow=False,
        refuses=_no_optimizer("optimizer"),
    ),
    _wrapped(
        keras.optimizers.SGD,
        "sgd_momentum",
        arguments={"momentum": 0.9, "nesterov": True},
        slots=("momentum",),
        remembers_rates=True,
        tiny=4e-5,
    ),
    _wrapped(keras.optimizers.Adam, "adam", slots=("momentum", "velocity")),
    _wrapped(keras.optimizers.Lion, "lion", slots=("momentum",)),
    _wrapped(
        keras.optimizers.Lamb,
        "lamb",
        slots=("momentum", "velocity"),
        whole=True,
        grows=False,  # but with the weights
    ),
    _wrapped(
        keras.optimizers.Adafactor,
        "adafactor",
        slots={0: ("velocity",), 1: ("velocity",), 2: ("r", "c", "velocity")},
        whole=True,
        spoils="all",
    ),
)
if hasattr(keras.optimizers, "ScheduleFreeAdamW"):  # from Keras 3.15 on; 3.12's Muon is broken
    SAMPLES += (
        _wrapped(
            keras.optimizers.Muon,
            "muon",
            arguments={"weight_decay": None, "adam_weight_decay": None},  # options of the loops
            slots={0: ("momentum", "velocity"), 1: ("momentum", "velocity"), 2: ("momentum",)},
            whole=True,
            spoils="all",
            graph_ulps=8,  # five products of matrices, one after the other; 6.2 seen
        ),
        _wrapped(
            keras.optimizers.ScheduleFreeAdamW,
            "schedule_free",
            slots=("momentum", "velocity"),
            remembers_rates=True,
            grows=False,
        ),
    )
# Rows of the matrix alone: classes written outside, and Keras' where all their slots are zero.
ONLY_IN_MATRIX = (
    Sample(
        name="outside",
        cls=outside.Bare,
        kwargs={},
        idle=True,
        stock=None,
        oracle=functools.partial(oracles.adagrad, epsilon=0.0),
        slots=("accumulator",),
    ),
    Sample(
        name="outside_mean",
        cls=outside.Centered,
        kwargs={},
        idle=False,
        stock=None,
        oracle=oracles.centered_gradient,
        rowwise=False,
        whole=True,
    ),
    _graft(
        "graft_outside",
        (
            {"name": "bare", "learning_rate": 0.5},
            oracles.Child(oracles.adagrad, 0.5, epsilon=0.0),
            ("accumulator",),
        ),
        (_ADAM_CHILD, _ADAM_ORACLE, ("momentum", "velocity")),
    ),
    _wrapped(keras.optimizers.Ftrl, "ftrl", slots=("accumulator", "linear")),
    _wrapped(keras.optimizers.Adamax, "adamax", slots=("m", "u")),
)
BY_NAME = {sample.name: sample for sample in (*SAMPLES, *ONLY_IN_MATRIX)}

# Keras' own optimizers, in every kind of their arithmetic: functions of the rate.
BUILT_IN: dict[str, Callable[..., keras.optimizers.Optimizer]] = {
    "sgd": keras.optimizers.SGD,
    "sgd_momentum": functools.partial(keras.optimizers.SGD, momentum=0.9),
    "sgd_nesterov": functools.partial(keras.optimizers.SGD, momentum=0.9, nesterov=True),
    "rmsprop": keras.optimizers.RMSprop,
    "rmsprop_centered": functools.partial(keras.optimizers.RMSprop, momentum=0.5, centered=True),
    "adam": keras.optimizers.Adam,
    "adam_amsgrad": functools.partial(keras.optimizers.Adam, amsgrad=True),
    "adamw": functools.partial(keras.optimizers.AdamW, weight_decay=0.25),
    "adagrad": keras.optimizers.Adagrad,
    "adadelta": keras.optimizers.Adadelta,
    "adamax": keras.optimizers.Adamax,
    "nadam": keras.optimizers.Nadam,
    "ftrl": functools.partial(
        keras.optimizers.Ftrl, l1_regularization_strength=0.01, l2_regularization_strength=0.01
    ),
    "lion": keras.optimizers.Lion,
    "lamb": keras.optimizers.Lamb,
    "adafactor": keras.optimizers.Adafactor,
}
if hasattr(keras.optimizers, "ScheduleFreeAdamW"):  # from Keras 3.15 on; 3.12's Muon is broken
    BUILT_IN |= {
        "muon": keras.optimizers.Muon,
        "schedule_free": keras.optimizers.ScheduleFreeAdamW,
    }

# The common options, each alone; numbers chosen so that each bites on the problem below.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weight_decay": {"weight_decay": 0.2},
    "weight_decay_excluded": {"weight_decay": 0.2, "exclude_from_weight_decay": ["bias$"]},
    "clipvalue": {"clipvalue": 0.5},
    "clipnorm": {"clipnorm": 0.8},
    "global_clipnorm": {"global_clipnorm": 0.8},
    "accumulation": {"gradient_accumulation_steps": 2},
    "ema": {"use_ema": True, "ema_momentum": 0.7},
    "ema_overwrite": {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2},
    "loss_scale": {"loss_scale_factor": 10.0},
    "multipliers": {
        "weight_decay": 0.2,
        "global_clipnorm": 0.8,
        "learning_rate_multipliers": {"bias$": 0.25, "": 0.5},
    },
    "together": {
        "weight_decay": 0.2,
        "global_clipnorm": 0.8,
        "gradient_accumulation_steps": 2,
        "use_ema": True,
        "ema_momentum": 0.7,
        "ema_overwrite_frequency": 2,
        "loss_scale_factor": 10.0,
    },
}

# The problem: a matrix, a vector and a scalar.
SHAPES = {"kernel": (4, 3), "bias": (3,), "scale": ()}


def each(samples=SAMPLES, argument: str = "sample", quick: Sequence[str] | None = None):
    """Parametrizes a test by sample; all but those named in `quick` are slow then."""

    return pytest.mark.parametrize(
        argument,
        [pytest.param(s, id=s.name, marks=_marks(s, quick)) for s in samples],
    )


def each_in_turn(
    argument: str,
    values: Sequence[Any],
    samples: Sequence[Sample] = SAMPLES,
    quick: Sequence[str] | None = None,
):
    """Parametrizes a test by sample, and an argument by the values in turn: one for each sample."""
    return pytest.mark.parametrize(
        ("sample", argument),
        [
            pytest.param(s, value, id=f"{s.name}-{value}", marks=_marks(s, quick))
            for s, value in zip(samples, itertools.cycle(values), strict=False)
        ],
    )


def _marks(sample: Sample, quick: Sequence[str] | None) -> list[Any]:
    slow = sample.slow if quick is None else sample.name not in quick
    return [pytest.mark.slow] if slow else []


def of_each_class() -> list[Sample]:
    """The first sample of each class: for what the engine does, whatever the algorithm."""
    return [*{sample.cls: sample for sample in reversed(SAMPLES)}.values()][::-1]


def having(attribute: str) -> list[Sample]:
    """The samples of which that attribute says something."""
    return [sample for sample in SAMPLES if getattr(sample, attribute)]


def with_slow(values: Iterable[Any], quick: Iterable[Any]) -> list[Any]:
    """Values to parametrize a test by, named as they are; all but those in `quick` are slow."""
    chosen = [*quick]
    return [
        pytest.param(value, id=str(value), marks=[] if value in chosen else [pytest.mark.slow])
        for value in values
    ]


def listed(**facts: Any) -> list[str]:
    """The names of the package's own optimizers with those facts; tests register others."""
    names = tf_graft.list_optimizers(**facts)
    return [name for name in names if registry.find(name).__module__.startswith("tf_graft.")]


def needed_by(sample: Sample) -> dict[str, Any]:
    """The arguments without which its class cannot be made."""
    parameters = inspect.signature(sample.cls).parameters
    return {
        name: value
        for name, value in sample.kwargs.items()
        if name in parameters and parameters[name].default is inspect.Parameter.empty
    }


def each_option(*left_out: str, argument: str = "option"):
    """Parametrizes a test by the name of an option."""
    return pytest.mark.parametrize(argument, [name for name in OPTIONS if name not in left_out])


def weights(shapes=None, dtype="float32", seed=1) -> dict[str, np.ndarray]:
    """Initial weights by path, of magnitude one."""
    random = np.random.default_rng(seed)
    return {
        p: random.normal(size=s).astype(dtype)
        for p, s in (SHAPES if shapes is None else shapes).items()
    }


def gradients(count: int, shapes=None, dtype="float32", seed=2) -> list[dict[str, np.ndarray]]:
    """`count` steps of dense gradients by path, of magnitude one."""
    random = np.random.default_rng(seed)
    return [
        {
            p: random.normal(size=s).astype(dtype)
            for p, s in (SHAPES if shapes is None else shapes).items()
        }
        for _ in range(count)
    ]


def variables(values: dict[str, Any], dtype: str | None = None) -> dict[str, keras.Variable]:
    """Keras variables with those paths and values."""
    return {
        path: keras.Variable(value, dtype=dtype or np.asarray(value).dtype.name, name=path)
        for path, value in values.items()
    }


def slices(ids: Any, values: Any, rows: int | None = None) -> tf.IndexedSlices:
    """A row-sparse gradient, with its dense shape where `rows` is given."""
    values = tf.convert_to_tensor(values)
    shape = None if rows is None else tf.constant([rows, *values.shape[1:]], tf.int64)
    return tf.IndexedSlices(values, tf.constant(np.asarray(ids, np.int64)), shape)


def state_of(optimizer: Any, *model: Any) -> dict[str, np.ndarray]:
    """Every variable of the optimizer and the model, by its path without the optimizer's name."""
    prefix = f"{optimizer.name}/"
    found = {v.path.removeprefix(prefix): v.numpy() for v in optimizer.variables}
    found |= {f"model {i}": v.numpy() for i, v in enumerate(model)}
    assert len(found) == len(optimizer.variables) + len(model), "paths are not distinct"
    return found


def assert_same_state(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Bit for bit, NaN included, naming what differs."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype, name
        assert actual[name].tobytes() == value.tobytes(), f"'{name}' differs"


def spread(names, options, every):
    """Options by name, of all pairs one in `every`: each has some of the others."""
    return {
        name: [option for j, option in enumerate(options) if (i + j) % every == 0]
        for i, name in enumerate(names)
    }
