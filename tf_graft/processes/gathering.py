"""Gathers values of all workers' replicas, outside of training steps."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf


def gathered(strategy: tf.distribute.Strategy, own: Sequence[np.ndarray]) -> np.ndarray:
    """Stacks arrays of equal shape and dtype, one of each replica; every worker must call it.

    Args:
        strategy: a strategy of replicas, in one process or in several.
        own: the arrays of this process's replicas.
    """
    stacked = np.stack(own)
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return stacked
    # Sent as bytes, because not every dtype can be sent.
    rows = stacked.reshape(len(own), -1).view("uint8").astype("int32")
    mine = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(rows[context.replica_id_in_sync_group % len(own)][np.newaxis])
    )
    every = strategy.experimental_local_results(_gathering(strategy)(mine))[0].numpy()
    return every.astype("uint8").view(stacked.dtype).reshape(-1, *stacked.shape[1:])


@functools.cache
def _gathering(
    strategy: tf.distribute.Strategy,
) -> Callable[[tf.distribute.DistributedValues], tf.distribute.DistributedValues]:
    """Returns the function that gathers, traced once for each length."""

    def on_replica(row: tf.Tensor) -> tf.Tensor:
        # The identity is on the replica's device, which TensorFlow asks for.
        return tf.distribute.get_replica_context().all_gather(tf.identity(row), axis=0)

    def on_replicas(rows: tf.distribute.DistributedValues) -> tf.distribute.DistributedValues:
        return strategy.run(on_replica, args=(rows,))

    return tf.function(on_replicas, autograph=False)
