"""Row-sparse gradients: repeated rows, marked rows, rows out of range.

After `coalesced` no row occurs twice; the type of the gradient shows this.
"""

import math

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import checks, keras_contract
from tf_graft.core.tensors import numerics, row_shards
from tf_graft.core.types import Gradient, MaskedGradient, OptionalGradient, TensorLike, UniqueRows

CHILDREN = 16  # of a node of the tree that finds marked rows


def coalesced(
    gradient: Gradient, rows: int, masked: bool, layout: dtensor.Layout | None = None
) -> Gradient:
    """Sums the repeated rows of a `tf.IndexedSlices`; returns any other gradient as it is.

    Args:
        gradient: a dense or row-sparse gradient.
        rows: the number of rows of the variable.
        masked: whether to return a `MaskedGradient` rather than `UniqueRows`.
        layout: the layout of the variable, if it is on a mesh.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if masked:
        times = tf.ones_like(gradient.indices, tf.float32)
        touched = _summed(times, gradient.indices, rows, layout) > 0
        return MaskedGradient(_summed(gradient.values, gradient.indices, rows, layout), touched)
    with tf.control_dependencies([gradient.values]):  # so that the layer has read the variable
        unique, position = _once(gradient.indices, rows)
    summed = tf.math.unsorted_segment_sum(gradient.values, position, tf.shape(unique)[0])
    return UniqueRows(summed, unique)


def occurrences(
    path: str, gradient: Gradient, rows: int, like: Gradient, layout: dtensor.Layout | None = None
) -> tf.Tensor:
    """Returns how often each row occurs in a row-sparse gradient, float32.

    Args:
        path: the path of the variable, for messages.
        gradient: a gradient with repeated rows.
        rows: the number of rows of the variable.
        like: the same gradient with each row once, or dense; the result has its rows.
        layout: the layout of the variable, if it is on a mesh.

    Raises:
        ValueError: the gradient is dense; on a TPU the number of a replica's rows varies.
    """
    if isinstance(gradient, MaskedGradient):
        raise ValueError(
            "CowClip: on a TPU the ids of a batch are counted only if every batch has the same "
            "size; batch with drop_remainder=True."
        )
    if not isinstance(gradient, tf.IndexedSlices):
        raise ValueError(
            f"CowClip: the gradient of '{path}' is dense, so the ids of the batch cannot be "
            "counted. Let the pattern match embeddings only. If this is one, its regularizer or "
            "another use of its weights makes the gradient dense; to penalize only the rows of the "
            "batch, use the activity_regularizer of its layer."
        )
    times = tf.ones_like(gradient.indices, tf.float32)
    if not isinstance(like, UniqueRows):
        return _summed(times, gradient.indices, rows, layout)
    unique, position = _once(gradient.indices, rows)
    return tf.math.unsorted_segment_sum(times, position, tf.shape(unique)[0])


def _summed(
    values: tf.Tensor, indices: tf.Tensor, rows: int, layout: dtensor.Layout | None
) -> tf.Tensor:
    """Returns the sums of values by row, for all rows of a variable."""
    if layout is None or row_shards.devices_of(layout) == 1:
        return tf.math.unsorted_segment_sum(values, indices, rows)
    return row_shards.summed(values, indices, rows, layout)


def _once(indices: tf.Tensor, rows: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the distinct rows, and where among them each of the given rows is."""
    indices = tf.cast(indices, tf.int64)
    return _once_in_xla(indices, rows) if keras_contract.in_xla() else tf.unique(indices)


def _once_in_xla(indices: tf.Tensor, rows: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Keeps a row where it first occurs, and pads the other positions.

    The result is as long as the input. In XLA the result of `tf.unique` has a dynamic size, which
    few operations handle correctly: `tf.unique` itself and `tf.cumsum` do not.
    """
    place = tf.range(tf.shape(indices)[0])
    first = tf.gather(tf.math.unsorted_segment_min(place, indices, rows), indices)
    first = tf.where((indices >= 0) & (indices < rows), first, -1)  # `tf.gather` clamps
    return tf.where(first == place, indices, rows), first


def marked(gradient: Gradient, marks: tf.Variable, times: int) -> tuple[Gradient, tf.Tensor | None]:
    """Returns the gradient, with the marked rows in place of its own if it is row-sparse.

    The values stay those of the gradient. XLA, where sizes are static, gets `times` as many rows as
    the gradient has; the second result says whether all marked rows are among them. It is None if
    they always are.
    """
    if not isinstance(gradient, UniqueRows):
        return masked(gradient, marks), None
    if not keras_contract.in_xla():
        return UniqueRows(gradient.values, _true(marks)), None
    if (gradient.indices.shape[0] or 0) * times >= marks.shape[0]:
        return masked(gradient, marks), None
    length = tf.shape(gradient.indices)[0] * times
    indices, count = _first_true(tf.convert_to_tensor(marks), length)
    return UniqueRows(gradient.values, indices), count <= length


def masked(gradient: Gradient, marks: tf.Variable) -> Gradient:
    """Returns the gradient; if it is row-sparse, as a `MaskedGradient` of the marked rows."""
    if not numerics.row_sparse(gradient):
        return gradient
    mask = tf.convert_to_tensor(marks)
    if isinstance(gradient, OptionalGradient):  # if it is there, it has all rows
        return gradient._replace(mask=gradient.mask | mask)
    return MaskedGradient(gradient.values, mask)


def _first_true(marks: tf.Tensor, length: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the indices of the first `length` marked rows, in order, and how many are marked.

    Rows outside the variable pad the indices. The nodes of a tree count the marked rows below them,
    and all rows are found at once, from the root down. The cost of the descent grows with `length`,
    and with the logarithm of the rows.
    """
    tree = [_in_nodes(marks)]
    while tree[-1].shape[0] > 1:
        tree.append(_in_nodes(tf.reduce_sum(tf.cast(tree[-1], tf.int32), 1)))
    node, skipped = tf.zeros([length], tf.int32), tf.range(length)
    for counts in reversed(tree):
        below = tf.cast(tf.gather(counts, node), tf.int32)
        before = tf.cumsum(below, 1) <= skipped[:, tf.newaxis]
        skipped -= tf.reduce_sum(tf.where(before, below, 0), 1)
        node = CHILDREN * node + tf.reduce_sum(tf.cast(before, tf.int32), 1)
    count = tf.reduce_sum(tf.cast(tree[-1], tf.int32))
    found = tf.where(tf.range(length) < count, node, marks.shape[0])
    return tf.cast(found, tf.int64), count


def _in_nodes(counts: tf.Tensor) -> tf.Tensor:
    """Returns counts, or marks, in rows of `CHILDREN`, padded with zeros."""
    padded = tf.pad(counts, [[0, -counts.shape[0] % CHILDREN]])
    return tf.reshape(padded, [-1, CHILDREN])


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


def numbers(owner: str, given: TensorLike, count: int) -> tf.Tensor:
    """Returns row numbers, each once, as an int64 tensor of shape [k].

    Args:
        owner: class and method, for messages.
        given: row numbers, in any shape.
        count: the number of rows that there are.

    Raises:
        TypeError: they are no integers.
        ValueError: a row does not exist.
    """
    try:
        rows = np.unique(given)
    except (TypeError, ValueError):  # of lists that make no array, and of objects without an order
        rows = np.array([math.nan])
    if rows.size and not np.issubdtype(rows.dtype, np.integer):
        raise TypeError(f"{owner}: rows must be integers, not {checks.shown(given)}.")
    outside = rows[(rows < 0) | (rows >= count)]
    if outside.size:
        raise ValueError(f"{owner}: there is no row {outside[0]} in [0, {count}).")
    return tf.constant(rows, tf.int64)


def weights(owner: str, rows: TensorLike, given: TensorLike, table: tf.Variable) -> tf.Tensor:
    """Returns the weights of rows in the order of `numbers`, each row's once, of shape [k, ...].

    Args:
        owner: class and method, for messages.
        rows: row numbers, in any shape.
        given: the weights of each of them.
        table: the variable that has the rows.

    Raises:
        TypeError: the weights are no numbers.
        ValueError: they have another shape, or are not finite in the dtype of the table.
    """
    try:
        values = np.asarray(given)
    except ValueError:  # of lists that make no array
        values = np.array(None)
    if values.dtype == bool or not np.can_cast(values.dtype, np.float64, "same_kind"):
        raise TypeError(f"{owner}: weights must be numbers, not {checks.shown(given)}.")
    wanted = (*np.shape(rows), *table.shape[1:])
    if values.shape != wanted:
        raise ValueError(f"{owner}: weights have shape {values.shape}; they must have {wanted}.")
    _refuse_not_finite(owner, values, tf.as_dtype(table.dtype))
    _, first = np.unique(rows, return_index=True)
    return tf.constant(values.reshape([-1, *table.shape[1:]])[first])


def _refuse_not_finite(owner: str, weights: np.ndarray, dtype: tf.DType) -> None:
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(weights.astype(dtype.as_numpy_dtype))
    if np.any(bad):
        raise ValueError(
            f"{owner}: weights must be finite in {dtype.name}, the dtype of the table, not "
            f"{weights[bad][0]}."
        )


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


def acting_dense(gradient: Gradient, rows: int) -> Gradient:
    """Returns a row-sparse gradient as one that acts on all rows, if it is not an absent one."""
    if isinstance(gradient, OptionalGradient):
        mask = tf.reduce_any(gradient.mask) | tf.zeros_like(gradient.mask)
        return gradient._replace(mask=mask)
    return densify(gradient, rows)


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
