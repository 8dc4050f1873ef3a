"""Inverse powers and eigenbases of symmetric matrices, with a check of each result."""

from collections.abc import Callable

import tensorflow as tf

Eigenvectors = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def inverse_power(
    a: tf.Tensor,
    exponent: float,
    epsilon: float,
    relative: bool = False,
    eigenvectors: Eigenvectors = tf.linalg.eigh,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `(a + epsilon * I)^-exponent`, and which of the results can be used.

    If rounding makes the least eigenvalue of a matrix negative, all eigenvalues are raised until it
    equals epsilon. A result cannot be used if the matrix or the result is not finite.

    Args:
        a: symmetric matrices without negative eigenvalues, of shape [n, b, b].
        exponent: the exponent, above 0.
        epsilon: a term added to the eigenvalues.
        relative: whether epsilon counts in units of the largest eigenvalue of each matrix.
        eigenvectors: returns eigenvalues, ascending, and eigenvectors.

    Returns:
        The powers, of shape [n, b, b], and booleans of shape [n].
    """
    values, vectors = eigenvectors(_finite(a))
    ridge = tf.constant(epsilon, a.dtype)
    if relative:
        largest = tf.reduce_max(values, -1, keepdims=True)
        ridge *= tf.where(largest > 0, largest, 1)
    negative = tf.minimum(tf.reduce_min(values, -1, keepdims=True), 0.0)
    positive = values - negative + ridge  # a graph would add up `x + y + ridge` anew
    powers = tf.math.rsqrt(positive) if exponent == 0.5 else positive**-exponent  # as a graph does
    result = tf.matmul(vectors * tf.expand_dims(powers, -2), vectors, transpose_b=True)
    return result, usable(a) & usable(result)


def eigenbasis(a: tf.Tensor, eigenvectors: Eigenvectors = tf.linalg.eigh) -> tf.Tensor:
    """Returns the eigenvectors of symmetric matrices as columns, the largest eigenvalue first.

    Their signs are such that the sum of each is not negative.

    Args:
        a: symmetric matrices, of shape [n, b, b]; those that are not finite count as zeros.
        eigenvectors: returns eigenvalues, ascending, and eigenvectors.
    """
    vectors = eigenvectors(_finite(a))[1]
    vectors = tf.gather(vectors, range(vectors.shape[-1])[::-1], axis=-1)  # for a mesh, no reverse
    return _signed(vectors, tf.reduce_sum(vectors, -2, keepdims=True))


def next_eigenbasis(a: tf.Tensor, basis: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a basis closer to the eigenvectors, by one power iteration and its orthogonal factor.

    The columns are sorted by the estimate `diag(basis^T a basis)` of the eigenvalues first, and
    keep their signs.

    Args:
        a: symmetric matrices, of shape [n, b, b].
        basis: orthogonal matrices of the same shape.

    Returns:
        The new bases, and the order of the columns of `basis` in them, of shape [n, b]. Where the
        result is not finite, both are those of `basis`.
    """
    moved = tf.matmul(_finite(a), basis)
    order = tf.argsort(tf.reduce_sum(basis * moved, -2), direction="DESCENDING", stable=True)
    moved = tf.gather(moved, order, axis=-1, batch_dims=1)
    result = tf.linalg.qr(moved)[0]
    result = _signed(result, tf.reduce_sum(result * moved, -2, keepdims=True))
    good = usable(a) & usable(result)
    same = tf.zeros_like(order) + tf.range(order.shape[-1])
    return chosen(good, result, basis), chosen(good, order, same)


def usable(x: tf.Tensor) -> tf.Tensor:
    """Returns which matrices of a batch are finite, booleans of shape [n]."""
    return tf.reduce_all(tf.math.is_finite(x), [-2, -1])


def chosen(good: tf.Tensor, new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
    """Returns the new matrices where they are good, and the old ones elsewhere."""
    return tf.where(tf.reshape(good, [-1] + [1] * (new.shape.rank - 1)), new, old)


def _signed(x: tf.Tensor, by: tf.Tensor) -> tf.Tensor:
    """Returns `x` with the other sign where `by` is negative."""
    return tf.where(by < 0, -x, x)


def _finite(a: tf.Tensor) -> tf.Tensor:
    """Returns matrices with zeros for those that are not finite, which `eigh` refuses."""
    return chosen(usable(a), a, tf.zeros_like(a))
