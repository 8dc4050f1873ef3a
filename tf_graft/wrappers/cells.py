"""Variables that are tensors: state that a function passes from step to step, such as in a loop."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import keras
import tensorflow as tf

from tf_graft.core.state.algorithm import Algorithm
from tf_graft.core.state.optimizer_state import OptimizerState
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.types import Scalar


class Cell:
    """Holds a tensor where a variable would stand: an assignment replaces the tensor.

    Args:
        tensor: its first value.
        constraint: of the model's variable, or None.
    """

    def __init__(self, tensor: tf.Tensor, constraint: Callable[[Any], Any] | None = None):
        self.tensor, self.constraint = tensor, constraint
        self.dtype, self.shape = tensor.dtype, tensor.shape

    @property
    def value(self) -> Self:
        """Itself, where a `keras.Variable` has its `tf.Variable`."""
        return self

    def assign(self, value: Any, read_value: bool = True) -> None:
        """Replaces the tensor."""
        self.tensor = tf.cast(value, self.dtype)

    def assign_add(self, delta: Any, read_value: bool = True) -> None:
        """Adds to it."""
        self.tensor += tf.cast(delta, self.dtype)

    def scatter_update(self, rows: tf.IndexedSlices) -> None:
        """Replaces some of its rows."""
        indices = rows.indices[:, tf.newaxis]
        self.tensor = tf.tensor_scatter_nd_update(self.tensor, indices, rows.values)

    def scatter_add(self, rows: tf.IndexedSlices) -> None:
        """Adds to some of its rows."""
        indices = rows.indices[:, tf.newaxis]
        self.tensor = tf.tensor_scatter_nd_add(self.tensor, indices, rows.values)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.tensor, dtype, name=name)


def parameter_of(like: Parameter, values: Mapping[str, tf.Tensor]) -> Parameter:
    """A parameter on cells.

    Args:
        like: gives path and constraint.
        values: the weights under `"weights"`; the engine's state by role; slots as `slots/role`.
    """
    cells = {name: Cell(value) for name, value in values.items()}
    variable = cells.pop("weights")
    variable.constraint = like.variable.constraint
    slots = {n.removeprefix("slots/"): c for n, c in cells.items() if n.startswith("slots/")}
    state = {n: c for n, c in cells.items() if not n.startswith("slots/")}
    return Parameter(variable, like.path, slots, state)


@dataclass(frozen=True)
class CellState(OptimizerState):
    """State on cells.

    Args:
        others: further cells that change with the state.
        counts: variables that schedules read for the number of updates.
    """

    others: Sequence[Cell] = ()
    counts: Sequence[keras.Variable] = ()
    takes_kernels = False
    compiles = False

    def _cells(self) -> list[Cell]:
        each = ((p.variable, *p.slots.values(), *p.state.values()) for p in self.parameters)
        others = (*self.shared.values(), *self.counters.values(), *self.others)
        return [*itertools.chain.from_iterable(each), *others]

    def tensors(self) -> list[tf.Tensor]:
        """The present values of all cells."""
        return [cell.tensor for cell in self._cells()]

    def hold(self, tensors: Sequence[tf.Tensor]) -> None:
        """Goes on from what `tensors` returned."""
        for cell, tensor in zip(self._cells(), tensors, strict=True):
            cell.tensor = tensor

    def branch(
        self, condition: tf.Tensor, then: Callable[[], None], other: Callable[[], None]
    ) -> None:
        """Runs one of two functions that assign to cells."""
        before = self.tensors()

        def from_before(run: Callable[[], None]) -> Callable[[], list[tf.Tensor]]:
            def run_on_cells() -> list[tf.Tensor]:
                self.hold(before)
                run()
                return self.tensors()

            return run_on_cells

        self.hold(tf.cond(condition, from_before(then), from_before(other)))

    def rates(self, algorithm: Algorithm) -> Mapping[str, Scalar]:
        """The learning rates where the count of updates is what its cell holds."""
        step = self.counters["iteration"].tensor
        with keras.StatelessScope(state_mapping=[(count, step) for count in self.counts]):
            return algorithm.rates()

    def release(self, parameter: Parameter) -> None:
        """Nothing: a cell shares no memory."""
