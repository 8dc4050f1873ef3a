"""The machine's floor: the time an in-place add takes to move as many bytes as an update must."""

import tensorflow as tf

from benchmarks.cases import Candidate

SIZE = 25_000_000
MOVED = 12 * SIZE  # bytes: two reads and a write of float32


def adding() -> Candidate:
    """Prepares `a += b`, which measures the bandwidth of the machine."""
    a, b = tf.Variable(tf.zeros([SIZE])), tf.Variable(tf.ones([SIZE]))

    @tf.function
    def add() -> None:
        a.assign_add(b)

    return Candidate(lambda: add, lambda: [a[:1]])
