"""Runs an in-place kernel on a copy of the weights, to see what it adds."""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import tensorflow as tf

from tf_graft.core.tensors import numerics

# TensorFlow gives each variable of this name a unique name.
ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"


class Scratch(NamedTuple):
    """A variable for one step; a `tf.function` cannot create a `tf.Variable` in every call.

    Args:
        handle: the handle that kernels change.
        weights: the weights that the variable stands for.
    """

    handle: tf.Tensor
    weights: tf.Tensor

    def value(self) -> tf.Tensor:
        """Returns the weights, which a kernel that adds to the variable may read."""
        return self.weights


@contextlib.contextmanager
def variable(like: tf.Tensor) -> Iterator[Scratch]:
    """Yields a variable of the shape and dtype of a tensor, filled with negative zeros.

    A negative zero that is added to a number, or first multiplied by zero, does not change even the
    number's sign.
    """
    handle = tf.raw_ops.VarHandleOp(dtype=like.dtype, shape=like.shape, shared_name=ANONYMOUS)
    zeros = tf.fill(numerics.shape_of(like), numerics.negative(numerics.zero(like.dtype)))
    tf.raw_ops.AssignVariableOp(resource=handle, value=zeros)
    try:
        yield Scratch(handle, like)
    finally:
        tf.raw_ops.DestroyResourceOp(resource=handle)


def added(weights: tf.Tensor, kernel: Callable[[Scratch], None]) -> tf.Tensor:
    """Returns the step that `kernel` adds to a variable like `weights`, without rounding.

    Args:
        weights: has the shape and the dtype.
        kernel: a function of a variable; it uses `handle`, and `value()`, which is `weights`.
    """
    with variable(weights) as moved:
        kernel(moved)
        return tf.raw_ops.ReadVariableOp(resource=moved.handle, dtype=weights.dtype)
