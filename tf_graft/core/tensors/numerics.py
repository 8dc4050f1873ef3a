"""Precision, finiteness and norms, for dense tensors and the values of row-sparse gradients."""

import contextlib
import types
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TypeVar

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import keras_contract
from tf_graft.core.tensors.memo import memoized
from tf_graft.core.types import (
    Gradient,
    MaskedGradient,
    NumberLike,
    Scalar,
    TensorLike,
    UniqueRows,
)

G = TypeVar("G", bound=Gradient)
HALF = (tf.float16, tf.bfloat16)
ROW = 256  # entries of a row, in the product that XLA sums with
FEW = 2**16  # with fewer entries, a tensor is joined with others


def compute_dtype(dtype: tf.DType) -> tf.DType:
    """Returns the precision in which a variable's update is computed: never below float32."""
    return tf.float32 if dtype in HALF else dtype


def tensors(gradient: object) -> tf.Tensor | tf.IndexedSlices:
    """Returns the gradient, dense or row-sparse, with arrays and lists converted to tensors."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(tf.convert_to_tensor(gradient.values), _rows(gradient.indices))
    return tf.convert_to_tensor(gradient)


def _rows(indices: TensorLike) -> tf.Tensor:
    if not tf.is_tensor(indices) and not np.size(indices):
        return tf.zeros([0], tf.int64)
    indices = tf.convert_to_tensor(indices)
    narrow = indices.dtype.is_integer and indices.dtype != tf.int32
    return tf.cast(indices, tf.int64) if narrow else indices


def values(gradient: Gradient) -> tf.Tensor:
    """Returns the values of a gradient, dense or row-sparse."""
    return gradient.values if row_sparse(gradient) else gradient


def row_sparse(gradient: object) -> bool:
    """Returns whether a gradient is row-sparse, in any form."""
    return isinstance(gradient, tf.IndexedSlices | UniqueRows | MaskedGradient)


def cast(gradient: G, dtype: tf.DType) -> G:
    """Returns the gradient in another precision, dense or row-sparse."""
    return like(gradient, tf.cast(values(gradient), dtype))


def divided(gradient: G, divisor: Scalar | None) -> G:
    """Returns `gradient / divisor` for a divisor other than zero; None means 1."""
    if divisor is None:
        return gradient
    if tf.is_tensor(divisor):
        divisor = tf.cast(divisor, values(gradient).dtype)
    return like(gradient, quotient(values(gradient), divisor))


def quotient(x: tf.Tensor, y: Scalar) -> tf.Tensor:
    """Returns `x / y` for y other than zero, bit for bit the same eagerly and in a `tf.function`.

    In a `tf.function` TensorFlow rewrites a plain division by a constant or a root as a product
    with a reciprocal, and reorders products with scalars.
    """
    return tf.math.divide_no_nan(x, y)


def product(x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Returns `x * factor` for a scalar; a zero factor gives zero, even if `x` is infinite or NaN.

    In a graph TensorFlow would regroup a plain product with a scalar with other products. Eagerly
    on a mesh TensorFlow gives a zero factor the shape of a scalar, and fails.
    """
    if tf.executing_eagerly() and dtensor.is_dtensor(x):
        factor = tf.ones_like(x) * factor
    return tf.math.multiply_no_nan(x, factor)


def like(gradient: G, new_values: tf.Tensor) -> G:
    """Returns `new_values` in the form of `gradient`, dense or row-sparse."""
    if isinstance(gradient, UniqueRows | MaskedGradient):
        return gradient._replace(values=new_values)  # type: ignore[return-value]
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(new_values, gradient.indices)
    return new_values


@memoized
def zero(dtype: tf.DType) -> tf.Tensor:
    """Returns a scalar zero that TensorFlow does not know before it runs.

    A tensor filled with a known number is made once, kept for good, and copied by every kernel that
    changes it; a tensor filled with this zero belongs to the kernel.
    """
    return tf.raw_ops.Empty(shape=[], dtype=dtype, init=True)


@memoized
def negative(x: tf.Tensor) -> tf.Tensor:
    """Returns `-x`, as the same tensor for all variables of an update."""
    return -x


@memoized
def filled(shape: tuple[int, ...], value: TensorLike) -> tf.Tensor:
    """Returns a tensor full of one number, the same tensor for all variables of an update."""
    return tf.fill(shape, value)


def shape_of(x: tf.Tensor) -> tf.Tensor:
    """Returns the shape of a tensor, as the same tensor for all variables of an update."""
    return _known_shape(tuple(x.shape)) if x.shape.is_fully_defined() else tf.shape(x)


@memoized
def _known_shape(shape: tuple[int, ...]) -> tf.Tensor:
    return tf.constant(shape, tf.int32)


@memoized
def _axes(rank: int) -> tf.Tensor:
    return tf.range(rank)


def least(x: tf.Tensor) -> tf.Tensor:
    """Returns the least entry of a tensor whose number of axes is known."""
    return tf.reduce_min(x, _axes(x.shape.rank))


def where_rows(rows: tf.Tensor, value: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns `value` in the rows that are true, else `other`, whose number of axes is known."""
    return tf.where(of_rows(rows, other), value, other)


def where(condition: tf.Tensor, value: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns `value` where a condition is true, or all of it for a scalar one, else `other`.

    A scalar condition is repeated for each entry: with the divided tensors of a mesh, a scalar in
    `tf.where` ends the process with a segmentation fault (TensorFlow 2.21).
    """
    if not condition.shape.rank:
        condition = tf.logical_and(condition, tf.ones_like(value, tf.bool))
    return tf.where(condition, value, other)


def of_rows(values: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Returns one value for each row in a shape that broadcasts to `like`.

    Rows may have several axes; a scalar's one value stays as it is.
    """
    for _ in range(like.shape.rank - values.shape.rank):
        values = tf.expand_dims(values, -1)
    return values


def square(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the sum of squares of all entries of all tensors: float64 if one is, else float32.

    It takes one operation for each tensor; doubling the sum or its terms gives the same bits.
    """
    total = precision(tensors)
    if not keras_contract.in_xla():
        return 2.0 * tf.add_n([tf.cast(tf.nn.l2_loss(x), total) for x in tensors])
    dtypes = dict.fromkeys(x.dtype for x in tensors)
    kinds = [[x for x in tensors if x.dtype == dtype] for dtype in dtypes]
    return tf.add_n([tf.cast(_square_in_xla(of_it), total) for of_it in kinds])


def _square_in_xla(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the sum of squares of tensors of one dtype, as XLA compiles it best.

    On a CPU a loop over a single sum uses no vector instructions, while a product with a matrix
    does; and a program compiles sooner if small tensors are one.
    """
    wide, rest = _in_rows(tensors)
    ones = tf.ones([ROW], tensors[0].dtype)
    sums = [tf.reduce_sum(tf.linalg.matvec(rows * rows, ones)) for rows in wide]
    return tf.add_n([*sums, tf.reduce_sum(rest * rest)])


def _in_rows(tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns large tensors of one dtype in rows, and all entries that are in none."""
    wide, rest = [], []
    for x in (tf.reshape(x, [-1]) for x in tensors):
        size = x.shape[0] or 0
        whole = size // ROW * ROW if size >= FEW else 0
        if whole:
            wide.append(tf.reshape(x if whole == size else x[:whole], [-1, ROW]))
        if not whole or whole < size:
            rest.append(x[whole:] if whole else x)
    return wide, tf.concat(rest, 0) if rest else tf.zeros([0], tensors[0].dtype)


def norm(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the L2 norm over all entries of all tensors, a scalar: 0 if there is no entry.

    If the sum of squares overflows although every entry is finite, it is computed again from
    smaller entries: the norm is infinite only if it is too large itself. A NaN entry makes the norm
    NaN; otherwise an infinite entry makes it infinite.
    """
    total = square(tensors)
    return tf.cond(tf.math.is_finite(total), lambda: tf.sqrt(total), lambda: norm_of_large(tensors))


def norm_of_large(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the L2 norm of tensors if the sum of their squares overflows; else it may be 0.

    It is the norm of far smaller entries, of which 2^31 squares have a sum. Entries whose squares
    are lost do not change a sum that is so large.
    """
    dtype = precision(tensors)
    factor = 2.0 ** (-5 * int(np.finfo(dtype.as_numpy_dtype).maxexp) // 8)
    return tf.sqrt(square([tf.cast(x, dtype) * factor for x in tensors])) / factor


def precision(tensors: Sequence[tf.Tensor]) -> tf.DType:
    """Returns the dtype of a sum over all entries of tensors: float64 if one is, else float32."""
    return tf.float64 if any(x.dtype == tf.float64 for x in tensors) else tf.float32


def norms(x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    """Returns the L2 norms over some axes, which stay, with the length 1."""
    return tf.sqrt(tf.reduce_sum(x * x, list(axes), keepdims=True))


def limited(x: tf.Tensor, norms: tf.Tensor, largest: tf.Tensor | float) -> tf.Tensor:
    """Returns a tensor of which parts have these norms, with those that are too long shortened.

    TensorFlow regroups chained products in a graph. `tf.where` separates this one from those that
    come later, so that a graph gives the bits of eager execution.
    """
    return tf.where(norms > largest, x * quotient(largest, norms), x)


def length(x: tf.Tensor) -> tf.Tensor:
    """Returns the L2 norm of one tensor in a single pass, cheap enough for every variable.

    In float32 the norm is zero below 1e-19 and infinite above 1e19, because the squares are.
    """
    return tf.sqrt(_sum_of_squares(x))


def peak(x: tf.Tensor) -> tf.Tensor:
    """Returns the largest magnitude of a tensor, 0 if empty, without a tensor of magnitudes."""
    return tf.maximum(tf.maximum(tf.reduce_max(x), -tf.reduce_min(x)), 0)


def _sum_of_squares(x: tf.Tensor) -> tf.Tensor:
    return scalar(2.0, x.dtype) * tf.nn.l2_loss(x)


@memoized
def scalar(value: float, dtype: tf.DType) -> tf.Tensor:
    """Returns a number as a tensor, the same one for all variables of an update."""
    return tf.constant(value, dtype)


_NONE: Mapping[int, Scalar] = types.MappingProxyType({})
_in_time: ContextVar[Mapping[int, Scalar]] = ContextVar("in_time", default=_NONE)


@contextlib.contextmanager
def in_time(values: Mapping[int, Scalar]) -> Iterator[None]:
    """A context in which `current` takes the values of schedules from a dict, by their `id`."""
    token = _in_time.set(values)
    try:
        yield
    finally:
        _in_time.reset(token)


def current(argument: NumberLike, t: tf.Tensor) -> tf.Tensor:
    """Returns an argument at update `t`, counted from 1: a number, or the value of a schedule.

    In an update the value of a schedule is the one that was checked together with the learning
    rate. In a `step` that is called by itself it is computed from `t`.
    """
    if not callable(argument):
        return scalar(argument, t.dtype)
    value = _in_time.get().get(id(argument))
    return tf.cast(argument(t - 1) if value is None else value, t.dtype)


def running_mean(mean: tf.Tensor, x: tf.Tensor, beta: NumberLike, t: tf.Tensor) -> tf.Tensor:
    """Returns `beta * mean + (1 - beta) * x` for values `x` at update `t`.

    It adds a share of the difference to whichever of the two has the larger share. Otherwise a mean
    of squares with `beta` near 0, which forgets at once, would round away squares far below the
    last one.
    """
    share = current(beta, t)
    if callable(beta) or beta >= 0.5:
        return mean + (1 - share) * (x - mean)
    return x + share * (mean - x)


@memoized
def one_minus_power(beta: NumberLike, t: tf.Tensor) -> tf.Tensor:
    """Returns `1 - beta^t` without losing half of its digits at the first steps in float32.

    `beta` is rounded to the precision of `t`, as in the kernels whose averages are corrected. If it
    is a schedule, its value at update `t` counts.
    """
    return -tf.math.expm1(t * tf.math.log(current(beta, t)))
