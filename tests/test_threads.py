"""Steps that several threads take eagerly: none is lost."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg

THREADS, STEPS = 4, 25
MADE = {
    "sgd": lambda: tg.SGD(1.0, momentum=0.5),
    "adam": lambda: tg.Adam(0.5),
    "graft": lambda: tg.AdaGraft(tg.Adam(0.5), tg.SGD(1.0)),
    "averages": lambda: tg.Adagrad(0.5, use_ema=True, gradient_accumulation_steps=2),
    "scaled": lambda: tg.MixedPrecision(tg.Adam(0.5), "backoff"),
    "agn": lambda: tg.AGN(tg.Adam(0.5), communication_period=3),
}


def stepped(make, threads):
    """The weights, counters and state after all steps, taken by so many threads."""
    table = tf.Variable(tf.zeros([40, 8]), name="table")
    kernel = tf.Variable(tf.ones([40, 8]), name="kernel")
    optimizer = make()
    rows = tf.IndexedSlices(tf.ones([3, 8]), [1, 2, 2])
    together = threading.Barrier(threads)

    def work():
        together.wait()
        for _ in range(THREADS * STEPS // threads):
            scale = optimizer.loss_scale()
            scale = 1.0 if scale is None else scale
            scaled = tf.IndexedSlices(rows.values * scale, rows.indices)
            optimizer.apply([scaled, tf.ones([40, 8]) * scale], [table, kernel])

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return [table.numpy(), kernel.numpy(), *(v.numpy() for v in optimizer.variables)]


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_threads_take_as_many_steps_as_one(name):
    """The optimizer is built by one of them, too, whichever comes first."""
    for found, expected in zip(stepped(MADE[name], THREADS), stepped(MADE[name], 1), strict=True):
        np.testing.assert_array_equal(found, expected)
