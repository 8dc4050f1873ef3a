"""A small problem, and the runs of an optimizer that guarantees compare."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import ml_dtypes
import numpy as np
import tensorflow as tf

from tf_graft.core.optimizer import Optimizer
from tf_graft.core.pipeline.exchange import Exchange

SHAPES = {"table": (6, 4), "kernel": (4, 4), "bias": (4,), "scale": ()}
TABLE = "table"
STEPS = 4
RATE = 0.125  # for an optimizer whose learning rate has no default
ULPS = 16.0  # the largest distance between two ways to compute a few steps

State = dict[str, np.ndarray]
Step = Mapping[str, Any]  # a gradient by path: an array, or `Rows`
Through = Callable[[Callable[..., None]], Callable[..., None]]


class Rows(NamedTuple):
    """A row-sparse gradient: values of shape [k, ...] for the rows `ids`."""

    values: np.ndarray
    ids: Sequence[int]

    def dense(self, rows: int) -> np.ndarray:
        """Returns the equal dense gradient."""
        result = np.zeros((rows, *self.values.shape[1:]), self.values.dtype)
        np.add.at(result, list(self.ids), self.values)
        return result


class Skipped(Exception):
    """A guarantee that cannot be tried here, with the reason."""


def skip_unless_steps_alone(make: Callable[[], Optimizer]) -> None:
    """Skips guarantees that fail if replicas exchange something other than gradients, as in AGN.

    Raises:
        Skipped: The optimizer's replicas exchange something other than gradients.
    """
    if type(make().engine.exchange) is not Exchange:
        raise Skipped("it does more than propose steps")


def drawn(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Returns numbers of magnitude one, multiples of 1/16: exact in bfloat16 and in sums."""
    random = np.random.default_rng(seed)
    return (np.clip(np.round(random.normal(size=shape) * 16), -48, 48) / 16).astype(np.float32)


def weights() -> State:
    """Returns the first weights, by path."""
    return {path: drawn(shape, seed) for seed, (path, shape) in enumerate(SHAPES.items())}


def gradients(steps: int = STEPS) -> list[Step]:
    """Returns dense gradients for a number of steps."""
    return [
        {path: drawn(shape, 10 + 10 * step + i) for i, (path, shape) in enumerate(SHAPES.items())}
        for step in range(steps)
    ]


def with_rows(*ids: Sequence[int]) -> list[Step]:
    """Returns gradients that touch the given rows of the table, or each set of rows in turn."""
    each = [ids[step % len(ids)] for step in range(STEPS)]
    return [
        {**gradient, TABLE: Rows(drawn((len(rows), *SHAPES[TABLE][1:]), 100 + step), rows)}
        for step, (rows, gradient) in enumerate(zip(each, gradients(), strict=True))
    ]


def dense(steps: Sequence[Step]) -> list[Step]:
    """Returns the equal dense gradients."""
    rows = SHAPES[TABLE][0]
    return [
        {path: g.dense(rows) if isinstance(g, Rows) else g for path, g in step.items()}
        for step in steps
    ]


def eagerly(step: Callable[..., None]) -> Callable[..., None]:
    """Returns the step unchanged."""
    return step


class Trial:
    """An optimizer with variables of its own.

    Args:
        optimizer: An optimizer that is not built.
        dtype: The dtype of the variables.
        values: The variables' first values by path; None for those of `weights`.
    """

    def __init__(self, optimizer: Optimizer, dtype: str = "float32", values: State | None = None):
        self.optimizer = optimizer
        self.dtype = dtype
        start = weights() if values is None else values
        self.model = {
            path: keras.Variable(value, dtype=dtype, name=path) for path, value in start.items()
        }

    def run(self, steps: Sequence[Step], through: Through = eagerly) -> "Trial":
        """Applies the gradients one step after the other."""
        paths = [path for path in self.model if path in steps[0]]
        variables = [self.model[path] for path in paths]
        self.optimizer.build(list(self.model.values()))
        apply = through(lambda gradients: self.optimizer.apply(gradients, variables))
        for step in steps:
            apply([self.tensor(step[path]) for path in paths])
        return self

    def tensor(self, gradient: Any) -> Any:
        """Returns a gradient in the form in which a tape returns it."""
        if isinstance(gradient, Rows):
            values = tf.cast(tf.constant(gradient.values), self.dtype)
            return tf.IndexedSlices(values, tf.constant(list(gradient.ids), tf.int64))
        return tf.cast(tf.constant(gradient), self.dtype)

    def state(self) -> State:
        """Returns every variable by path: the model's, and the optimizer's under `optimizer/`."""
        prefix = f"{self.optimizer.name}/"
        own = {v.path.removeprefix(prefix): v.numpy() for v in self.optimizer.variables}
        return self.weights() | {f"optimizer/{path}": value for path, value in own.items()}

    def weights(self) -> State:
        """Returns the model's variables by path."""
        return {path: variable.numpy() for path, variable in self.model.items()}


def apart(actual: State, expected: State) -> float:
    """Returns the largest difference of two states, in units in the last place.

    The units are those of each variable's largest entry.

    Raises:
        AssertionError: The states have different variables, shapes or dtypes.
    """
    if actual.keys() != expected.keys():
        raise AssertionError(f"the variables differ: {sorted(actual.keys() ^ expected.keys())}")
    return max((_apart(path, actual[path], value) for path, value in expected.items()), default=0.0)


def _apart(path: str, actual: np.ndarray, expected: np.ndarray) -> float:
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        raise AssertionError(
            f"'{path}' is {actual.dtype} of shape {actual.shape}, and was {expected.dtype} of "
            f"shape {expected.shape}"
        )
    if actual.tobytes() == expected.tobytes():
        return 0.0
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    if not (np.isfinite(a) == np.isfinite(b)).all():
        return np.inf
    kind = expected.dtype.name
    eps = 1.0
    if "float" in kind:
        eps = float(ml_dtypes.finfo(kind).eps)  # type: ignore[no-untyped-call]
    finite = np.isfinite(b)
    largest = np.max(np.abs(b[finite]), initial=0.0)
    distance = np.max(np.abs(a[finite] - b[finite]), initial=0.0)
    return float(distance / (eps * largest)) if largest else float(distance and np.inf)


def same(what: str, actual: State, expected: State, ulps: float = ULPS) -> str:
    """Says in words how two states compare.

    Raises:
        AssertionError: The difference is above `ulps`; the message names the worst variable.
    """
    distance = apart(actual, expected)
    if distance <= ulps:
        return f"{what}: {'bit for bit' if not distance else f'within {distance:.2g} ulps'}"
    worst = max(expected, key=lambda path: _apart(path, actual[path], expected[path]))
    raise AssertionError(
        f"{what}: '{worst}' is {distance:.3g} units in the last place off, {ulps:g} are allowed"
    )


def rows_of(state: State, ids: Sequence[int]) -> State:
    """Returns the given rows of the table's weights and slots, without the other variables."""
    count = SHAPES[TABLE][0]
    return {
        path: value[list(ids)]
        for path, value in state.items()
        if TABLE in path.split("/") and value.shape[:1] == (count,)
    }
