"""Row-sparse gradients, and the part of a variable that a gradient touches.

After `once` no row occurs twice, and the type says so. `part_of` gives the engine one way
to read and write a variable, whether the gradient touches all of it or some of its rows: this is
what makes the cost of a step follow the touched rows. On a mesh rows cannot be scattered: there the
whole variable is gone through under a mask.
"""

from typing import Any

import tensorflow as tf

from tf_graft.core import keras_contract, numerics
from tf_graft.core.types import MaskedGradient, UniqueRows


def once(gradient: Any, rows: int, masked: bool) -> Any:
    """A `tf.IndexedSlices` with its repeated rows summed; returns anything else as it is.

    Args:
        gradient: dense or row-sparse.
        rows: how many rows the variable has.
        masked: whether the result is to be a `MaskedGradient`, and not `UniqueRows`.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if masked:
        times = tf.ones_like(gradient.indices, tf.float32)
        touched = tf.math.unsorted_segment_sum(times, gradient.indices, rows) > 0
        return MaskedGradient(densify(gradient, rows), touched)
    indices = tf.cast(gradient.indices, tf.int64)
    if keras_contract.in_xla():
        return _once_in_xla(gradient.values, indices, rows)
    with tf.control_dependencies([gradient.values]):  # by then the layer has read the variable
        unique, position = tf.unique(indices)
    summed = tf.math.unsorted_segment_sum(gradient.values, position, tf.shape(unique)[0])
    return UniqueRows(summed, unique)


def _once_in_xla(values: tf.Tensor, indices: tf.Tensor, rows: int) -> UniqueRows:
    """The sum of a row stands where the row occurs first; the other places are filled up.

    The result is as long as what is given. In XLA the size of what `tf.unique` returns is dynamic,
    which few operations can be trusted with: `tf.unique` itself and `tf.cumsum` cannot.
    """
    length = tf.shape(indices)[0]
    place = tf.range(length)
    first = tf.gather(tf.math.unsorted_segment_min(place, indices, rows), indices)
    first = tf.where((indices >= 0) & (indices < rows), first, -1)  # `tf.gather` clamps
    summed = tf.math.unsorted_segment_sum(values, first, length)
    return UniqueRows(summed, tf.where(first == place, indices, rows))


def marked(gradient: Any, marks: tf.Variable) -> Any:
    """A gradient of the form of another, if row-sparse of the marked rows; its values are the
    other's.

    Compiled by XLA it is masked: how many rows are marked is not known there.
    """
    if not numerics.row_sparse(gradient):
        return gradient
    if isinstance(gradient, MaskedGradient) or keras_contract.in_xla():
        return MaskedGradient(gradient.values, tf.convert_to_tensor(marks))
    return UniqueRows(gradient.values, _true(marks))


def of_marked(gradient: tf.Tensor, marks: tf.Tensor) -> UniqueRows:
    """The marked rows of a dense gradient."""
    return UniqueRows(tf.gather(gradient, _true(marks)), _true(marks))


def _true(marks: Any) -> tf.Tensor:
    """The numbers of the rows that are marked: of a dynamic size."""
    return tf.reshape(tf.where(marks), [-1])


def as_slices(gradient: Any) -> Any:
    """A row-sparse gradient as the `tf.IndexedSlices` that all of TensorFlow knows."""
    if isinstance(gradient, UniqueRows):
        return tf.IndexedSlices(gradient.values, gradient.indices)
    return gradient


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
    if tf.executing_eagerly() and not on_mesh:
        if not inside:
            raise tf.errors.InvalidArgumentError(None, None, message)
        return []
    shown = [message] if on_mesh else [message, rows_given]  # a mesh does not print what is divided
    check = tf.debugging.Assert(inside, shown, summarize=20)
    return [] if check is None else [check]  # eagerly it has been raised already


class Whole:
    """A dense gradient's part of a variable: all of it."""

    def read(self, variable: tf.Variable) -> tf.Tensor:
        """The variable's value."""
        return tf.convert_to_tensor(variable)

    def merged(self, value: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
        """What a variable that holds `old` would hold after `write`."""
        return value

    def write(self, variable: tf.Variable, value: tf.Tensor) -> Any:
        """Replaces the variable's value; returns the operation, None eagerly."""
        return variable.assign(value, read_value=False)

    def add(self, variable: tf.Variable, delta: tf.Tensor) -> Any:
        """Adds to the variable's value; returns the operation, None eagerly."""
        return variable.assign_add(delta, read_value=False)


class Rows:
    """A row-sparse gradient's part: some rows of a variable, or all of one that has no rows.

    Of a tensor, too, as far as `read` and `merged` go.

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
        if not rows:
            return tf.convert_to_tensor(variable)
        return self._filled_up(tf.gather(variable, self.indices))

    def merged(self, value: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
        """What a variable that holds `old` would hold after `write`."""
        if not _has_rows(old, self.rows):
            return value
        return tf.tensor_scatter_nd_update(old, self.indices[:, tf.newaxis], value)

    def write(self, variable: tf.Variable, value: tf.Tensor) -> None:
        """Replaces the touched rows' values."""
        if _has_rows(variable, self.rows):
            variable.scatter_update(tf.IndexedSlices(value, self.indices))
        else:
            variable.assign(value, read_value=False)

    def add(self, variable: tf.Variable, delta: tf.Tensor) -> None:
        """Adds to the touched rows' values."""
        variable.scatter_add(tf.IndexedSlices(delta, self.indices))

    def _filled_up(self, value: tf.Tensor) -> tf.Tensor:
        """What was read, with zeros for rows outside, which there are in XLA only."""
        if not keras_contract.in_xla():
            return value
        return _where_rows(self.indices < self.rows, value, tf.zeros_like(value))


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

    def merged(self, value: tf.Tensor, old: Any) -> tf.Tensor:
        """What a variable that holds `old` would hold after `write`."""
        if not _has_rows(old, self.rows):
            return value
        return self._touched(value, tf.convert_to_tensor(old))

    def write(self, variable: tf.Variable, value: tf.Tensor) -> None:
        """Replaces the touched rows' values."""
        variable.assign(self.merged(value, variable), read_value=False)

    def add(self, variable: tf.Variable, delta: tf.Tensor) -> None:
        """Adds to the touched rows' values."""
        variable.assign_add(self._touched(delta, tf.zeros_like(delta)), read_value=False)

    def _touched(self, value: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        return _where_rows(self.mask, value, other)


Part = Whole | Rows | Masked


def part_of(gradient: Any, rows: int) -> Part:
    """The part of a variable with that many rows that a gradient touches, repeated rows summed."""
    if isinstance(gradient, MaskedGradient):
        return Masked(gradient.mask, rows)
    if isinstance(gradient, UniqueRows):
        return Rows(gradient.indices, rows)
    return Whole()


def _where_rows(rows: tf.Tensor, value: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """`value` in the rows that are true, `other` elsewhere."""
    return tf.where(tf.reshape(rows, [-1] + [1] * (value.shape.rank - 1)), value, other)


def _has_rows(variable: tf.Variable, rows: int) -> bool:
    return variable.shape.rank > 0 and variable.shape[0] == rows
