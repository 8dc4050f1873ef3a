"""Sums over replicas that may stand in control flow.

`ReplicaContext.all_reduce` of `MirroredStrategy` and `MultiWorkerMirroredStrategy` is a merge call,
which no branch of a `tf.cond` may hold. In a graph the collective operations themselves are used:
in a branch that all replicas take, or none does.
"""

import collections
import functools
import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_graft.core import replicas

MERGE = tf.distribute.MirroredStrategy | tf.distribute.MultiWorkerMirroredStrategy
OWN_GROUPS = 1 << 30  # strategies number their groups from 1

# For each group of devices and each replica in it, the numbers of its collectives. Replicas trace
# the same code in the same order, so that they agree.
_numbers: dict[tuple[int, int], Iterator[int]] = collections.defaultdict(itertools.count)


def summed(values: Sequence[Any]) -> list[Any]:
    """Dense and row-sparse tensors summed over the replicas: one all-reduce for each dtype.

    The rows of a sum stand in the order of the replicas and may repeat. Every replica has to call
    it, or none.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return list(values)
    if tf.executing_eagerly() or not isinstance(context.strategy, MERGE):
        return replicas.summed(values)
    sparse = [v for v in values if isinstance(v, tf.IndexedSlices)]
    dense = [v for v in values if not isinstance(v, tf.IndexedSlices)]
    sums, gathered = iter(_dense(dense)), iter(_gathered(sparse))
    return [next(gathered if isinstance(v, tf.IndexedSlices) else sums) for v in values]


def _dense(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    result: list[Any] = list(tensors)
    for dtype in dict.fromkeys(x.dtype for x in tensors):
        places = [i for i, x in enumerate(tensors) if x.dtype == dtype]
        flat = tf.concat([tf.reshape(tensors[i], [-1]) for i in places], 0)
        total = _reduced(flat, "Add")
        parts = tf.split(total, [tf.size(tensors[i]) for i in places])
        for i, part in zip(places, parts, strict=True):
            result[i] = tf.reshape(part, tf.shape(tensors[i]))
            result[i].set_shape(tensors[i].shape)
    return result


def _gathered(slices: list[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
    """All replicas' rows one after the other; each replica sends as many as the longest has."""
    if not slices:
        return []
    lengths = tf.stack([tf.size(x.indices) for x in slices])
    longest = tf.unstack(_reduced(lengths, "Max"), len(slices))
    result = []
    for x, length in zip(slices, longest, strict=True):
        missing = length - tf.size(x.indices)
        indices = tf.pad(tf.cast(x.indices, tf.int64), [[0, missing]], constant_values=-1)
        rank = x.values.shape.rank
        values = tf.pad(x.values, [[0, missing], *[[0, 0]] * (rank - 1)])
        every = _collective(tf.raw_ops.CollectiveGatherV2, indices)
        there = tf.reshape(tf.where(every >= 0), [-1])
        rows = tf.gather(_collective(tf.raw_ops.CollectiveGatherV2, values), there)
        result.append(tf.IndexedSlices(rows, tf.gather(every, there)))
    return result


def _reduced(x: tf.Tensor, how: str) -> tf.Tensor:
    reduce = functools.partial(tf.raw_ops.CollectiveReduceV2, merge_op=how, final_op="Id")
    return _collective(reduce, x)


def _collective(operation: Callable[..., tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    strategy = context.strategy
    group = OWN_GROUPS | zlib.crc32(_devices(strategy).encode()) % OWN_GROUPS
    replica = int(tf.get_static_value(context.replica_id_in_sync_group))
    return operation(
        input=x,
        group_size=strategy.num_replicas_in_sync,
        group_key=group,
        instance_key=next(_numbers[group, replica]),
        ordering_token=[],
    )


def _devices(strategy: tf.distribute.Strategy) -> str:
    """The same text on all workers, another for other devices."""
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return f"{strategy.num_replicas_in_sync} over all workers"
    return ",".join(strategy.extended.worker_devices)
