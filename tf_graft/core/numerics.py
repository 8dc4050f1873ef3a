"""Precision, finiteness and norms, for dense tensors and the values of row-sparse gradients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_graft.core.types import MaskedGradient, UniqueRows

HALF = (tf.float16, tf.bfloat16)


def compute_dtype(dtype: tf.DType) -> tf.DType:
    """The precision a variable's update is computed in: never below float32."""
    return tf.float32 if dtype in HALF else dtype


def tensors(gradient: Any) -> Any:
    """The gradient, dense or row-sparse, made of tensors where it was made of arrays or lists."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(tf.convert_to_tensor(gradient.values), _rows(gradient.indices))
    return tf.convert_to_tensor(gradient)


def _rows(indices: Any) -> tf.Tensor:
    if not tf.is_tensor(indices) and not np.size(indices):
        return tf.zeros([0], tf.int64)
    indices = tf.convert_to_tensor(indices)
    narrow = indices.dtype.is_integer and indices.dtype != tf.int32
    return tf.cast(indices, tf.int64) if narrow else indices


def values(gradient: Any) -> tf.Tensor:
    """The numbers of a gradient, dense or row-sparse."""
    return gradient.values if row_sparse(gradient) else gradient


def row_sparse(gradient: Any) -> bool:
    """Whether a gradient is of some rows only."""
    return isinstance(gradient, tf.IndexedSlices | UniqueRows | MaskedGradient)


def cast(gradient: Any, dtype: tf.DType) -> Any:
    """The gradient in another precision, dense or row-sparse."""
    return like(gradient, tf.cast(values(gradient), dtype))


def divided(gradient: Any, divisor: Any) -> Any:
    """`gradient / divisor`, dense or row-sparse, for a divisor that is not zero; None is one."""
    if divisor is None:
        return gradient
    if tf.is_tensor(divisor):
        divisor = tf.cast(divisor, values(gradient).dtype)
    return like(gradient, quotient(values(gradient), divisor))


def quotient(x: tf.Tensor, y: Any) -> tf.Tensor:
    """`x / y` for y other than zero, bit for bit the same eagerly and in a `tf.function`.

    There a plain division by a constant or a root is rewritten as a product with a reciprocal, and
    products with scalars change their order.
    """
    return tf.math.divide_no_nan(x, y)


def like(gradient: Any, new_values: tf.Tensor) -> Any:
    """`new_values` in the form of `gradient`, dense or row-sparse."""
    if isinstance(gradient, UniqueRows | MaskedGradient):
        return gradient._replace(values=new_values)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(new_values, gradient.indices)
    return new_values


def norm(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The L2 norm over all entries of all tensors, a scalar: 0 where there is no entry.

    Where the sum of squares overflows though every entry is finite, it is taken again relative to
    the largest entry. With a NaN it is NaN, else with an infinity infinite.
    """
    precision = tf.float64 if any(x.dtype == tf.float64 for x in tensors) else tf.float32
    total = tf.add_n([tf.cast(_sum_of_squares(x), precision) for x in tensors])

    def relative() -> tf.Tensor:
        peaks = [tf.cast(tf.reduce_max(tf.abs(x)), precision) for x in tensors]
        peak = tf.reduce_max(tf.stack(peaks))
        ratios = [_sum_of_squares(tf.cast(x, precision) / peak) for x in tensors]
        return tf.where(tf.math.is_finite(peak), peak * tf.sqrt(tf.add_n(ratios)), total)

    return tf.cond(tf.math.is_finite(total), lambda: tf.sqrt(total), relative)


def length(x: tf.Tensor) -> tf.Tensor:
    """The L2 norm of one tensor in a single pass, where one is taken of each variable.

    Below 1e-19 in float32 it counts as zero, above 1e19 as infinite: so do the squares.
    """
    return tf.sqrt(_sum_of_squares(x))


def peak(x: tf.Tensor) -> tf.Tensor:
    """The largest magnitude of a tensor, with no second tensor for the magnitudes; 0 where it is
    empty.
    """
    return tf.maximum(tf.maximum(tf.reduce_max(x), -tf.reduce_min(x)), 0)


def _sum_of_squares(x: tf.Tensor) -> tf.Tensor:
    return 2.0 * tf.nn.l2_loss(x)


def self_product(x: tf.Tensor) -> tf.Tensor:
    """The sum of squares as a matrix product: the cheapest full pass TensorFlow has on a CPU.

    On accelerators its precision may be reduced, so that it says how large the entries are, and
    whether they are finite, and no more.
    """
    flat = tf.reshape(x, [1, -1])
    return tf.reshape(tf.matmul(flat, flat, transpose_b=True), [])


def one_minus_power(beta: float, t: tf.Tensor) -> tf.Tensor:
    """`1 - beta^t`, which in float32 would lose half its digits at the first steps.

    Of `beta` in the precision of `t`, as kernels have it in the averages that this corrects.
    """
    return -tf.math.expm1(t * tf.math.log(tf.constant(beta, t.dtype)))
