"""Row-sparse gradients: repeated rows, marked rows, rows out of range.

After `once` no row occurs twice, and the type says so.
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
