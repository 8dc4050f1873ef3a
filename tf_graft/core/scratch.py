"""What an in-place kernel would add to the weights, without the weights."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

# TensorFlow gives each variable of this name a name of its own.
ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"


class Scratch(NamedTuple):
    """A variable that lives for one step; in a `tf.function` no `tf.Variable` could be made."""

    handle: tf.Tensor


def added(weights: tf.Tensor, kernel: Callable[[Any], None]) -> tf.Tensor:
    """What `kernel` adds to a variable like `weights`: it is run on zeros, so nothing is rounded.

    Args:
        weights: gives shape and dtype.
        kernel: a function of the variable (its `handle`).
    """
    handle = tf.raw_ops.VarHandleOp(dtype=weights.dtype, shape=weights.shape, shared_name=ANONYMOUS)
    tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros(weights.shape, weights.dtype))
    kernel(Scratch(handle))
    result = tf.raw_ops.ReadVariableOp(resource=handle, dtype=weights.dtype)
    tf.raw_ops.DestroyResourceOp(resource=handle)
    return result
