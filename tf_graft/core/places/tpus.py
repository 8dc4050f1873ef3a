"""Sums over the replicas of a TPU, which requires static shapes and sums dense tensors only.

XLA compiles one program for all replicas, in which the size of every tensor is known.
"""

import functools
from collections.abc import Sequence

import tensorflow as tf

from tf_graft.core import keras_contract
from tf_graft.core.tensors import rows
from tf_graft.core.types import Gradient, MaskedGradient

KINDS = tf.distribute.TPUStrategy | tf.distribute.experimental.TPUStrategy


def tracing() -> bool:
    """Returns whether the code being traced will run on a TPU, which emulates float64."""
    return isinstance(tf.distribute.get_strategy(), KINDS) and keras_contract.in_xla()


def summed(gradients: Sequence[Gradient], rows_of: Sequence[int]) -> list[Gradient]:
    """Returns the gradients summed over the replicas, in the calling replica's context.

    Row-sparse gradients contain the rows of all replicas, in the order of the replicas, and rows
    may repeat. If the number of a replica's rows is known only at run time (as for a smaller last
    batch), the total has no static size, and the gradients become `MaskedGradient`s.

    Args:
        gradients: dense or row-sparse gradients.
        rows_of: the number of rows of each gradient's variable.
    """
    context = tf.distribute.get_replica_context()
    static = [_static(g, count) for g, count in zip(gradients, rows_of, strict=True)]
    add = functools.partial(context.all_reduce, tf.distribute.ReduceOp.SUM)
    return [_like(g, tuple(map(add, _dense(g, context)))) for g in static]


def _static(gradient: Gradient, count: int) -> Gradient:
    sizes_vary = isinstance(gradient, tf.IndexedSlices) and gradient.values.shape[0] is None
    return rows.coalesced(gradient, count, masked=True) if sizes_vary else gradient


def _dense(gradient: Gradient, context: tf.distribute.ReplicaContext) -> tuple[tf.Tensor, ...]:
    """Returns the dense tensors whose sums make up the sum of the gradients."""
    if isinstance(gradient, MaskedGradient):
        return gradient.values, tf.cast(gradient.mask, tf.int32)
    if isinstance(gradient, tf.IndexedSlices):  # a TPU cannot sum int64
        both = gradient.values, tf.cast(gradient.indices, tf.int32)
        return tuple(_in_its_place(x, context) for x in both)
    return (gradient,)


def _in_its_place(x: tf.Tensor, context: tf.distribute.ReplicaContext) -> tf.Tensor:
    """Stacks a tensor, at the calling replica's position, with zeros for the other replicas."""
    mine = tf.equal(tf.range(context.num_replicas_in_sync), context.replica_id_in_sync_group)
    # A product with 0 and 1 would turn infinities into NaN.
    return tf.where(tf.reshape(mine, [-1] + [1] * x.shape.rank), x, tf.zeros([], x.dtype))


def _like(gradient: Gradient, sums: tuple[tf.Tensor, ...]) -> Gradient:
    if isinstance(gradient, MaskedGradient):
        return gradient._replace(values=sums[0], mask=sums[1] > 0)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(*(tf.reshape(x, [-1, *x.shape[2:]]) for x in sums))
    return sums[0]
