"""Runs an in-place kernel on a copy of the weights, to see what it adds."""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import tensorflow as tf

from tf_graft.core.tensors import numerics

# TensorFlow gives each variable of this name a unique name.
ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"


class Scratch(NamedTuple):
    """A variable for one step: a `tf.function` cannot create a `tf.Variable` in every call.

    Args:
        handle: what kernels change.
        weights: what it stands for.
    """

    handle: tf.Tensor
    weights: tf.Tensor

    def value(self) -> tf.Tensor:
        """The weights that a kernel which adds to this may read."""
        return self.weights


@contextlib.contextmanager
def variable(like: tf.Tensor) -> Iterator[Scratch]:
    """A variable of the shape and dtype of a tensor, full of negative zeros.

    Added to a number, or multiplied by zero and then added to it, that changes not even its sign.
    """
    handle = tf.raw_ops.VarHandleOp(dtype=like.dtype, shape=like.shape, shared_name=ANONYMOUS)
    zeros = tf.fill(tf.shape(like), -numerics.zero(like.dtype))
    tf.raw_ops.AssignVariableOp(resource=handle, value=zeros)
    try:
        yield Scratch(handle, like)
    finally:
        tf.raw_ops.DestroyResourceOp(resource=handle)


def added(weights: tf.Tensor, kernel: Callable[[Scratch], None]) -> tf.Tensor:
    """What `kernel` adds to a variable like `weights`: nothing is rounded.

    Args:
        weights: has the shape and the dtype.
        kernel: a function of a variable, of which it uses the `handle`, and `value()`: `weights`.
    """
    with variable(weights) as moved:
        kernel(moved)
        return tf.raw_ops.ReadVariableOp(resource=moved.handle, dtype=weights.dtype)
