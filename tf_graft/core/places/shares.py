"""Work on a batch of tensors, of which each device computes a share and gathers the rest."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import keras_contract
from tf_graft.core.places import collectives
from tf_graft.core.types import VariableLike

R = TypeVar("R")


class Sharing(NamedTuple):
    """How devices divide a batch.

    Args:
        devices: the number of devices.
        mine: returns the calling device's share of a batch. It first appends so many entries of
            zeros that the length of the batch is a multiple of `devices`.
        whole: returns the batch of which each device has a share.
    """

    devices: int
    mine: Callable[[tf.Tensor, int], tf.Tensor]
    whole: Callable[[tf.Tensor], tf.Tensor]

    def __call__(self, function: Callable[..., R], *batches: Any) -> R:
        """Returns `function(*batches)`, of which each device computes its share.

        Args:
            function: a function of batches of any length, which computes each entry of a result
                from the same entries of all arguments. All results have the same dtype.
            *batches: tensors of the same first dimension, and structures of them.
        """
        if self.devices == 1:
            return function(*batches)
        length = tf.nest.flatten(batches)[0].shape[0]
        missing = -length % self.devices
        mine = tf.nest.map_structure(lambda x: self.mine(x, missing), batches)
        result = function(*mine)
        shapes = [[length, *x.shape[1:]] for x in tf.nest.flatten(result)]
        flat = [tf.reshape(x, [x.shape[0], -1]) for x in tf.nest.flatten(result)]
        rows = self.whole(tf.concat(flat, 1))[:length]
        ends = [sum(x.shape[1] for x in flat[: i + 1]) for i in range(len(flat))]
        parts = [rows[:, i:j] for i, j in zip([0, *ends], ends, strict=False)]
        given = [tf.reshape(x, shape) for x, shape in zip(parts, shapes, strict=True)]
        return tf.nest.pack_sequence_as(result, given)


ALONE = Sharing(1, lambda x, missing: x, tf.identity)


def of_replicas(variable: VariableLike) -> Sharing:
    """Returns how the replicas of the current strategy divide a batch; `ALONE` if they cannot.

    Replicas of a `MirroredStrategy` or `MultiWorkerMirroredStrategy` do in a graph, unless XLA
    compiles it.

    Args:
        variable: orders the replica's collectives: see `collectives.summed`.
    """
    context = tf.distribute.get_replica_context()
    if context is None or not isinstance(context.strategy, collectives.MERGE):
        return ALONE
    if tf.executing_eagerly() or keras_contract.in_xla():
        return ALONE
    count, replica = context.num_replicas_in_sync, context.replica_id_in_sync_group

    def mine(x: tf.Tensor, missing: int) -> tf.Tensor:
        x = _padded(x, missing)
        share, index = x.shape[0] // count, int(tf.get_static_value(replica))
        return x[index * share : (index + 1) * share]

    return Sharing(count, mine, lambda x: collectives.gathered(x, variable))


def of_mesh(mesh: dtensor.Mesh) -> Sharing:
    """Returns how the devices along the longest dimension of a mesh divide a batch."""
    longest = max(mesh.dim_names, key=mesh.dim_size)

    def mine(x: tf.Tensor, missing: int) -> tf.Tensor:
        specs = [longest, *[dtensor.UNSHARDED] * (x.shape.rank - 1)]
        x = whole(_padded(whole(x), missing))  # or DTensor would divide it before it is padded
        return dtensor.relayout(x, dtensor.Layout(specs, mesh))

    def whole(x: tf.Tensor) -> tf.Tensor:
        return dtensor.relayout(x, dtensor.Layout.replicated(mesh, x.shape.rank))

    return Sharing(mesh.dim_size(longest), mine, whole)


def _padded(x: tf.Tensor, missing: int) -> tf.Tensor:
    return tf.pad(x, [[0, missing], *[[0, 0]] * (x.shape.rank - 1)]) if missing else x
