"""Row-sparse gradients, and the part of a variable that a gradient touches.

Everything after `once` may assume that no row occurs twice. `part_of` gives the engine one way
to read and write a variable, whether the gradient touches all of it or some of its rows: this is
what makes the cost of a step follow the touched rows. On a mesh rows cannot be scattered: there the
whole variable is gone through under a mask.
"""

from typing import Any

import tensorflow as tf

from tf_graft.core import keras_contract
from tf_graft.core.numerics import MaskedGradient


def once(gradient: Any, rows: int, masked: bool) -> Any:
    """A `tf.IndexedSlices` with its repeated rows summed; returns anything else as it is.

    Args:
        gradient: dense or row-sparse.
        rows: how many rows the variable has.
        masked: whether the result is to be a `MaskedGradient`.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if masked:
        times = tf.ones_like(gradient.indices, tf.float32)
        touched = tf.math.unsorted_segment_sum(times, gradient.indices, rows) > 0
        return MaskedGradient(densify(gradient, rows), touched)
    with tf.control_dependencies([gradient.values]):  # by then the layer has read the variable
        unique, position = tf.unique(tf.cast(gradient.indices, tf.int64))
    summed = tf.math.unsorted_segment_sum(gradient.values, position, tf.shape(unique)[0])
    return tf.IndexedSlices(summed, unique)


def share(variable: tf.Variable) -> None:
    """Has later reads of a variable share its memory again.

    An operation on rows has each later read of the whole variable, such as an `Embedding`'s, copy
    it. Compiled by XLA there is no such mode.
    """
    if not keras_contract.in_xla():
        tf.raw_ops.DisableCopyOnRead(resource=variable.handle)


def densify(gradient: Any, rows: int) -> tf.Tensor:
    """The dense gradient, with that many rows, that a row-sparse one stands for."""
    if isinstance(gradient, MaskedGradient):
        return gradient.values
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)


def range_checks(
    owner: str, gradient: Any, path: str, rows: int, on_mesh: bool = False
) -> list[tf.Operation]:
    """Assertions that every row of an IndexedSlices exists; none for a dense gradient.

    Raises:
        tf.errors.InvalidArgumentError: when the assertion runs. Compiled by XLA there are no
            assertions: a row outside the variable is then dropped.
    """
    if not isinstance(gradient, tf.IndexedSlices) or keras_contract.in_xla():
        return []
    rows_given = gradient.indices
    inside = tf.reduce_all((rows_given >= 0) & (rows_given < rows))
    message = f"{owner}.apply: a gradient of '{path}' has a row outside [0, {rows})."
    shown = [message] if on_mesh else [message, rows_given]  # a mesh does not print what is divided
    check = tf.debugging.Assert(inside, shown, summarize=20)
    return [] if check is None else [check]  # eagerly it has been raised already


class Whole:
    """A dense gradient's part of a variable: all of it."""

    def read(self, variable: tf.Variable) -> tf.Tensor:
        """The variable's value."""
        return tf.convert_to_tensor(variable)

    def write(self, variable: tf.Variable, value: tf.Tensor) -> Any:
        """Replaces the variable's value; returns the operation, None eagerly."""
        return variable.assign(value, read_value=False)

    def add(self, variable: tf.Variable, delta: tf.Tensor) -> Any:
        """Adds to the variable's value; returns the operation, None eagerly."""
        return variable.assign_add(delta, read_value=False)


class Rows:
    """A row-sparse gradient's part: some rows of a variable, or all of one that has no rows.

    Args:
        indices: distinct rows, an int64 tensor of shape [k].
        rows: how many rows the model variable has.
    """

    def __init__(self, indices: tf.Tensor, rows: int):
        self.indices = indices
        self.rows = rows

    def read(self, variable: tf.Variable) -> tf.Tensor:
        """The touched rows' values, of shape [k, ...]."""
        rows = _has_rows(variable, self.rows)
        return tf.gather(variable, self.indices) if rows else variable.value()

    def write(self, variable: tf.Variable, value: tf.Tensor) -> None:
        """Replaces the touched rows' values."""
        if _has_rows(variable, self.rows):
            variable.scatter_update(tf.IndexedSlices(value, self.indices))
        else:
            variable.assign(value, read_value=False)

    def add(self, variable: tf.Variable, delta: tf.Tensor) -> None:
        """Adds to the touched rows' values."""
        variable.scatter_add(tf.IndexedSlices(delta, self.indices))


class Masked:
    """The rows of a masked gradient: the others read as zero and are not changed.

    Args:
        mask: which rows are touched, booleans of shape [rows].
        rows: how many rows the model variable has.
    """

    def __init__(self, mask: tf.Tensor, rows: int):
        self.mask = mask
        self.rows = rows

    def read(self, variable: tf.Variable) -> tf.Tensor:
        """The variable's value, zero in the other rows."""
        value = tf.convert_to_tensor(variable)
        rows = _has_rows(variable, self.rows)
        return self._touched(value, tf.zeros_like(value)) if rows else value

    def write(self, variable: tf.Variable, value: tf.Tensor) -> None:
        """Replaces the touched rows' values."""
        if _has_rows(variable, self.rows):
            value = self._touched(value, tf.convert_to_tensor(variable))
        variable.assign(value, read_value=False)

    def add(self, variable: tf.Variable, delta: tf.Tensor) -> None:
        """Adds to the touched rows' values."""
        variable.assign_add(self._touched(delta, tf.zeros_like(delta)), read_value=False)

    def _touched(self, value: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        mask = tf.reshape(self.mask, [self.rows] + [1] * (value.shape.rank - 1))
        return tf.where(mask, value, other)


Part = Whole | Rows | Masked


def part_of(gradient: Any, rows: int) -> Part:
    """The part of a variable with that many rows that a gradient touches, repeated rows summed."""
    if isinstance(gradient, MaskedGradient):
        return Masked(gradient.mask, rows)
    if isinstance(gradient, tf.IndexedSlices):
        return Rows(gradient.indices, rows)
    return Whole()


def _has_rows(variable: tf.Variable, rows: int) -> bool:
    return variable.shape.rank > 0 and variable.shape[0] == rows
