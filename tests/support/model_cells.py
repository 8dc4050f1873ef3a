"""One optimizer with one option in one execution of a compiled Keras model, against the oracle.

The model is as small as one can be that has what models have: an embedding of a few ids for each
example, a normalization, a dense layer and a layer of one's own with a scalar weight. The kernel's
gradient is far from singular, as the steps of SOAP would not be defined otherwise. What is right is
computed in float64 NumPy: the model's gradient at the oracle's own weights, by hand, and the
oracle's pipeline on it. Each step's examples come in four parts, which N replicas share among
themselves. Ids repeat within an example, a part and between parts. Every part touches the same rows
of the table, so that `sparse="lazy"` does with these rows, for a worker alone too, what a dense
gradient would do with a table of them alone; the other rows must not change by a bit. (On a mesh
averages of all rows are taken, which costs these a rounding.)
"""

import functools
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from support import cells, model_rows, samples

TABLE = "table/embeddings"
TOUCHED = np.array([0, 1, 3, 4])  # of its rows
ALL = np.arange(6)
EXAMPLES = 8  # of a step: two for each part
IDS = 3  # of an example
VARIANCE = 1e-3  # added by the normalization
# How far a gradient that is computed in float32 may be off, entry by entry: as a share of the
# largest sum of magnitudes over the examples. A third of it is measured.
NOISE = 1e-6
DRAWS = 6


def shapes_of(shards=1) -> dict[str, tuple[int, ...]]:
    """The shapes of the model's variables, by path; a shard of the kernel is square."""
    width = 4 * shards
    return {
        TABLE: (len(ALL), width),
        "norm/gamma": (width,),
        "norm/beta": (width,),
        "dense/kernel": (width, 4),
        "dense/bias": (4,),
        "scale/scale": (),
    }


SHAPES = shapes_of()


class Batch(NamedTuple):
    """The data of one step: ids, targets, and a weight for each example."""

    ids: np.ndarray
    targets: np.ndarray
    weights: np.ndarray


@functools.cache
def batches(option: str) -> list[Batch]:
    """A batch for each step. Where a gradient is not to be finite, one weight is infinite.

    Weights are of magnitude 1/2; with larger ones SGD with momentum diverges.
    """
    random = np.random.default_rng(4)  # with most others, the kernel's gradient is nearly singular
    parts = cells.PARTS * cells.STEPS
    every = [random.permutation([0, 1, 2, 3, *random.integers(0, 4, 2)]) for _ in range(parts)]
    ids = TOUCHED[np.reshape(every, [cells.STEPS, EXAMPLES, IDS])]
    targets = random.normal(size=(cells.STEPS, EXAMPLES, 4)).astype("float32")
    weights = random.integers(1, 4, (cells.STEPS, EXAMPLES)).astype("float32") / 4
    if option == "not_finite":
        weights[1, -1] = np.inf  # of the last part: only the last replica sees it
    return [Batch(*step) for step in zip(ids, targets, weights, strict=True)]


def data(option: str) -> Batch:
    """The batches of all steps, one after the other, as `fit` takes them."""
    return Batch(*(np.concatenate(column) for column in zip(*batches(option), strict=True)))


@keras.saving.register_keras_serializable(package="tests")
class Scale(keras.layers.Layer):
    """A layer of one's own: a factor."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), name="scale")

    def call(self, x):
        return self.scale * x


def weights(shards=1) -> dict[str, np.ndarray]:
    """What every model begins with, by path."""
    return samples.weights(shapes_of(shards))


def layers(dtype="float32", shards=1) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """The model's input and output, its weights set."""
    ids, table = keras.Input((IDS,), dtype="int64"), shapes_of(shards)[TABLE]
    embedded = keras.layers.Embedding(*table, name="table", dtype=dtype)(ids)
    x = keras.ops.mean(embedded, axis=1)
    x = keras.layers.LayerNormalization(epsilon=VARIANCE, name="norm", dtype=dtype)(x)
    x = keras.layers.Dense(4, name="dense", dtype=dtype)(x)
    out = Scale(name="scale", dtype=dtype)(x)
    keras.Model(ids, out).set_weights(list(weights(shards).values()))
    return ids, out


def model(dtype="float32", shards=1) -> keras.Model:
    return keras.Model(*layers(dtype, shards))


def start(row, option: str, shards: int) -> dict[str, np.ndarray]:
    """What an oracle begins with."""
    return picked(weights(shards), rows_given(row, option), shards)


def picked(values: dict[str, np.ndarray], rows: np.ndarray, shards: int) -> dict[str, np.ndarray]:
    """Some rows of the table, and all else, divided among servers."""
    return cells.split(values | {TABLE: values[TABLE][rows]}, shards)


def rows_of(row, option: str) -> np.ndarray:
    """The rows of the table that change, which have to be right."""
    return ALL if cells.changes_all(row, option) else TOUCHED


def rows_given(row, option: str) -> np.ndarray:
    """The rows of the table that an oracle has."""
    return ALL if row.of_entries else rows_of(row, option)


LOSS = keras.losses.MeanSquaredError  # times the examples' weights, divided by their number


def each_examples(w, batch: Batch, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The gradient of each example's part of the loss, in float64: forward, then backward.

    The table has but the rows given.
    """
    counts = (batch.ids[:, :, None] == rows).mean(1)
    x = counts @ w[TABLE]
    centered = x - x.mean(-1, keepdims=True)
    r = 1 / np.sqrt((centered**2).mean(-1, keepdims=True) + VARIANCE)
    n = centered * r
    h = n * w["norm/gamma"] + w["norm/beta"]
    z = h @ w["dense/kernel"] + w["dense/bias"]
    error = w["scale/scale"] * z - batch.targets.astype("float64")

    d = 2 * error * batch.weights[:, None].astype("float64") / error.size
    d_z = d * w["scale/scale"]
    d_h = d_z @ w["dense/kernel"].T
    d_n = d_h * w["norm/gamma"]
    d_x = r * (d_n - d_n.mean(-1, keepdims=True) - n * (d_n * n).mean(-1, keepdims=True))
    return {
        TABLE: counts[:, :, None] * d_x[:, None, :],
        "norm/gamma": d_h * n,
        "norm/beta": d_h,
        "dense/kernel": h[:, :, None] * d_z[:, None, :],
        "dense/bias": d_z,
        "scale/scale": (d * z).sum(-1),
    }


class Problem(NamedTuple):
    """Where a cell is computed, as far as it matters for what is right.

    Attributes:
        replicas: which share a batch, one after the other.
        own: the replica whose copies are read, where they differ.
        shards: servers that a variable is divided among.
        rounds: whether a worker of parameter servers takes a round at a time.
        mesh: whether a table is averaged as a whole, so that the rows that no id touches are, too.
    """

    replicas: int = 1
    own: int = 0
    shards: int = 1
    rounds: bool = False
    mesh: bool = False


def shares(row, oracle, number: int, option: str, problem: Problem, noise) -> list[dict]:
    """Each replica's share of a step's gradient, at the oracle's weights."""
    batch, result = batches(option)[number], []
    shapes = shapes_of(problem.shards)
    each = EXAMPLES // problem.replicas
    for replica, w in enumerate(oracle.weights_of(problem.replicas)):
        with np.errstate(invalid="ignore", over="ignore"):
            found = each_examples(cells.joined(w, shapes), batch, rows_given(row, option))
        mine = slice(replica * each, (replica + 1) * each)
        found = {path: noise(values[mine]) for path, values in found.items()}
        result.append(cells.split(found, problem.shards))
    return result


def exact(values: np.ndarray) -> np.ndarray:
    """The sum over examples."""
    return values.sum(0)


def noisy(random) -> callable:
    """The sum over examples, each entry off by all that float32 may be off, if not all are zero."""

    def noise(values):
        signs = random.choice([-1.0, 1.0], values.shape[1:])
        sizes = np.abs(values).sum(0)
        largest = sizes.max() if np.isfinite(sizes).all() else 0.0
        return exact(values) + NOISE * signs * largest * (sizes != 0)

    return noise


def followed(row, option, problem: Problem, noise=exact):
    """The oracle after the last step; and the largest step of each variable before."""
    oracle = row.oracle(start(row, option, problem.shards), option, problem)
    largest = dict.fromkeys(oracle.w, 0.0)
    for number in range(cells.STEPS):
        before = dict(oracle.w)
        oracle.apply(shares(row, oracle, number, option, problem, noise))
        for path, w in oracle.w.items():
            largest[path] = max(largest[path], np.abs(w - before[path]).max())
    return oracle, largest


@functools.cache
def expected(name: str, option: str, problem: Problem) -> cells.Expected:
    """What is right after the last step, and after `fit` has ended.

    Allowed is, beside what `cells.py` allows, what an error of `NOISE` in every gradient makes of
    the weights by this very optimizer: twice the largest of a few draws.
    """
    row = model_rows.ROWS[name]
    oracle, largest = followed(row, option, problem)
    before, after = oracle.finished()
    spread = dict.fromkeys(before, 0.0)
    for seed in range(DRAWS):
        other, _ = followed(row, option, problem, noisy(np.random.default_rng(seed)))
        for values, truths in zip(other.finished(), (before, after), strict=True):
            for path, value in values.items():
                spread[path] = max(spread[path], np.abs(value - truths[path]).max())
    allowed = {
        path: cells.STEPS * (np.finfo("float32").eps * np.abs(w).max() + row.rtol * largest[path])
        + 2 * spread[path]
        for path, w in before.items()
    }
    before, after = (judged_rows(row, option, values, problem) for values in (before, after))
    return cells.Expected(before, after, allowed, oracle.count, oracle.skipped, oracle.exact())


def judged_rows(row, option: str, values, problem: Problem) -> dict[str, np.ndarray]:
    """What an oracle left, of the rows that have to be right."""
    rows = rows_of(row, option)
    if len(rows) == len(rows_given(row, option)):
        return values
    return picked(cells.joined(values, shapes_of(problem.shards)), rows, problem.shards)


def judged(name: str, option: str, found: cells.Found, problem: Problem) -> cells.Cell:
    """The cell of what was found, by the paths of the model's variables, shards in one piece."""
    row = model_rows.ROWS[name]
    rows, first = rows_of(row, option), weights(problem.shards)[TABLE]
    idle = np.setdiff1d(np.arange(len(first)), rows)
    averaged = problem.mesh and "use_ema" in cells.OPTIONS[option]
    roundings = cells.STEPS * np.finfo("float32").eps if averaged else 0.0

    def seen(values):
        table = values[TABLE]
        np.testing.assert_allclose(
            *(table[idle], first[idle], roundings, 0), err_msg="a row that no id touches"
        )
        return picked(values, rows, problem.shards)

    found = found._replace(weights=seen(found.weights), averages=seen(found.averages))
    return cells.compared(name, option, found, expected(name, option, problem))


def sharpness(name: str, option: str, problem: Problem) -> float:
    """What is allowed, as a share of how far the variable moved: the largest of all variables."""
    right = expected(name, option, problem)
    first = picked(weights(problem.shards), rows_of(model_rows.ROWS[name], option), problem.shards)
    return max(
        right.allowed[path] / np.abs(w - first[path]).max() for path, w in right.weights.items()
    )


def raw(variable) -> tf.Variable:
    return variable.value if isinstance(variable, keras.Variable) else variable
