"""What an in-place kernel would add to the weights, with the weights left as they are."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

# TensorFlow gives each variable of this name a unique name.
ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"


class Scratch(NamedTuple):
    """A variable for one step: a `tf.function` cannot create a `tf.Variable` in every call."""

    handle: tf.Tensor


def added(weights: tf.Tensor, kernel: Callable[[Scratch], None]) -> tf.Tensor:
    """What `kernel` adds to a variable like `weights`: it runs on zeros, so nothing is rounded.

    Args:
        weights: has the shape and the dtype.
        kernel: a function of a variable, of which it uses the `handle`.
    """
    handle = tf.raw_ops.VarHandleOp(dtype=weights.dtype, shape=weights.shape, shared_name=ANONYMOUS)
    tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros(weights.shape, weights.dtype))
    kernel(Scratch(handle))
    result = tf.raw_ops.ReadVariableOp(resource=handle, dtype=weights.dtype)
    tf.raw_ops.DestroyResourceOp(resource=handle)
    return result
