"""Row-sparse gradients: repeated rows, marked rows, rows out of range.

After `coalesced` no row occurs twice; the type of the gradient shows this.
"""

import tensorflow as tf

from tf_graft.core import keras_contract
from tf_graft.core.tensors import numerics
from tf_graft.core.types import Gradient, MaskedGradient, TensorLike, UniqueRows


def coalesced(gradient: Gradient, rows: int, masked: bool) -> Gradient:
    """Sums the repeated rows of a `tf.IndexedSlices`; returns any other gradient as it is.

    Args:
        gradient: a dense or row-sparse gradient.
        rows: the number of rows of the variable.
        masked: whether to return a `MaskedGradient` rather than `UniqueRows`.
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
    with tf.control_dependencies([gradient.values]):  # so that the layer has read the variable
        unique, position = tf.unique(indices)
    summed = tf.math.unsorted_segment_sum(gradient.values, position, tf.shape(unique)[0])
    return UniqueRows(summed, unique)


def _once_in_xla(values: tf.Tensor, indices: tf.Tensor, rows: int) -> UniqueRows:
    """Puts the sum of a row where the row first occurs, and pads the other positions.

    The result is as long as the input. In XLA the result of `tf.unique` has a dynamic size, which
    few operations handle correctly: `tf.unique` itself and `tf.cumsum` do not.
    """
    length = tf.shape(indices)[0]
    place = tf.range(length)
    first = tf.gather(tf.math.unsorted_segment_min(place, indices, rows), indices)
    first = tf.where((indices >= 0) & (indices < rows), first, -1)  # `tf.gather` clamps
    summed = tf.math.unsorted_segment_sum(values, first, length)
    return UniqueRows(summed, tf.where(first == place, indices, rows))


def marked(gradient: Gradient, marks: tf.Variable) -> Gradient:
    """Returns the values of the gradient; if it is row-sparse, those of the marked rows.

    If XLA compiles it, where the number of marked rows is unknown, it returns a `MaskedGradient`.
    """
    if not numerics.row_sparse(gradient):
        return gradient
    if isinstance(gradient, MaskedGradient) or keras_contract.in_xla():
        return MaskedGradient(gradient.values, tf.convert_to_tensor(marks))
    return UniqueRows(gradient.values, _true(marks))


def of_marked(gradient: tf.Tensor, marks: tf.Tensor) -> UniqueRows:
    """Returns the marked rows of a dense gradient."""
    return UniqueRows(tf.gather(gradient, _true(marks)), _true(marks))


def _true(marks: TensorLike) -> tf.Tensor:
    """Returns the indices of the marked rows, a tensor of dynamic size."""
    return tf.reshape(tf.where(marks), [-1])


def as_slices(gradient: Gradient) -> tf.Tensor | tf.IndexedSlices | MaskedGradient:
    """Returns the gradient, with `UniqueRows` as `tf.IndexedSlices` for TensorFlow's functions."""
    if isinstance(gradient, UniqueRows):
        return tf.IndexedSlices(gradient.values, gradient.indices)
    return gradient


def share(variable: tf.Variable) -> None:
    """Lets later reads of a variable share its memory again.

    After an operation on rows, every read of the whole variable, such as an `Embedding`'s, copies
    the variable. XLA has no such mode.
    """
    if not keras_contract.in_xla():
        tf.raw_ops.DisableCopyOnRead(resource=variable.handle)


def densify(gradient: Gradient, rows: int) -> tf.Tensor:
    """Returns the dense gradient, of that many rows, that equals a row-sparse one."""
    if isinstance(gradient, MaskedGradient):
        return gradient.values
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)


def range_checks(
    owner: str, gradient: Gradient, path: str, rows: int, on_mesh: bool = False
) -> list[tf.Operation]:
    """Returns assertions that every row of a `tf.IndexedSlices` exists; none for a dense gradient.

    Raises:
        tf.errors.InvalidArgumentError: when the assertion runs. XLA has no assertions and drops a
            row outside the variable.
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
    shown = [message] if on_mesh else [message, rows_given]  # a mesh does not print sharded tensors
    check = tf.debugging.Assert(inside, shown, summarize=20)
    return [] if check is None else [check]  # eagerly it has already been raised
