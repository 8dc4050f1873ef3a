"""Variables that are tensors: state that a function passes from step to step, such as in a loop."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import keras
import tensorflow as tf

from tf_graft.core.state.optimizer_state import OptimizerState
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.rule import Rule
from tf_graft.core.types import Scalar


class Cell:
    """Holds a tensor in place of a variable: an assignment replaces the tensor.

    Args:
        tensor: its first value.
        constraint: of the model's variable, or None.
    """

    device = ""  # of the function

    def __init__(self, tensor: tf.Tensor, constraint: Callable[[Any], Any] | None = None):
        self.tensor, self.constraint = tensor, constraint
        self.dtype, self.shape = tensor.dtype, tensor.shape

    @property
    def value(self) -> Self:
        """The cell itself; for a `keras.Variable` it would be the `tf.Variable`."""
        return self

    def assign(self, value: Any, read_value: bool = True) -> None:
        """Replaces the tensor."""
        self.tensor = tf.cast(value, self.dtype)

    def assign_add(self, delta: Any, read_value: bool = True) -> None:
        """Adds to the tensor."""
        self.tensor += tf.cast(delta, self.dtype)

    def scatter_update(self, rows: tf.IndexedSlices) -> None:
        """Replaces rows of the tensor."""
        indices = rows.indices[:, tf.newaxis]
        self.tensor = tf.tensor_scatter_nd_update(self.tensor, indices, rows.values)

    def scatter_add(self, rows: tf.IndexedSlices) -> None:
        """Adds to rows of the tensor."""
        indices = rows.indices[:, tf.newaxis]
        self.tensor = tf.tensor_scatter_nd_add(self.tensor, indices, rows.values)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.tensor, dtype, name=name)


def parameter_of(like: Parameter, values: Mapping[str, tf.Tensor]) -> Parameter:
    """Makes a parameter of cells.

    Args:
        like: has the path and the constraint.
        values: the weights under `"weights"`; the engine's state by role; slots as `slots/role`.
    """
    cells = {name: Cell(value) for name, value in values.items()}
    variable = cells.pop("weights")
    variable.constraint = like.variable.constraint
    slots = {n.removeprefix("slots/"): c for n, c in cells.items() if n.startswith("slots/")}
    state = {n: c for n, c in cells.items() if not n.startswith("slots/")}
    return Parameter(variable, like.path, slots, state)


@dataclass
class CellState(OptimizerState):
    """An optimizer's state in cells.

    Args:
        others: further cells that change with the state.
        counts: the variables from which schedules read the number of updates.
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
        """Returns the current values of all cells."""
        return [cell.tensor for cell in self._cells()]

    def hold(self, tensors: Sequence[tf.Tensor]) -> None:
        """Replaces the values of all cells by a result of `tensors`."""
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

    periodically = branch

    def rates(self, rule: Rule) -> Mapping[str, Scalar]:
        """Returns the rates and values for the count of updates that its cell holds."""
        step = self.counters["iteration"].tensor
        with keras.StatelessScope(state_mapping=[(count, step) for count in self.counts]):
            return super().rates(rule)

    def release(self, parameter: Parameter) -> None:
        """Does nothing: a cell shares no memory."""
