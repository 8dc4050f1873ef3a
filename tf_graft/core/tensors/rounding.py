"""Stochastic rounding to 16 or 24 bits, which is the same wherever it is done.

bfloat16 has the upper half of float32's bits. Noise is added to the lower half, which is then cut
off. So a number is rounded up as often as it is near the number above, and the mean over many
updates is exact; rounding to the nearest would lose every change below one part in 512.

With an error term, the upper 24 bits are kept: the nearest bfloat16, and what is missing in 8 bits.
Bits are read as whole numbers here, so that the next bfloat16 above is 65,536 away, whatever its
exponent, and the error term counts in units of 256.

The noise of an entry is a hash of numbers that are the same in every execution: the number of the
update, and the upper halves of the entry's weight and of its value before; if the entry is itself a
weight, of its gradient. No position is in it, so rows, padded rows and shares of a mesh get the
noise that they get in the whole variable.
"""

import zlib

import tensorflow as tf

from tf_graft.core.tensors.memo import memoized


def rounded(
    x: tf.Tensor, other: tf.Tensor, w: tf.Tensor, t: tf.Tensor, name: str, kept: int = 16
) -> tf.Tensor:
    """Returns float32 numbers of which only some upper bits are set, rounded up or down at random.

    Args:
        x: the numbers.
        other: what the noise of an entry depends on beside its weight, float32: the numbers that
            these replace, as they were stored, or the gradient.
        w: the weights before the update, of the same shape.
        t: the number of the update.
        name: the slot's role; another one gives other noise. Paths do not count, because Keras
            gives the layers of a loaded model others.
        kept: how many bits are kept, 16 or 24.
    """
    own = tf.bitwise.bitwise_xor(_upper(_bits(w)), _shifted(_bits(other), 16))
    noise = _shifted(_hashed(own + _key(t, name)), kept)
    lower = tf.constant(2 ** (32 - kept) - 1, tf.uint32)
    moved = _bits(x) + noise
    return tf.bitcast(moved - tf.bitwise.bitwise_and(moved, lower), tf.float32)


def split(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns numbers of 24 bits as the nearest bfloat16 and an error term, int8."""
    bits = tf.bitcast(x, tf.int32)
    upper = tf.bitwise.bitwise_and(bits + 0x8000, -0x10000)
    return tf.cast(tf.bitcast(upper, tf.float32), tf.bfloat16), tf.cast(
        (bits - upper) // 256, tf.int8
    )


def joined(x: tf.Tensor, error: tf.Tensor) -> tf.Tensor:
    """Returns the float32 numbers that `split` was given."""
    upper = tf.bitcast(tf.cast(x, tf.float32), tf.int32)
    return tf.bitcast(upper + 256 * tf.cast(error, tf.int32), tf.float32)


@memoized
def _key(t: tf.Tensor, name: str) -> tf.Tensor:
    """Returns the part of the noise that all entries share."""
    return _hashed(tf.cast(t, tf.uint32) + tf.constant(zlib.crc32(name.encode()), tf.uint32))


def _hashed(x: tf.Tensor) -> tf.Tensor:
    """Returns other numbers of 32 bits, each of which depends on all bits of its argument."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = tf.bitwise.bitwise_xor(x, _shifted(x, shift)) * tf.constant(factor, tf.uint32)
    return tf.bitwise.bitwise_xor(x, _shifted(x, 16))


def _bits(x: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(x, tf.uint32)


def _shifted(x: tf.Tensor, by: int) -> tf.Tensor:
    return tf.bitwise.right_shift(x, tf.constant(by, tf.uint32))


def _upper(x: tf.Tensor) -> tf.Tensor:
    return tf.bitwise.bitwise_and(x, tf.constant(0xFFFF0000, tf.uint32))
