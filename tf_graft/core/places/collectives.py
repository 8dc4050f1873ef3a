"""Sums and gathers over replicas that work inside control flow.

`ReplicaContext.all_reduce` of `MirroredStrategy` and `MultiWorkerMirroredStrategy` is a merge call,
which is not allowed in a branch of a `tf.cond`. In a graph this module uses the collective
operations themselves; either all replicas take the branch or none does.
"""

import collections
import functools
import itertools
import weakref
import zlib
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_graft.core import keras_contract
from tf_graft.core.places import replicas
from tf_graft.core.tensors import numerics, rows
from tf_graft.core.types import Gradient, MaskedGradient, Scalar, UniqueRows, VariableLike

MERGE = tf.distribute.MirroredStrategy | tf.distribute.MultiWorkerMirroredStrategy
OWN_GROUPS = 1 << 30  # strategies number their groups from 1
SHAPES = 32  # the number of shapes that one collective may have

_number = itertools.count()


class Numbers:
    """Numbers the collectives of one function equally on all replicas, which trace it in turn."""

    def __init__(self) -> None:
        self._made: list[int] = []
        self._used: dict[int, int] = collections.defaultdict(int)

    def next(self, replica: int) -> int:
        """Returns the number of a replica's next collective."""
        position = self._used[replica]
        self._used[replica] += 1
        if position == len(self._made):
            self._made.append(next(_number))
        return self._made[position]


_of_functions: weakref.WeakKeyDictionary[tf.Graph, Numbers] = weakref.WeakKeyDictionary()


def summed(
    values: Sequence[Gradient], rows_of: Sequence[int], variable: VariableLike
) -> list[Gradient]:
    """Sums dense and row-sparse tensors over the replicas, with one all-reduce for each dtype.

    The sum of `UniqueRows` is `tf.IndexedSlices`: its rows are in the order of the replicas and may
    repeat. Either every replica calls `summed` or none.

    Args:
        values: tensors, and row-sparse gradients in any form.
        rows_of: how many rows the variable of each value has.
        variable: a variable with a copy on each replica. The copy orders the replica's collectives:
            those of one copy run in order, and never wait for those of another replica; such a wait
            would be a deadlock.

    Raises:
        ValueError: compiled by XLA, where the replicas would deadlock.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return list(values)
    if keras_contract.in_xla() and isinstance(context.strategy, MERGE):
        raise ValueError(
            f"jit_compile=True on the replicas of a {type(context.strategy).__name__}: XLA does "
            "not compile what they send each other once a period; leave jit_compile out."
        )
    plain = [v.values if isinstance(v, MaskedGradient) else v for v in values]
    marks = [tf.cast(v.mask, tf.float32) for v in values if isinstance(v, MaskedGradient)]
    sums = _summed([*plain, *marks], [*rows_of, *[0] * len(marks)], variable)
    masks = iter([numerics.values(count) > 0 for count in sums[len(values) :]])
    return [
        v._replace(values=total, mask=next(masks)) if isinstance(v, MaskedGradient) else total
        for v, total in zip(values, sums, strict=False)
    ]


def _summed(
    values: Sequence[tf.Tensor | UniqueRows], rows_of: Sequence[int], variable: VariableLike
) -> list[Gradient]:
    """Sums what is no `MaskedGradient`: see `summed`."""
    context = tf.distribute.get_replica_context()
    given = [rows.as_slices(v) for v in values]
    if tf.executing_eagerly() or not isinstance(context.strategy, MERGE):
        return replicas.summed(given, rows_of)
    own = replicas.local(variable).handle
    sparse = [v for v in given if isinstance(v, tf.IndexedSlices)]
    dense = [v for v in given if not isinstance(v, tf.IndexedSlices)]
    sums, gathered = iter(_dense(dense, own)), iter(_gathered(sparse, own))
    return [next(gathered if isinstance(v, tf.IndexedSlices) else sums) for v in given]


def gathered(x: tf.Tensor, variable: VariableLike) -> tf.Tensor:
    """Returns the tensors of all replicas, of one shape, joined along the first axis; in a graph.

    Args:
        x: the calling replica's tensor, of a static shape.
        variable: orders the replica's collectives: see `summed`.
    """
    context = tf.distribute.get_replica_context()
    every = _collective(tf.raw_ops.CollectiveGatherV2, x, replicas.local(variable).handle)
    return tf.ensure_shape(every, [context.num_replicas_in_sync * x.shape[0], *x.shape[1:]])


def _dense(tensors: list[tf.Tensor], own: tf.Tensor) -> list[tf.Tensor]:
    result: list[tf.Tensor] = list(tensors)
    for dtype in dict.fromkeys(x.dtype for x in tensors):
        places = [i for i, x in enumerate(tensors) if x.dtype == dtype]
        flat = tf.concat([tf.reshape(tensors[i], [-1]) for i in places], 0)
        total = _reduced(flat, "Add", own)
        parts = tf.split(total, [tf.size(tensors[i]) for i in places])
        for i, part in zip(places, parts, strict=True):
            result[i] = tf.reshape(part, tf.shape(tensors[i]))
            result[i].set_shape(tensors[i].shape)
    return result


def _gathered(slices: list[tf.IndexedSlices], own: tf.Tensor) -> list[tf.IndexedSlices]:
    """Concatenates all replicas' rows; each sends as many as the longest has, or up to twice that.

    A collective can never change its shape, so there is one collective for each power of two.
    """
    if not slices:
        return []
    exponents = tf.stack([_exponent(tf.size(x.indices)) for x in slices])
    largest = tf.unstack(_reduced(exponents, "Max", own), len(slices))
    gather = tf.raw_ops.CollectiveGatherV2
    result = []
    for x, exponent in zip(slices, largest, strict=True):
        missing = tf.bitwise.left_shift(1, exponent) - tf.size(x.indices)
        indices = tf.pad(tf.cast(x.indices, tf.int64), [[0, missing]], constant_values=-1)
        values = tf.pad(x.values, [[0, missing], *[[0, 0]] * (x.values.shape.rank - 1)])
        every, found = (_collective(gather, y, own, exponent) for y in (indices, values))
        there = tf.reshape(tf.where(every >= 0), [-1])
        result.append(tf.IndexedSlices(tf.gather(found, there), tf.gather(every, there)))
    return result


def _exponent(length: tf.Tensor) -> tf.Tensor:
    """Returns the exponent of the smallest power of two that is at least a length."""
    powers = tf.constant([1 << i for i in range(SHAPES - 1)])
    return tf.reduce_sum(tf.cast(powers < length, tf.int32))


def _reduced(x: tf.Tensor, how: str, own: tf.Tensor) -> tf.Tensor:
    reduce = functools.partial(tf.raw_ops.CollectiveReduceV2, merge_op=how, final_op="Id")
    return _collective(reduce, x, own)


def _collective(
    operation: Callable[..., tf.Tensor], x: tf.Tensor, own: tf.Tensor, shape: Scalar = 0
) -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    strategy = context.strategy
    group = OWN_GROUPS | zlib.crc32(_devices(strategy).encode()) % OWN_GROUPS
    replica = int(tf.get_static_value(context.replica_id_in_sync_group))
    return operation(
        input=x,
        group_size=strategy.num_replicas_in_sync,
        group_key=group,
        instance_key=_numbers().next(replica) * SHAPES + shape,
        ordering_token=[own],
    )


def _numbers() -> Numbers:
    graph = tf.compat.v1.get_default_graph()
    while hasattr(graph.outer_graph, "outer_graph"):  # leaves all branches, which are graphs too
        graph = graph.outer_graph
    return _of_functions.setdefault(graph, Numbers())


def _devices(strategy: tf.distribute.Strategy) -> str:
    """Returns a text that names a strategy's devices and is the same on all workers."""
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return f"{strategy.num_replicas_in_sync} over all workers"
    return ",".join(strategy.extended.worker_devices)
