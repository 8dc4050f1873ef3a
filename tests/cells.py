"""One optimizer with one option in one execution, held against the float64 oracle.

A cell makes its variables where the execution has them, applies a few gradients there and reads
the weights back. The gradients of a step come in four parts, which N replicas share among
themselves, so what is right is the same for every execution. Each part is a multiple of 1/64: sums
are exact in any order. The table's are row-sparse, with rows that repeat within a part and between
parts; every row is touched in every step, so that `sparse="lazy"` has to equal the dense gradient.
"""

import functools
from typing import NamedTuple

import keras
import numpy as np
import oracles
import samples
import tensorflow as tf

SHAPES = {"table": (4, 4), "kernel": (4, 4), "bias": (4,), "scale": ()}
ROWS = ("table",)
STEPS = 4
PARTS = 4
IDS = ([0, 3], [1, 1], [2, 3], [0, 2])  # of each part's slices
RATE = float(np.float32(samples.RATE))
# A non-finite number in one part: only the last replica sees it.
OPTIONS = samples.OPTIONS | {"not_finite": {}}
# What is allowed beside the rounding of the weights, relative to the largest step, where it is not
# the sample's `rtol`: for Keras' optimizers in float32 against the same in float64.
RTOL = {
    "wrapped_muon": 2e-2,  # its Newton-Schulz iteration is in bfloat16's precision by design
}


class Cell(NamedTuple):
    """What is in one place of the matrix.

    Attributes:
        error: the largest error, as a share of what is allowed; None where it was refused.
        refusal: the reason, where it was.
    """

    sample: str
    option: str
    error: float | None
    refusal: str = ""


def rtol(sample) -> float:
    """What a cell may be off, relative to the largest step, for each step."""
    return RTOL.get(sample.name, sample.rtol)


def weights(shapes=None) -> dict[str, np.ndarray]:
    return samples.weights(SHAPES if shapes is None else shapes)


@functools.cache
def _parts(shapes) -> list[list[dict[str, np.ndarray]]]:
    """For each step, for each part, the values of the gradients by path."""
    random = np.random.default_rng(7)

    def drawn(path, shape):
        shape = (2, *shape[1:]) if path in ROWS else shape
        return (np.round(random.normal(size=shape) * 64) / 64).astype("float32")

    return [
        [{path: drawn(path, shape) for path, shape in shapes} for _ in range(PARTS)]
        for _ in range(STEPS)
    ]


def parts(option, shapes=None) -> list[list[dict[str, np.ndarray]]]:
    """For each step, for each of the four parts, the values by path."""
    shapes = SHAPES if shapes is None else shapes
    steps = [[dict(part) for part in step] for step in _parts(tuple(shapes.items()))]
    if option == "not_finite":
        path = next(path for path in reversed(shapes) if path not in ROWS)
        steps[1][-1][path] = np.full_like(steps[1][-1][path], np.inf)
    return steps


def dense(part, number, shapes) -> dict[str, np.ndarray]:
    """A part with the slices as the dense gradient."""
    result = {path: value.astype("float64") for path, value in part.items()}
    for path in ROWS:
        if path in result:
            result[path] = np.zeros(shapes[path])
            np.add.at(result[path], IDS[number], part[path].astype("float64"))
    return result


def sums(option, shapes=None) -> list[dict[str, np.ndarray]]:
    """The whole gradient of each step, dense, in float64."""
    shapes = SHAPES if shapes is None else shapes
    return [
        {
            path: sum(dense(part, number, shapes)[path] for number, part in enumerate(step))
            for path in shapes
        }
        for step in parts(option, shapes)
    ]


def shares(option, replicas: int) -> list[list[list[np.ndarray]]]:
    """For each step, for each variable (its slices one after the other), each replica's values."""
    each = PARTS // replicas
    result = []
    for step in parts(option):
        groups = [step[i * each : (i + 1) * each] for i in range(replicas)]
        result.append(
            [
                [
                    np.concatenate([p[path] for p in group])
                    if path in ROWS
                    else sum(p[path] for p in group)
                    for group in groups
                ]
                for path in SHAPES
            ]
        )
    return result


def ids(replicas: int) -> list[np.ndarray]:
    """The rows of each replica's slices, in the order of `shares`."""
    each = PARTS // replicas
    return [
        np.concatenate(IDS[i * each : (i + 1) * each]).astype(np.int64) for i in range(replicas)
    ]


def as_gradients(values, rows) -> list:
    """The values of one replica as it would get them from a tape."""
    return [
        tf.IndexedSlices(value, rows) if path in ROWS else value
        for path, value in zip(SHAPES, values, strict=True)
    ]


class KerasAlgorithm:
    """A stock optimizer in float64 as an oracle's algorithm, for what is made of Keras' own."""

    def __init__(self, make):
        self.make = make

    def __call__(self, g, w, s, lr, t):
        if "optimizer" not in s:
            s["w"] = keras.Variable(w, dtype="float64")
            s["optimizer"] = self.make(lr)
            s["optimizer"].build([s["w"]])
        s["w"].assign(w)
        s["optimizer"].apply([tf.constant(g)], [s["w"]])
        return s["w"].numpy() - w


def oracle_of(sample, option, shapes=None):
    """The whole pipeline in float64 for a cell, before its first step."""
    options = OPTIONS[option]
    if sample.oracle is not None:
        return sample.make_oracle(weights(shapes), RATE, **options)
    stock = KerasAlgorithm(lambda rate: sample.stock(rate, **sample.own()))
    return oracles.Oracle(stock, weights(shapes), RATE, {}, **options)


class Expected(NamedTuple):
    """What is right: weights, averages, what each may be off, and the two counters."""

    weights: dict[str, np.ndarray]
    averages: dict[str, np.ndarray] | None
    allowed: dict[str, np.ndarray]
    iterations: int
    skipped: int


def expected(sample, option, shapes=None) -> Expected:
    """What the oracle says, and what is allowed: for each step one rounding of the weight and
    `rtol` of the largest step.
    """
    oracle = oracle_of(sample, option, shapes)
    largest = dict.fromkeys(oracle.w, 0.0)
    for gradient in sums(option, shapes):
        before = dict(oracle.w)
        oracle.apply(gradient)
        for path, w in oracle.w.items():
            largest[path] = max(largest[path], np.abs(w - before[path]).max(initial=0.0))
    allowed = {
        path: STEPS * (np.finfo("float32").eps * np.abs(w).max() + rtol(sample) * largest[path])
        for path, w in oracle.w.items()
    }
    averages = dict(oracle.averages) if oracle.options.get("use_ema") else None
    return Expected(oracle.w, averages, allowed, oracle.count, oracle.skipped)


def judged(sample, option, found, shapes=None) -> Cell:
    """The cell of what an execution left: (weights by path, averages or None, counters)."""
    right = expected(sample, option, shapes)
    found_weights, averages, counters = found
    if counters != (right.iterations, right.skipped):
        message = f"{sample.name} {option}: counted {counters}, not {right[3:]}"
        raise AssertionError(message)
    assert (averages is None) == (right.averages is None)
    error = 0.0
    for values, truths in ((found_weights, right.weights), (averages, right.averages)):
        for path in values or ():
            off = np.abs(values[path].astype("float64") - truths[path])
            error = max(error, float(np.max(off / right.allowed[path])))
    return Cell(sample.name, option, error)


def left_by(optimizer, model, read=lambda variable: variable.numpy()):
    """What `judged` compares, of an optimizer and its variables by path."""
    found = {path: read(variable) for path, variable in model.items()}
    averages = None
    if optimizer.use_ema:
        read_averages = [read(v) for v in optimizer.synchronized_averages()]
        averages = dict(zip(model, read_averages, strict=True))
    counters = int(read(optimizer.iterations)), int(read(optimizer.skipped_steps))
    return found, averages, counters
