"""Eigenvectors by Jacobi's rotations, which run on a mesh.

On a DTensor mesh, TensorFlow cannot run `tf.linalg.eigh` in a function. Rotations of pairs of rows
and columns are ordinary operations. No row is in two pairs of one turn. The pairs change from turn
to turn as in a round robin: in one sweep, each row is paired once with every other row.
"""

import tensorflow as tf

from tf_graft.algorithm import quotient

SWEEPS = 10  # errors fall quadratically: measured, 6 are enough for 4 rows and 9 for 128


@tf.function(autograph=False)  # on a mesh constants are tensors of the mesh only in a function
def eigenvectors(a: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the eigenvalues of symmetric matrices [n, b, b], ascending, and the eigenvectors."""
    side, odd = a.shape[-1], a.shape[-1] % 2
    half = (side + odd) // 2
    order = _next_turn(half)

    def turn(i: tf.Tensor, a: tf.Tensor, v: tf.Tensor) -> tuple[tf.Tensor, ...]:
        c, s = _rotation(a, half)
        a = _rotated(_rotated(a, c, s, -1), c, s, -2)
        a = tf.gather(tf.gather(a, order, axis=-1), order, axis=-2)
        return i + 1, a, tf.gather(_rotated(v, c, s, -1), order, axis=-1)

    a = tf.pad(a, [[0, 0], [0, odd], [0, odd]])
    v = tf.zeros_like(a) + _identity(2 * half, a.dtype)
    last = SWEEPS * (2 * half - 1)
    _, a, v = tf.while_loop(lambda i, a, v: i < last, turn, [tf.constant(0), a, v])
    values = _diagonal(a)[:, :side]
    ascending = tf.argsort(values, stable=True)
    vectors = tf.gather(v[:, :side, :side], ascending, axis=-1, batch_dims=1)
    return tf.gather(values, ascending, batch_dims=1), vectors


def _rotation(a: tf.Tensor, half: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns cosines and sines that make zeros at the pairs (i, i + half) of symmetric matrices.

    Reference:
        Golub and Van Loan, 2013, "Matrix computations", algorithm 8.5.1.
    """
    p, r = _diagonal(a[:, :half, :half]), _diagonal(a[:, half:, half:])
    q = _diagonal(a[:, :half, half:])
    x = (r - p) / 2
    tangent = quotient(tf.where(x < 0, -q, q), tf.abs(x) + tf.sqrt(x * x + q * q))
    cosine = quotient(tf.ones_like(tangent), tf.sqrt(1 + tangent * tangent))
    return cosine, tangent * cosine


def _rotated(x: tf.Tensor, c: tf.Tensor, s: tf.Tensor, axis: int) -> tf.Tensor:
    """Returns matrices with the halves of their rows (axis -2) or columns (-1) rotated in pairs."""
    other = -3 - axis
    c, s = tf.expand_dims(c, other), tf.expand_dims(s, other)
    first, second = tf.split(x, 2, axis)
    return tf.concat([first * c - second * s, first * s + second * c], axis)


def _next_turn(half: int) -> list[int]:
    """Returns which row each row is in the next turn of a round robin; the first one stays."""
    if half == 1:
        return [0, 1]
    top, bottom = list(range(half)), list(range(half, 2 * half))
    return [0, bottom[0], *top[1:-1], *bottom[1:], top[-1]]


def _diagonal(a: tf.Tensor) -> tf.Tensor:
    """Returns the diagonals of square matrices, by operations that run on a mesh."""
    return tf.reduce_sum(a * _identity(a.shape[-1], a.dtype), -1)


def _identity(size: int, dtype: tf.DType) -> tf.Tensor:
    """Returns an identity matrix, on a mesh too, where `tf.eye` is refused above some 10 kB."""
    rows = tf.range(size)
    return tf.cast(tf.equal(tf.expand_dims(rows, 1), rows), dtype)
