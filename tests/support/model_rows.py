"""The rows of the matrix through a compiled model: optimizers and wrappers, each with its oracle.

The samples are those of `samples.py`; beside them what is no sample because it does more than
propose steps: `AGN`, another algorithm on several replicas, and `MixedPrecision`.
"""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import tf_graft as tg
from support import cells, oracles, samples

RATE = cells.RATE
EXCLUDE = "exclude_from_weight_decay"


class Row(NamedTuple):
    """One optimizer in one configuration.

    Attributes:
        make: an optimizer for the common options.
        oracle: what is right, of the first weights, an option and a problem.
        rtol: what a step may be off, relative to the largest.
        whole: whether a row-sparse gradient acts as the dense one.
        of_entries: whether a step depends on how many entries a variable has, touched or not.
    """

    make: Callable[..., Any]
    oracle: Callable[..., Any]
    rtol: float = 2e-6
    whole: bool = False
    of_entries: bool = False


def options_of(option: str) -> dict[str, Any]:
    """An option as an oracle has it, whose gradient is of the loss that is not scaled."""
    given = cells.OPTIONS[option]
    return {name: value for name, value in given.items() if name != "loss_scale_factor"}


def both_sides(option: str) -> dict[str, Any]:
    """As `options_of`, for a wrapper of which the decay and the exclusions are one's in it."""
    options = options_of(option)
    return options | options.pop("inside", {})


def sides(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a wrapper is given, and what the optimizer in it is: all, if nothing else is said."""
    options = dict(options)
    inside = options.pop("inside", None)
    return ({}, options) if inside is None else (options, inside)


class Together:
    """An oracle of all replicas' sum.

    Args:
        oracle: in float64.
        exact: numbers that must be right exactly, by name: a function of none.
    """

    def __init__(self, oracle, exact=dict):
        self.oracle, self.exact = oracle, exact

    @property
    def w(self):
        return self.oracle.w

    @property
    def count(self):
        return self.oracle.count

    @property
    def skipped(self):
        return self.oracle.skipped

    def weights_of(self, replicas):
        return [self.w] * replicas

    def apply(self, shares):
        self.oracle.apply({path: sum(share[path] for share in shares) for path in self.w})

    def finished(self):
        """The weights after the last step, and those that the end of `fit` leaves."""
        before = dict(self.w)
        self.oracle.finalize()
        return before, dict(self.w)


class Watched(oracles.Oracle):
    """One that tells which gradient an update was made of, clipped; None where none was made."""

    used = None

    def _update(self, gradients):
        self.used = gradients
        super()._update(gradients)


class Backoff:
    """The scale of `BackoffScaler`, written down anew.

    Args:
        most: the first scale, and the largest.
        window: steps without an overflow before it grows.
    """

    def __init__(self, most, window):
        self.scale = self.most = most
        self.window, self.since, self.seen = window, 0, (0, 0)

    def see(self, oracle):
        """Looks whether the oracle has made an update, skipped one, or neither."""
        now = (oracle.count, oracle.skipped)
        made, skipped = (a - b for a, b in zip(now, self.seen, strict=True))
        self.seen = now
        if skipped:
            self.scale, self.since = self.scale / 2, 0
        elif made:
            self.since += 1
            if self.since % self.window == 0:
                self.scale = min(2 * self.scale, self.most)


class Scaled(Together):
    """`MixedPrecision`: powers of two change nothing, and the scale has to follow."""

    def __init__(self, oracle, scaler):
        super().__init__(oracle, lambda: {"loss_scale": scaler.scale})
        self.scaler = scaler

    def apply(self, shares):
        super().apply(shares)
        self.scaler.see(self.oracle)


class Workers:
    """`AGN`: a local copy for each replica, around a center.

    Args:
        start: weights by path.
        local, center: each an algorithm with its hyperparameters.
        period: local updates between two communications.
        options: of the local optimizers.
        averaging: of the center's.
        problem: how many replicas, whose copy is read, and whether a round is taken at a time.
        updates, reset: as `AGN`'s `mode="updates"` and `reset_local_state`.
        scaler: of the loss, where there is one: each copy has its own.
    """

    def __init__(
        self,
        start,
        local,
        center,
        period,
        options,
        averaging,
        problem,
        updates=False,
        reset=False,
        scaler=None,
    ):
        count = problem.replicas
        self.copies = [Watched(local[0], start, RATE, local[1], **options) for _ in range(count)]
        self.center = oracles.Oracle(*center, **averaging)
        self.period, self.updates, self.reset = period, updates, reset
        self.scaler = scaler
        self.own, self.rounds_alone = problem.own, problem.rounds
        self.round_length = period * options.get("gradient_accumulation_steps", 1)
        self.given = 0  # batches, of a round
        self.steps = 0  # towards the next communication
        self.done = [0] * count  # updates of each copy
        self.restart()

    def restart(self):
        self.taken = [0] * len(self.copies)
        self.sums = [{p: np.zeros_like(w) for p, w in self.w.items()} for _ in self.copies]

    @property
    def w(self):
        return self.copies[self.own].w

    @property
    def count(self):
        return self.done[self.own]

    @property
    def skipped(self):
        return self.copies[self.own].skipped

    def exact(self):
        scale = {"loss_scale": self.scaler.scale} if self.scaler else {}
        return {"rounds": self.center.count} | scale

    def weights_of(self, replicas):
        return [copy.w for copy in self.copies]

    def apply(self, shares):
        """A step of all copies, each with its share as its estimate of the whole."""
        due = False
        for number, (copy, share) in enumerate(zip(self.copies, shares, strict=True)):
            before, skipped, copy.used = dict(copy.w), copy.skipped, None
            copy.apply({path: len(shares) * g for path, g in share.items()})
            due |= copy.used is not None or (copy.skipped > skipped and len(shares) > 1)
            if copy.used is None:
                continue
            self.done[number] += 1
            self.taken[number] += 1
            for path, total in self.sums[number].items():
                g = before[path] - copy.w[path] if self.updates else copy.used[path]
                self.sums[number][path] = total + g
        if self.scaler:
            self.scaler.see(self.copies[self.own])
        self.steps += due
        self.given += 1
        if self.rounds_alone:
            over = self.given % self.round_length == 0 or self.given == cells.STEPS
        else:
            over = due and self.steps % self.period == 0
        if over:
            self.communicate()

    def communicate(self):
        means = [
            {path: total / taken for path, total in sums.items()}
            for sums, taken in zip(self.sums, self.taken, strict=True)
        ]
        self.center.apply({p: sum(mean[p] for mean in means) / len(means) for p in self.w})
        for copy in self.copies:
            copy.w = dict(self.center.w)
            if self.reset:
                copy.count, copy.slots = 0, {path: {} for path in copy.w}
        self.restart()

    def finished(self):
        before = dict(self.center.w if self.rounds_alone else self.w)
        self.center.finalize()
        return before, dict(self.center.w)


def keras_muon(g, w, s, lr, t, embedding=False):
    """Keras' own, which takes the steps of Adam on an embedding."""
    return (oracles.adam if embedding else cells.muon)(g, w, s, lr, t)


def keras_muon_oracle(start, option, problem):
    tables = {path: {"embedding": True} for path in start if path.endswith("/embeddings")}
    own = {"decays": tables}
    return Together(oracles.Oracle(keras_muon, start, RATE, own, **both_sides(option)))


def of_sample(sample):
    """A row of the matrix through `apply`."""

    of_matrices = "axes" in inspect.signature(sample.cls).parameters
    last_layer = {"axes": {"dense/kernel": "layer"}} if of_matrices else {}
    keras_own = sample.name == "wrapped_muon"
    whole = sample.whole and not (of_matrices or keras_own)  # to which an embedding is no matrix

    def make(**options):
        return sample.make(name="optimizer", **last_layer, **options)

    def oracle(start, option, problem):
        return Together(cells.oracle_of(sample, options_of(option), start))

    right = keras_muon_oracle if keras_own else oracle
    return Row(make, right, cells.rtol(sample), whole, sample.of_entries)


AVERAGING = ("use_ema", "ema_momentum", "ema_overwrite_frequency")


def parted(options):
    """The options of the local optimizer's side, and those of the center's."""
    center = {name: value for name, value in options.items() if name in AVERAGING}
    return {name: value for name, value in options.items() if name not in center}, center


def agn_adam(**options):
    """The center is a copy; where it averages, it has to be given as one."""
    local, averaging = parted(options)
    outer, inner = sides(local)
    decay = {name: inner[name] for name in inner if "weight_decay" in name}
    center = tg.Adam(samples.RATE, **decay, **averaging) if averaging else None
    return tg.AGN(tg.Adam(samples.RATE, **inner), None, 2, center, name="optimizer", **outer)


def agn_adam_oracle(start, option, problem):
    local, averaging = parted(both_sides(option))
    copied = "weight_decay", EXCLUDE, "learning_rate_multipliers"
    return Workers(
        start,
        (oracles.adam, {}),
        (oracles.adam, start, RATE),
        2,
        local,
        averaging | {name: local[name] for name in copied if name in local},
        problem,
    )


def agn_updates(**options):
    """As DiLoCo's: three steps of SGD with momentum, which then starts anew."""
    local, averaging = parted(options)
    outer, inner = sides(local)
    return tg.AGN(
        tg.SGD(samples.RATE, momentum=0.9, **inner),
        communication_period=3,
        center_optimizer=tg.SGD(1.5, momentum=0.5, nesterov=True, **averaging),
        mode="updates",
        reset_local_state=True,
        name="optimizer",
        **outer,
    )


def agn_updates_oracle(start, option, problem):
    local, averaging = parted(both_sides(option))
    nesterov = {"momentum": 0.5, "nesterov": True}
    return Workers(
        start,
        (oracles.sgd, {"momentum": 0.9}),
        (oracles.sgd, start, 1.5, nesterov),
        3,
        local,
        averaging,
        problem,
        updates=True,
        reset=True,
    )


def agn_mixed(**options):
    """Each worker scales its own loss."""
    local, averaging = parted(options)
    momentum = functools.partial(tg.SGD, momentum=0.9)
    center = tg.Adagrad(samples.RATE, **averaging)
    return tg.AGN(mixed(momentum, BACKOFF, local), None, 2, center, name="optimizer")


def agn_mixed_oracle(start, option, problem):
    local, averaging = parted(both_sides(option))
    return Workers(
        start,
        (oracles.sgd, {"momentum": 0.9}),
        (oracles.adagrad, start, RATE),
        2,
        local,
        averaging,
        problem,
        scaler=Backoff(64.0, 3),
    )


def mixed_backoff_oracle(start, option, problem):
    truth = oracles.Oracle(oracles.adam, start, RATE, **both_sides(option))
    return Scaled(truth, Backoff(64.0, 3))


def mixed_fixed_oracle(start, option, problem):
    truth = oracles.Oracle(oracles.adagrad, start, RATE, **both_sides(option))
    return Together(truth, lambda: {"loss_scale": 128.0})


FACTORS = {  # of the layer-wise rates
    "table/embeddings": 0.5,
    "dense/kernel": 0.75,
    "dense/bias": 1.5,
    "norm/gamma": 0.25,
    "norm/beta": 1.25,
    "scale/scale": 0.125,
}


def layerwise(inside=None, **options):
    rates = tg.report.MeasuredRates("constant", FACTORS)
    child = tg.SGD(0.5, momentum=0.9, **inside or {})
    return tg.LayerwiseRates(child, rates, samples.RATE, name="optimizer", **options)


def times_factor(g, w, s, lr, t, factor, decay):
    return lr * factor * (oracles.sgd(g, w, s, 0.5, t, momentum=0.9) - 0.5 * decay * w)


def layerwise_oracle(start, option, problem):
    options = options_of(option)
    inside = options.pop("inside", {})
    excluded = [*options.get(EXCLUDE, ()), *inside.get(EXCLUDE, ())]

    def of(path):
        undecayed = any(re.search(pattern, path) for pattern in excluded)
        decay = 0.0 if undecayed else inside.get("weight_decay", 0.0)
        return {"factor": FACTORS[path], "decay": decay}

    own = {"decays": {path: of(path) for path in FACTORS}}
    return Together(oracles.Oracle(times_factor, start, RATE, own, **options))


def mixed(optimizer, loss_scale, options):
    """Alone among other options the scale of a loss is left to `MixedPrecision`."""
    if len(options) > 1:
        options = {name: value for name, value in options.items() if name != "loss_scale_factor"}
    outer, inner = sides(options)
    child = optimizer(samples.RATE, **inner)
    return tg.MixedPrecision(child, loss_scale, name="optimizer", **outer)


BACKOFF = tg.scaling.BackoffScaler(scale_max=64.0, step_window=3)
ROWS = {name: of_sample(sample) for name, sample in samples.BY_NAME.items()} | {
    "layerwise_rates": Row(layerwise, layerwise_oracle),
    "mixed_backoff": Row(
        lambda **options: mixed(tg.Adam, BACKOFF, options),
        mixed_backoff_oracle,
    ),
    "mixed_fixed": Row(
        lambda **options: mixed(tg.Adagrad, 128, options),
        mixed_fixed_oracle,
    ),
    "agn_adam": Row(agn_adam, agn_adam_oracle),
    "agn_updates": Row(agn_updates, agn_updates_oracle),
    "agn_mixed": Row(agn_mixed, agn_mixed_oracle),
}

# Those of which tests fill some cells.
SOME = ["adam", "adagrad", "lars", "graft_sgd_adam"]
MORE = ["novograd", "larc_clip", "wrapped_nadam", "layerwise_rates"]
WRAPPERS = ["agn_adam", "agn_updates", "agn_mixed", "mixed_backoff"]
