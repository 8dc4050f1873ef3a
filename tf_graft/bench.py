"""How long a step takes: ours, stock Keras' and the machine's own floor, measured in one run.

The candidates take turns, so that a machine whose speed drifts is fair to all; figures are medians.
The floor is the bytes a step must move over the bandwidth of an in-place add in the same run.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import tf_graft as tg

IDS = 4096
WIDTH = 64
SMALL_TABLE = 10_000
ZIPF = 1.2

SIX: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9},
    "Adagrad": {},
    "Adadelta": {},
    "RMSprop": {},
    "Adam": {},
    "AdamW": {},
}
ALL_ON = {"use_ema": True, "weight_decay": 0.01, "global_clipnorm": 1.0}


class RowTimes(NamedTuple):
    """Milliseconds a step on a row-sparse gradient."""

    name: str
    options: str
    small: float
    large: float
    stock: float | None
    floor: float


class DenseTimes(NamedTuple):
    """Milliseconds a step on dense gradients, and seconds to the end of the first step."""

    name: str
    unchecked: float
    checked: float
    stock: float
    floor: float
    traced: float
    stock_traced: float


def row_sparse(
    table: int = 1_000_000, repeats: int = 40, stock: Sequence[str] = ("Adam",)
) -> list[RowTimes]:
    """Steps on 4,096 Zipf-distributed ids, on a table of 10,000 rows and on a large one.

    Args:
        table: rows of the large table, of width 64, float32.
        repeats: steps to take the median of.
        stock: optimizers of stock Keras to measure on the large table too; they take about a
            second a step.
    """
    bandwidth = _bandwidth()
    result = []
    for options in ({}, ALL_ON):
        for name, arguments in SIX.items():
            ours = {
                rows: _row_step(getattr(tg, name)(0.01, **arguments, **options), rows)
                for rows in (SMALL_TABLE, table)
            }
            times = _medians(ours, repeats)
            keras_time = None
            if name in stock and not options:
                step = _row_step(getattr(keras.optimizers, name)(0.01, **arguments), table)
                keras_time = _medians({0: step}, 3)[0]
            slots = len(getattr(tg, name)(**arguments).slots())
            moved = _touched() * WIDTH * 4 * (1 + 2 * (1 + slots))
            result.append(
                RowTimes(
                    name,
                    ", ".join(options) or "-",
                    times[SMALL_TABLE],
                    times[table],
                    keras_time,
                    moved / bandwidth * 1e3,
                )
            )
    return result


def dense(repeats: int = 30, names: Sequence[str] = ("SGD", "Adagrad", "Adam")) -> list[DenseTimes]:
    """Steps on the 214 tensors of ResNet-50, whose gradients are made inside the function.

    Args:
        repeats: steps to take the median of.
        names: which optimizers.
    """
    shapes = [v.shape for v in keras.applications.ResNet50(weights=None).trainable_variables]
    weights = [tf.Variable(tf.random.normal(shape) * 0.01) for shape in shapes]
    targets = [tf.Variable(tf.random.normal(shape) * 0.01) for shape in shapes]
    size = sum(int(np.prod(shape)) for shape in shapes)
    bandwidth = _bandwidth()
    _dense_step(keras.optimizers.SGD(1e-3), weights, targets)()  # a process' first trace costs more
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


def _row_step(optimizer: Any, rows: int) -> Callable[[], None]:
    table = tf.Variable(tf.zeros([rows, WIDTH]))
    optimizer.build([table])
    batches = tf.constant(_ids() % rows)
    values = tf.random.normal([IDS, WIDTH]) * 0.01
    turn = tf.Variable(0)

    @tf.function
    def step() -> None:
        ids = batches[turn.assign_add(1) % len(batches)]
        optimizer.apply([tf.IndexedSlices(values, ids, [rows, WIDTH])], [table])

    return step


def _ids() -> np.ndarray:
    return np.random.default_rng(0).zipf(ZIPF, size=(10, IDS))


def _touched() -> float:
    return statistics.mean(len(np.unique(batch % SMALL_TABLE)) for batch in _ids())


def _dense_step(optimizer: Any, weights: list[Any], targets: list[Any]) -> Callable[[], None]:
    optimizer.build(weights)

    @tf.function
    def step() -> None:
        gradients, before = [], []
        for weight, target in zip(reversed(weights), reversed(targets), strict=True):
            with tf.control_dependencies(before):  # one after another, as in backpropagation
                gradients.append(tf.convert_to_tensor(weight) - tf.convert_to_tensor(target))
            before = gradients[-1:]
        optimizer.apply(gradients[::-1], weights)

    return step


def _medians(steps: dict[Any, Callable[[], None]], repeats: int) -> dict[Any, float]:
    """Milliseconds of each step, the median over turns."""
    for step in steps.values():
        for _ in range(min(repeats, 10)):
            step()
    times: dict[Any, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) * 1e3 for name, taken in times.items()}


def _bandwidth(size: int = 25_000_000) -> float:
    """Bytes a second of `a += b` on float32: two reads and a write an entry."""
    a, b = tf.Variable(tf.zeros([size])), tf.Variable(tf.ones([size]))

    @tf.function
    def add() -> None:
        a.assign_add(b)

    return 12 * size / (_medians({0: add}, 10)[0] / 1e3)
