"""Two replicas in one process, and what each of them is given."""

import functools

import tensorflow as tf


@functools.cache
def mirrored() -> tf.distribute.MirroredStrategy:
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def per_replica(values):
    """A value for each replica, to be passed to `strategy.run`."""
    return mirrored().experimental_distribute_values_from_function(
        lambda context: tf.constant(values[context.replica_id_in_sync_group])
    )


def row_steps(make, start):
    """An optimizer and a table of both replicas, and a step from the values and ids of each."""
    with mirrored().scope():
        table, optimizer = tf.Variable(start, name="table"), make()
        optimizer.build([table])

    def on_replica(values, ids):
        optimizer.apply([tf.IndexedSlices(values, ids)], [table])

    run = tf.function(lambda *both: mirrored().run(on_replica, args=both), autograph=False)
    return optimizer, table, lambda values, ids: run(per_replica(values), per_replica(ids))
