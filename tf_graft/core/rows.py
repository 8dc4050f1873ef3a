"""Row-sparse gradients, and the part of a variable that a gradient touches.

Everything after `coalesce` may assume that no row occurs twice. `part_of` gives the engine one way
to read and write a variable, whether the gradient touches all of it or some of its rows: this is
what makes the cost of a step follow the touched rows.
"""

from typing import Any

import tensorflow as tf

from tf_graft.core import keras_contract


def coalesce(gradient: Any) -> Any:
    """Sums the repeated rows of a `tf.IndexedSlices`; returns anything else as it is."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    unique, position = tf.unique(tf.cast(gradient.indices, tf.int64))
    summed = tf.math.unsorted_segment_sum(gradient.values, position, tf.shape(unique)[0])
    return tf.IndexedSlices(summed, unique)


def densify(gradient: tf.IndexedSlices, rows: int) -> tf.Tensor:
    """The dense gradient, with that many rows, that slices stand for."""
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)


def range_checks(owner: str, gradient: Any, path: str, rows: int) -> list[tf.Operation]:
    """Assertions that every row of a row-sparse gradient exists; none for a dense one.

    Raises:
        tf.errors.InvalidArgumentError: when the assertion runs. Compiled by XLA there are no
            assertions: a row outside the variable is then dropped.
    """
    if not isinstance(gradient, tf.IndexedSlices) or keras_contract.in_xla():
        return []
    rows_given = gradient.indices
    inside = tf.reduce_all((rows_given >= 0) & (rows_given < rows))
    message = f"{owner}.apply: a gradient of '{path}' has a row outside [0, {rows})."
    check = tf.debugging.Assert(inside, [message, rows_given], summarize=20)
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
        return tf.gather(variable, self.indices) if self._has_rows(variable) else variable.value()

    def write(self, variable: tf.Variable, value: tf.Tensor) -> None:
        """Replaces the touched rows' values."""
        if self._has_rows(variable):
            variable.scatter_update(tf.IndexedSlices(value, self.indices))
        else:
            variable.assign(value, read_value=False)

    def add(self, variable: tf.Variable, delta: tf.Tensor) -> None:
        """Adds to the touched rows' values."""
        variable.scatter_add(tf.IndexedSlices(delta, self.indices))

    def _has_rows(self, variable: tf.Variable) -> bool:
        return variable.shape.rank > 0 and variable.shape[0] == self.rows


def part_of(gradient: Any, rows: int) -> Whole | Rows:
    """The part of a variable with that many rows that a coalesced gradient touches."""
    if isinstance(gradient, tf.IndexedSlices):
        return Rows(gradient.indices, rows)
    return Whole()
