"""One optimizer with one option in one execution, held against the float64 oracle.

A cell makes its variables where the execution has them, applies a few gradients there and reads
the weights back. The gradients of a step come in four parts, which N replicas share among
themselves, so what is right is the same for every execution. Each part is a multiple of 1/64: sums
are exact in any order. The table's are row-sparse, with rows that repeat within a part and between
parts; the same four of its six rows are touched in every step. With `sparse="lazy"` they have to
equal what a dense gradient makes of a table of them alone, and the others must not change by a bit;
with `sparse="exact"` all of it has to equal the dense gradient.
"""

import functools
import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from support import oracles, samples

SHAPES = {"table": (6, 4), "kernel": (4, 4), "bias": (4,), "scale": ()}
# On a mesh: a model with variables in four layouts. TensorFlow does not gather from rows.
ON_MESH = {
    "replicated/table": (6, 4),
    "columns/table": (6, 4),
    **{f"{layout}/kernel": (4, 4) for layout in ("replicated", "rows", "columns", "both")},
    **{f"{layout}/bias": (4,) for layout in ("replicated", "rows")},
    "replicated/scale": (),
}
STEPS = 4
PARTS = 4
TOUCHED = np.array([0, 1, 3, 4])  # of the table's rows
IDS = ([0, 4], [1, 1], [3, 4], [0, 3])  # of each part's slices
RATE = float(np.float32(samples.RATE))
# A non-finite number in one part: only the last replica sees it.
# What is `inside` is given to the optimizers in a wrapper.
DECAY, EXCLUDED = {"weight_decay": 0.2}, {"exclude_from_weight_decay": ["bias$"]}
OPTIONS = samples.OPTIONS | {
    "not_finite": {},
    "decay_inside": {"inside": DECAY},
    "exact": {"sparse": "exact", **DECAY, **EXCLUDED},
    "exact_decay_inside": {"sparse": "exact", "inside": DECAY},
    "exact_excluded_outside": {"sparse": "exact", **EXCLUDED, "inside": DECAY},
    "exact_excluded_inside": {"sparse": "exact", **DECAY, "inside": EXCLUDED},
}
# What is allowed beside the rounding of the weights, relative to the largest step, where it is not
# the sample's `rtol`: for Keras' optimizers in float32 against the same in float64.
RTOL = {
    "wrapped_muon": 2e-5,  # five products of matrices one after the other
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


def row_sparse(path: str) -> bool:
    """Whether the gradient of that variable is given as slices."""
    return path.endswith("table")


def exact(option) -> bool:
    """Whether a row-sparse gradient is to act as the equal dense one."""
    return OPTIONS[option].get("sparse") == "exact"


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
        shape = (2, *shape[1:]) if row_sparse(path) else shape
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
        path = next(path for path in reversed(shapes) if not row_sparse(path))
        steps[1][-1][path] = np.full_like(steps[1][-1][path], np.inf)
    return steps


def dense(part, number, shapes) -> dict[str, np.ndarray]:
    """A part with the slices as the dense gradient."""
    result = {path: value.astype("float64") for path, value in part.items()}
    for path in result:
        if row_sparse(path):
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


def split(values: dict[str, np.ndarray], shards: int) -> dict[str, np.ndarray]:
    """Values by path, divided by rows among so many servers; a scalar stays whole."""
    if shards == 1:
        return values
    return {
        f"part_{number}/{path}" if np.ndim(value) else path: part
        for path, value in values.items()
        for number, part in enumerate(np.split(value, shards) if np.ndim(value) else [value])
    }


def joined(values: dict[str, np.ndarray], shapes) -> dict[str, np.ndarray]:
    """What was divided among servers, whole."""
    parts = {path: [v for name, v in values.items() if name.endswith(path)] for path in shapes}
    return {path: np.concatenate(v) if len(v) > 1 else v[0] for path, v in parts.items()}


def shares(option, replicas: int, shapes=None) -> list[list[list[np.ndarray]]]:
    """For each step, for each variable (its slices one after the other), each replica's values."""
    shapes = SHAPES if shapes is None else shapes
    each = PARTS // replicas
    result = []
    for step in parts(option, shapes):
        groups = [step[i * each : (i + 1) * each] for i in range(replicas)]
        result.append(
            [
                [
                    np.concatenate([p[path] for p in group])
                    if row_sparse(path)
                    else sum(p[path] for p in group)
                    for group in groups
                ]
                for path in shapes
            ]
        )
    return result


def ids(replicas: int) -> list[np.ndarray]:
    """The rows of each replica's slices, in the order of `shares`."""
    each = PARTS // replicas
    return [
        np.concatenate(IDS[i * each : (i + 1) * each]).astype(np.int64) for i in range(replicas)
    ]


def as_gradients(values, rows, shapes=None) -> list:
    """The values of one replica as it would get them from a tape."""
    shapes = SHAPES if shapes is None else shapes
    return [
        tf.IndexedSlices(value, rows) if row_sparse(path) else value
        for path, value in zip(shapes, values, strict=True)
    ]


def muon(g, w, s, lr, t):
    """Keras' own cannot do float64. Matrices by Newton and Schulz, the others by Adam."""
    if g.ndim != 2:
        return oracles.adam(g, w, s, lr, t)
    m = s["m"] = s.get("m", 0.0) * 0.95 + g
    x = g + 0.95 * m
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return -lr * x * np.sqrt(max(x.shape)) * 0.2


def nadam(g, w, s, lr, t):
    """Dozat's, with the momentum that Keras warms up. Keras' own in float64 is slow."""

    def u(t):
        return 0.9 * (1 - 0.5 * 0.96**t)

    m = s["m"] = s.get("m", 0.0) * 0.9 + 0.1 * g
    v = s["v"] = s.get("v", 0.0) * 0.999 + 0.001 * g**2
    product = s["u"] = s.get("u", 1.0) * u(t)
    m = u(t + 1) * m / (1 - product * u(t + 1)) + (1 - u(t)) * g / (1 - product)
    return -lr * m / (np.sqrt(v / (1 - 0.999**t)) + 1e-7)


def ftrl(g, w, s, lr, t):
    """McMahan's, without regularization."""
    before = s.get("n", np.full_like(g, 0.1))
    n = s["n"] = before + g**2
    s["z"] = s.get("z", 0.0) + g - (np.sqrt(n) - np.sqrt(before)) / lr * w
    return -lr * s["z"] / np.sqrt(n) - w


def adamax(g, w, s, lr, t):
    m = s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g
    u = s["u"] = np.maximum(0.999 * s.get("u", 0.0), np.abs(g))
    return -lr / (1 - 0.9**t) * m / (u + 1e-7)


ALGORITHMS = {
    "wrapped_adamax": adamax,
    "wrapped_ftrl": ftrl,
    "wrapped_muon": muon,
    "wrapped_nadam": nadam,
}

# Why an option may be refused: what every refusal in the matrix has to match.
REFUSALS = (
    r"it already has weight_decay=[\d.]+; give weight_decay to it only\.",
    r"^MixedPrecision\(optimizer=\w+\(loss_scale_factor=10\.0\)\): the loss would be scaled twice;",
    r"^(Scaled)?AGN\.round: a round on a worker of parameter servers keeps no loss scale",
    # Of shards on parameter servers: rates are for whole variables, and a worker's round, too.
    r"^LayerwiseRates\(rates=\.\.\.\): the rates are for the variables of another model: .*/part_0",
    r"^AGN\(weight_decay=0\.2\): each of the two optimizers has its own; give it to optimizer",
    r"^(Scaled)?AGN\.build: '.*/part_0' is no keras\.Variable, which it must be on",
)


def known_refusal(reason: str) -> bool:
    return any(re.search(pattern, reason) for pattern in REFUSALS)


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


def oracle_of(sample, options, start):
    """The whole pipeline in float64 for a cell, before its first step."""
    if sample.oracle is not None:
        return sample.make_oracle(start, RATE, **options)
    algorithm = ALGORITHMS.get(sample.name) or KerasAlgorithm(
        lambda rate: sample.stock(rate, **sample.own())
    )
    given = {name: value for name, value in options.items() if name != "inside"}
    return oracles.Oracle(algorithm, start, RATE, {}, **given | options.get("inside", {}))


class Problem(NamedTuple):
    """Where a cell starts and which gradients it gets, from which follows what is right.

    Averages of whole tables are rounded where no gradient touches a row, too.
    """

    shapes: dict[str, tuple[int, ...]] = SHAPES
    shards: int = 1
    averages_whole_tables: bool = False


USUAL = Problem()


class Expected(NamedTuple):
    """What is right: weights, averages, what each may be off, the two counters, and numbers that
    have to be right exactly.
    """

    weights: dict[str, np.ndarray]
    averages: dict[str, np.ndarray] | None
    allowed: dict[str, np.ndarray]
    iterations: int
    skipped: int
    exact: dict[str, float] = {}  # noqa: RUF012 - never written to


def expected(sample, option, problem: Problem) -> Expected:
    """What the oracle says, and what is allowed: for each step one rounding of the weights and
    `rtol` of the largest step.
    """
    given = sample.of_entries or changes_all(sample, option)
    start = seen(weights(problem.shapes), given)
    oracle = oracle_of(sample, OPTIONS[option], split(start, problem.shards))
    largest = dict.fromkeys(oracle.w, 0.0)
    for gradient in sums(option, problem.shapes):
        before = dict(oracle.w)
        oracle.apply(split(seen(gradient, given), problem.shards))
        for path, w in oracle.w.items():
            largest[path] = max(largest[path], np.abs(w - before[path]).max(initial=0.0))
    allowed = {
        path: STEPS * (np.finfo("float32").eps * np.abs(w).max() + rtol(sample) * largest[path])
        for path, w in oracle.w.items()
    }

    def right(values):
        values = compared_of(sample, joined(values, problem.shapes))
        return split(seen(values, changes_all(sample, option) or not given), problem.shards)

    averages = right(oracle.averages) if oracle.options.get("use_ema") else None
    return Expected(right(oracle.w), averages, allowed, oracle.count, oracle.skipped)


def changes_all(sample, option) -> bool:
    """Whether rows of a table that no gradient touches change, too."""
    return sample.whole or exact(option)


def compared_of(sample, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What is compared of values by path: all, or without a table that is not of full rank."""
    rank_counts = sample.of_eigenvectors
    return {p: value for p, value in values.items() if not (rank_counts and row_sparse(p))}


def seen(values: dict[str, np.ndarray], whole: bool) -> dict[str, np.ndarray]:
    """Values by path; of tables the touched rows, or all."""
    return {
        path: value if whole or not row_sparse(path) else value[TOUCHED]
        for path, value in values.items()
    }


class Found(NamedTuple):
    """What an execution left: weights and averages by path, two counters, other numbers, and state.

    The state is every variable of the optimizer, in the order of the paths.
    """

    weights: dict[str, np.ndarray]
    averages: dict[str, np.ndarray] | None
    iterations: int
    skipped: int
    state: Sequence[np.ndarray] = ()
    exact: dict[str, float] = {}  # noqa: RUF012 - never written to


def judged(sample, option, found: Found, problem: Problem = USUAL, only: str = "") -> Cell:
    """The cell of what was found; of the variables whose path begins with `only`."""
    first = weights(problem.shapes)
    rounded = problem.averages_whole_tables and found.averages is not None
    roundings = STEPS * np.finfo("float32").eps if rounded else 0.0

    def ready(values):
        values = joined(values, problem.shapes)
        for path in filter(row_sparse, [] if changes_all(sample, option) else values):
            idle = np.setdiff1d(np.arange(len(first[path])), TOUCHED)
            np.testing.assert_allclose(
                *(values[path][idle], first[path][idle], roundings, 0),
                err_msg=f"{sample.name}, {option}: a row that no id touches",
            )
        values = compared_of(sample, values)
        return split(seen(values, changes_all(sample, option)), problem.shards)

    averages = None if found.averages is None else ready(found.averages)
    found = found._replace(weights=ready(found.weights), averages=averages)
    return compared(sample.name, option, found, expected(sample, option, problem), only)


def compared(name: str, option: str, found: Found, right: Expected, only: str = "") -> Cell:
    """The cell of what was found, against what is right."""
    if (found.iterations, found.skipped) != (right.iterations, right.skipped):
        counted = f"{found.iterations} updates and {found.skipped} skipped"
        raise AssertionError(
            f"{name}, {option}: it counts {counted}, right are {right.iterations} and "
            f"{right.skipped}"
        )
    assert found.exact == right.exact, f"{name}, {option}: {found.exact}, right is {right.exact}"
    assert (found.averages is None) == (right.averages is None)
    error = 0.0
    for values, truths in ((found.weights, right.weights), (found.averages, right.averages)):
        assert (values or {}).keys() == (truths or {}).keys()
        for path in values or ():
            if path.startswith(only):
                off = np.abs(values[path].astype("float64") - truths[path])
                error = max(error, float(np.max(off / right.allowed[path])))
    return Cell(name, option, error)


def left_by(optimizer, model, read=lambda variable: variable.numpy()) -> Found:
    """What an optimizer has left of its variables, which are given by path."""
    found = {path: read(variable) for path, variable in model.items()}
    averages = None
    if optimizer.use_ema:
        read_averages = [read(v) for v in optimizer.synchronized_averages()]
        averages = dict(zip(model, read_averages, strict=True))
    iterations, skipped = (int(read(v)) for v in (optimizer.iterations, optimizer.skipped_steps))
    state = [read(v) for v in sorted(optimizer.variables, key=lambda variable: variable.path)]
    return Found(found, averages, iterations, skipped, state)


def digest(*values: np.ndarray) -> str:
    """Of arrays, bit for bit."""
    found = hashlib.sha256()
    for value in values:
        found.update(np.ascontiguousarray(value).tobytes())
    return found.hexdigest()
