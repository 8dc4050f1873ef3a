"""Benchmarks of a step: ours, stock Keras', and the machine's own floor, measured in one run.

The candidates take turns, so that a drift of the machine's speed affects all alike; figures are
medians. The floor of a dense step: the bytes it must move, divided by the bandwidth of an in-place
add.
"""

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import keras
import numpy as np
import tensorflow as tf

import tf_graft as tg
from tf_graft.core.types import Config, OptimizerLike, VariableLike

T = TypeVar("T")
Step: TypeAlias = Callable[[], object]

IDS = 4096  # of a batch
IDS_OF_AN_EXAMPLE = 8
WIDTH = 64
SMALL_TABLE = 10_000
ZIPF = 1.2

SIX: dict[str, Config] = {
    "SGD": {"momentum": 0.9},
    "Adagrad": {},
    "Adadelta": {},
    "RMSprop": {},
    "Adam": {},
    "AdamW": {},
}
EVERY: dict[str, Callable[..., keras.optimizers.Optimizer]] = {
    **{name: functools.partial(getattr(tg, name), 0.01, **given) for name, given in SIX.items()},
    "NovoGrad": functools.partial(tg.NovoGrad, 0.01),
    "LARS": functools.partial(tg.LARS, 0.01),
    "LAMB": functools.partial(tg.LAMB, 0.01),
    "LARC of SGD": lambda **options: tg.LARC(tg.SGD(0.01, momentum=0.9), **options),
    "AdaGraft of Adam and SGD": lambda **options: tg.AdaGraft(
        tg.Adam(0.01), tg.SGD(0.01, momentum=0.9), **options
    ),
    "wrap of Nadam": lambda **options: tg.wrap(keras.optimizers.Nadam(0.01), **options),
    "MixedPrecision of Adam": lambda **options: tg.MixedPrecision(
        tg.Adam(0.01), "backoff", **options
    ),
    "AGN of Adam": lambda **options: tg.AGN(tg.Adam(0.01), **options),
}
ALL_ON: Config = {
    "use_ema": True,
    "weight_decay": 0.01,
    "global_clipnorm": 1.0,
    "gradient_accumulation_steps": 2,
}
NOT_OF_AGN = ("use_ema", "weight_decay")  # arguments of its two optimizers


class RowTimes(NamedTuple):
    """Milliseconds per update through an `Embedding`."""

    name: str
    options: str
    small: float
    large: float
    stock: float | None


class DenseTimes(NamedTuple):
    """Milliseconds per step on dense gradients, and seconds to the end of the first step."""

    name: str
    unchecked: float
    checked: float
    stock: float
    floor: float
    traced: float
    stock_traced: float


def row_sparse(
    table: int = 1_000_000,
    repeats: int = 40,
    stock: Sequence[str] = ("Adam",),
    names: Sequence[str] = tuple(EVERY),
) -> list[RowTimes]:
    """Measures updates of `fit` through an `Embedding`, on 4,096 Zipf-distributed ids.

    Args:
        table: the rows of the large table, of width 64, float32; the small one has 10,000.
        repeats: the number of updates to take the median of.
        stock: the optimizers of stock Keras to measure on the large table too; an update of one
            takes about a second.
        names: the optimizers of `EVERY` to measure.
    """
    result = []
    none: Config = {}
    for name, options in itertools.product(names, (none, ALL_ON)):
        given = {k: v for k, v in options.items() if "AGN" not in name or k not in NOT_OF_AGN}
        sizes = (SMALL_TABLE, table)
        times = _medians({rows: _fit_step(EVERY[name](**given), rows) for rows in sizes}, repeats)
        keras_time = None
        if name in stock and not options:
            step = _fit_step(getattr(keras.optimizers, name)(0.01, **SIX[name]), table)
            keras_time = _medians({0: step}, 3)[0]
        listed = ", ".join(given) or "-"
        result.append(RowTimes(name, listed, times[SMALL_TABLE], times[table], keras_time))
    return result


def dense(repeats: int = 30, names: Sequence[str] = ("SGD", "Adagrad", "Adam")) -> list[DenseTimes]:
    """Measures steps on the 214 tensors of ResNet-50, with gradients computed in the function.

    Args:
        repeats: the number of steps to take the median of.
        names: the optimizers to measure.
    """
    shapes = [v.shape for v in keras.applications.ResNet50(weights=None).trainable_variables]
    weights = [tf.Variable(tf.random.normal(shape) * 0.01) for shape in shapes]
    targets = [tf.Variable(tf.random.normal(shape) * 0.01) for shape in shapes]
    size = sum(int(np.prod(shape)) for shape in shapes)
    bandwidth = _bandwidth()
    _dense_step(keras.optimizers.SGD(1e-3), weights, targets)()  # the first trace costs more
    result = []
    for name in names:
        arguments = SIX[name]
        candidates = {
            "unchecked": getattr(tg, name)(1e-3, **arguments, nonfinite="apply"),
            "checked": getattr(tg, name)(1e-3, **arguments),
            "stock": getattr(keras.optimizers, name)(1e-3, **arguments),
        }
        steps, traced = {}, {}
        for which, optimizer in candidates.items():
            steps[which] = _dense_step(optimizer, weights, targets)
            start = time.perf_counter()
            steps[which]()
            traced[which] = time.perf_counter() - start
        times = _medians(steps, repeats)
        slots = len(candidates["unchecked"].slots())
        floor = size * 4 * (1 + 2 * (1 + slots)) / bandwidth * 1e3
        result.append(
            DenseTimes(
                name, **times, floor=floor, traced=traced["unchecked"], stock_traced=traced["stock"]
            )
        )
    return result


def _fit_step(optimizer: keras.optimizers.Optimizer, rows: int) -> Step:
    """Returns what `fit` calls to update a small model with a table, once per micro-step."""
    model = keras.Sequential(
        [
            keras.Input((IDS_OF_AN_EXAMPLE,), dtype="int64"),
            keras.layers.Embedding(rows, WIDTH),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer, "mse")
    model.make_train_function()
    ids = (_ids() % rows).reshape([-1, IDS_OF_AN_EXAMPLE])
    examples = tf.data.Dataset.from_tensor_slices((ids, np.ones([len(ids), 1], "float32")))
    batches = iter(examples.batch(IDS // IDS_OF_AN_EXAMPLE).cache().repeat().prefetch(2))

    def step() -> None:
        for _ in range(optimizer.gradient_accumulation_steps or 1):
            model.train_function(batches)

    return step


def _ids() -> np.ndarray:
    return np.random.default_rng(0).zipf(ZIPF, size=(10, IDS))


def _dense_step(
    optimizer: OptimizerLike, weights: list[VariableLike], targets: list[VariableLike]
) -> Step:
    optimizer.build(weights)

    @tf.function
    def step() -> None:
        gradients: list[tf.Tensor] = []
        before: list[tf.Tensor] = []
        for weight, target in zip(reversed(weights), reversed(targets), strict=True):
            with tf.control_dependencies(before):  # one after the other, as in backpropagation
                gradients.append(tf.convert_to_tensor(weight) - tf.convert_to_tensor(target))
            before = gradients[-1:]
        optimizer.apply(gradients[::-1], weights)

    return step


def _medians(steps: Mapping[T, Step], repeats: int) -> dict[T, float]:
    """Measures the milliseconds of each step, the median over turns."""
    for step in steps.values():
        for _ in range(min(repeats, 10)):
            step()
    times: dict[T, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) * 1e3 for name, taken in times.items()}


def _bandwidth(size: int = 25_000_000) -> float:
    """Measures the bytes per second of `a += b` on float32: two reads and a write per entry."""
    a, b = tf.Variable(tf.zeros([size])), tf.Variable(tf.ones([size]))

    @tf.function
    def add() -> None:
        a.assign_add(b)

    return 12 * size / (_medians({0: add}, 10)[0] / 1e3)
