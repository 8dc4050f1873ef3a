"""The only module that writes variables: all of one, or the rows that a gradient touches.

`part_of` gives the engine one way to read and write a variable, whether the gradient touches all of
it or some of its rows. The cost of a step is therefore that of the touched rows. On a mesh rows
cannot be scattered: the whole variable is written there under a mask.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import keras_contract
from tf_graft.core.places import replicas
from tf_graft.core.tensors import numerics
from tf_graft.core.types import (
    Gradient,
    MaskedGradient,
    OptionalGradient,
    TensorLike,
    UniqueRows,
    VariableLike,
)


def put(variable: Any, value: tf.Tensor) -> None:
    """Assigns a new value to the calling replica's copy of a variable."""
    replicas.local(variable).assign(value, read_value=False)


def put_everywhere(variable: Any, value: TensorLike) -> None:
    """Assigns a new value to every replica's copy of a variable, even from inside a replica."""
    for copy in replicas.copies(variable):
        copy.assign(value)


def snapshot(variables: Sequence[VariableLike]) -> Callable[[], None]:
    """Returns a function that restores the current values of variables."""
    before = [(variable, tf.convert_to_tensor(variable)) for variable in variables]

    def put_back() -> None:
        for variable, value in before:
            put_everywhere(variable, value)

    return put_back


def add(variable: Any, value: TensorLike) -> None:
    """Adds to the calling replica's copy of a variable, in one atomic operation."""
    replicas.local(variable).assign_add(value, read_value=False)


def clear(variable: tf.Variable, part: "Part") -> None:
    """Sets a part of a variable to zero, in memory that in-place additions can use."""
    value = part.read(variable)
    if isinstance(variable, dtensor.DVariable):
        part.write(variable, tf.zeros_like(value))
    elif isinstance(part, Rows) and keras_contract.in_xla():  # written after it was read: no copy
        part.write(variable, numerics.where_rows(part.touched, tf.zeros_like(value), value))
    else:
        part.write(variable, tf.fill(numerics.shape_of(value), numerics.zero(value.dtype)))


def add_product(variable: tf.Variable, factor: tf.Tensor, x: tf.Tensor) -> Any:
    """Adds `factor * x` in one pass by a kernel, which runs neither on meshes nor in XLA.

    Returns:
        The operation; None eagerly.
    """
    alpha = numerics.negative(factor)
    return tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=alpha, delta=x)


def either(
    condition: tf.Tensor, then: Callable[[], None], other: Callable[[], None] = lambda: None
) -> None:
    """Runs one of two functions that write variables.

    XLA copies variables that a branch of a conditional writes. Variables that a loop writes stay
    where they are, so each function becomes a loop that runs at most once.
    """
    if not keras_contract.in_xla():
        tf.cond(condition, then, other)
        return
    for chosen, run in ((condition, then), (tf.logical_not(condition), other)):
        _once_if(chosen, run)


def before(
    read: "Sequence[tuple[tf.Variable, Part]]", run: Callable[[], None], always: tf.Tensor
) -> None:
    """Runs a function that reads parts of variables before they are written.

    XLA would read the rows again after they are written, from a copy of the whole variable. It
    keeps the order if the function runs in a loop that also writes the rows, as they are.

    Args:
        read: the variables that are written later, with the parts that the function reads.
        run: the function; it writes variables.
        always: a condition that always holds, though XLA does not know it.
    """

    def run_and_keep() -> None:
        run()
        for variable, part in read:
            part.write(variable, part.read(variable))

    if keras_contract.in_xla():
        _once_if(always, run_and_keep)
    else:
        run()


def _once_if(condition: tf.Tensor, run: Callable[[], None]) -> None:
    def body(_: tf.Tensor) -> tuple[tf.Tensor]:
        run()
        return (tf.constant(False),)

    tf.while_loop(lambda due: due, body, [condition])


class Whole:
    """A dense gradient's part of a variable: all of it."""

    touched = None

    def read(self, variable: tf.Variable) -> tf.Tensor:
        """Returns the variable's value."""
        return tf.convert_to_tensor(variable)

    def write(self, variable: tf.Variable, value: tf.Tensor) -> Any:
        """Replaces the variable's value; returns the operation, None eagerly."""
        return variable.assign(value, read_value=False)

    def add(self, variable: tf.Variable, delta: tf.Tensor) -> Any:
        """Adds to the variable's value; returns the operation, None eagerly."""
        return variable.assign_add(delta, read_value=False)

    def move(self, variable: tf.Variable, value: tf.Tensor, delta: tf.Tensor) -> Any:
        """Adds to the variable, which has that value; returns the operation, None eagerly."""
        return self.add(variable, delta)


class Rows:
    """A row-sparse gradient's part: some rows of a variable, or all of one that has no rows.

    Args:
        indices: distinct rows, an int64 tensor of shape [k].
        rows: the number of rows of the model variable.
    """

    def __init__(self, indices: tf.Tensor, rows: int):
        self.indices = indices
        self.rows = rows

    @property
    def touched(self) -> tf.Tensor | None:
        """Returns which of `indices` are rows of the variable; None if all are, as without XLA."""
        return self.indices < self.rows if keras_contract.in_xla() else None

    def read(self, variable: tf.Variable) -> tf.Tensor:
        """Returns the touched rows' values, of shape [k, ...]."""
        rows = has_rows(variable, self.rows)
        if not rows:
            return tf.convert_to_tensor(variable)
        value, touched = tf.gather(variable, self.indices), self.touched
        if touched is None:
            return value
        return numerics.where_rows(touched, value, tf.zeros_like(value))

    def write(self, variable: tf.Variable, value: tf.Tensor) -> None:
        """Replaces the touched rows' values."""
        if has_rows(variable, self.rows):
            variable.scatter_update(tf.IndexedSlices(value, self.indices))
        else:
            variable.assign(value, read_value=False)

    def add(self, variable: tf.Variable, delta: tf.Tensor) -> None:
        """Adds to the touched rows' values."""
        variable.scatter_add(tf.IndexedSlices(delta, self.indices))

    def move(self, variable: tf.Variable, value: tf.Tensor, delta: tf.Tensor) -> None:
        """Adds to the touched rows, which have those values.

        To write the sums takes half the time of an addition. But other workers move the rows of a
        parameter server in between, and XLA would copy the variable, of which it reads rows.
        """
        if keras_contract.in_xla() or replicas.on_server(variable):
            self.add(variable, delta)
        else:
            self.write(variable, value + delta)


class Masked:
    """The rows of a masked gradient; other rows read as zero and are not changed.

    Args:
        mask: which rows are touched, booleans of shape [rows].
        rows: the number of rows of the model variable.
        optional: whether what has no rows stays as it is if none is touched.
    """

    def __init__(self, mask: tf.Tensor, rows: int, optional: bool = False):
        self.touched = mask
        self.rows = rows
        self.optional = optional

    def read(self, variable: tf.Variable) -> tf.Tensor:
        """Returns the variable's value, with zeros in the other rows."""
        value = tf.convert_to_tensor(variable)
        rows = has_rows(variable, self.rows)
        return numerics.where_rows(self.touched, value, tf.zeros_like(value)) if rows else value

    def write(self, variable: tf.Variable, value: tf.Tensor) -> None:
        """Replaces the touched rows' values."""
        if has_rows(variable, self.rows):
            value = numerics.where_rows(self.touched, value, tf.convert_to_tensor(variable))
        elif self.optional:
            given = tf.reduce_any(self.touched)
            value = numerics.where(given, value, tf.convert_to_tensor(variable))
        variable.assign(value, read_value=False)

    def add(self, variable: tf.Variable, delta: tf.Tensor) -> None:
        """Adds to the touched rows' values."""
        delta = numerics.where_rows(self.touched, delta, tf.zeros_like(delta))
        variable.assign_add(delta, read_value=False)

    def move(self, variable: tf.Variable, value: tf.Tensor, delta: tf.Tensor) -> None:
        """Adds to the touched rows, which have those values."""
        self.add(variable, delta)


Part = Whole | Rows | Masked


def part_of(gradient: Gradient, rows: int) -> Part:
    """Returns the part of a variable with `rows` rows that a gradient touches, each row once."""
    if isinstance(gradient, MaskedGradient):
        return Masked(gradient.mask, rows, isinstance(gradient, OptionalGradient))
    if isinstance(gradient, UniqueRows):
        return Rows(gradient.indices, rows)
    return Whole()


def has_rows(variable: VariableLike, rows: int) -> bool:
    """Returns whether a variable, a slot for example, has the rows of a model variable."""
    return len(variable.shape) > 0 and variable.shape[0] == rows
