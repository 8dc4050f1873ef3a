"""Runs an in-place kernel on a copy of the weights, to see what it adds."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from tf_graft.core.tensors import numerics

# TensorFlow gives each variable of this name a unique name.
ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"
_numbers = itertools.count()

Source: TypeAlias = Callable[[tf.DType, tf.TensorShape], tf.Tensor]


def create(dtype: tf.DType, shape: tf.TensorShape) -> tf.Tensor:
    """Creates the handle of a variable.

    In a SavedModel that is loaded, all these variables have one name, which is no longer replaced
    by a unique one. Therefore, each has a container of its own in a graph.
    """
    container = "" if tf.executing_eagerly() else f"scratch_{next(_numbers)}"
    return tf.raw_ops.VarHandleOp(
        dtype=dtype, shape=shape, shared_name=ANONYMOUS, container=container
    )


_source: ContextVar[Source] = ContextVar("source", default=create)


def handle(dtype: tf.DType, shape: tf.TensorShape) -> tf.Tensor:
    """Returns the handle of a variable that does not exist yet."""
    return _source.get()(dtype, shape)


@contextlib.contextmanager
def handles_from(source: Source) -> Iterator[None]:
    """A context in which handles come from `source`."""
    token = _source.set(source)
    try:
        yield
    finally:
        _source.reset(token)


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
    created = handle(like.dtype, like.shape)
    zeros = tf.fill(numerics.shape_of(like), numerics.negative(numerics.zero(like.dtype)))
    tf.raw_ops.AssignVariableOp(resource=created, value=zeros)
    try:
        yield Scratch(created, like)
    finally:
        tf.raw_ops.DestroyResourceOp(resource=created)


def added(weights: tf.Tensor, kernel: Callable[[Scratch], None]) -> tf.Tensor:
    """Returns the step that `kernel` adds to a variable like `weights`, without rounding.

    Args:
        weights: has the shape and the dtype.
        kernel: a function of a variable; it uses `handle`, and `value()`, which is `weights`.
    """
    with variable(weights) as moved:
        kernel(moved)
        step = tf.raw_ops.ReadVariableOp(resource=moved.handle, dtype=weights.dtype)
        step.set_shape(weights.shape)
        return step
