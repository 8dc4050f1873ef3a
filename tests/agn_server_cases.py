"""AGN on parameter servers, as a cluster: `python agn_server_cases.py CASE --out FOLDER`.

Run by `test_agn_servers.py`. It ends with code 0 when what is asserted holds.
"""

import argparse
import os
import pathlib
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import oracles
import pytest
import rounds
import tensorflow as tf
from strategy_cases import parameter_servers

import tf_graft as tg
from tf_graft.training.processes import end_with_launcher

PERIOD = 5
ROUNDS = 2000


def digits():
    """Images and labels: (training, test)."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, test = (x / 16.0).astype("float32"), np.arange(len(x)) % 5 == 0
    return (x[~test], y[~test].astype("int32")), (x[test], y[test].astype("int32"))


class Problem:
    """A network on the servers, and a round of it for a worker."""

    def __init__(self, strategy, optimizer):
        self.optimizer, self.train = optimizer, digits()
        self.random = np.random.default_rng(0)
        keras.utils.set_random_seed(1)
        with strategy.scope():
            self.model = keras.Sequential(
                [keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
            )
            optimizer.build(self.model.trainable_variables)
        self.round = tf.function(self._round, autograph=False)

    def _round(self, x, y):
        def loss(x, y):
            return tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(y, self.model(x, training=True))
            )

        return self.optimizer.round(loss, (x, y))

    def batches(self):
        x, y = self.train[0]
        rows = self.random.integers(0, len(x), (PERIOD, 32))
        return x[rows], y[rows]

    def accuracy(self):
        x, y = self.train[1]
        return float(np.mean(np.argmax(self.model(x).numpy(), -1) == y))


def plain(strategy, out):
    """Every round is counted, all state is on the servers, and the network learns."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    problem = Problem(strategy, tg.AGN(tg.SGD(0.1, momentum=0.9), 2, PERIOD, tg.Adam(0.002)))
    began = time.monotonic()
    results = [coordinator.schedule(problem.round, args=problem.batches()) for _ in range(ROUNDS)]
    coordinator.join()
    seconds = time.monotonic() - began
    optimizer = problem.optimizer
    assert int(optimizer.rounds.numpy()) == ROUNDS, optimizer.rounds.numpy()
    assert int(optimizer.iterations.numpy()) == ROUNDS * PERIOD
    losses = [float(result.fetch()) for result in results]
    places = {variable.value.device for variable in optimizer.variables}
    assert all("/job:ps/" in place for place in places), places
    accuracy = problem.accuracy()
    (out / "result").write_text(f"{ROUNDS} {accuracy} {losses[0]} {losses[-1]} {seconds}")
    assert accuracy > 0.95, accuracy


def killed(strategy, out):
    """Goes on until it is told to stop, while workers are killed."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    problem = Problem(strategy, tg.AGN(tg.SGD(0.1, momentum=0.9), 2, PERIOD, tg.Adam(0.002)))
    scheduled = 0
    while scheduled < ROUNDS or not (out / "stop").exists():
        for _ in range(20):
            coordinator.schedule(problem.round, args=problem.batches())
        coordinator.join()
        scheduled += 20
        (out / "scheduled").write_text(str(scheduled))
    kills, done = int((out / "stop").read_text()), int(problem.optimizer.rounds.numpy())
    # Each round runs at least once: again when its worker is killed before it has answered.
    assert scheduled <= done <= scheduled + kills, (scheduled, done, kills)
    accuracy = problem.accuracy()
    (out / "result").write_text(f"{scheduled} {done} {kills} {accuracy}")
    assert accuracy > 0.95, accuracy


def followed(strategy, out):
    """One worker does as the NumPy model: its momentum stays with it from round to round."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    for mode, reset in (("gradients", False), ("updates", False), ("gradients", True)):
        assert_followed(strategy, coordinator, mode, reset)


def assert_followed(strategy, coordinator, mode, reset):
    start = {"w": np.float32([[1.0, 2.0], [3.0, 4.0]])}
    values = np.random.default_rng(0).normal(size=(6, PERIOD, 2, 2)).astype("float32")
    values[2, 1, 0, 0] = np.nan  # a step that is skipped: the mean is over the others
    child = tg.SGD(0.25, momentum=0.9)
    optimizer = tg.AGN(child, communication_period=PERIOD, mode=mode, reset_local_state=reset)
    with strategy.scope():
        w = keras.Variable(start["w"], name="w")
        optimizer.build([w])

    def function(x):
        return optimizer.round(lambda g: tf.reduce_sum(g * w), (x,))

    function = tf.function(function, autograph=False)
    local = rounds.by(oracles.sgd, 0.25, momentum=0.9)
    center = rounds.by(oracles.sgd, 1.0) if mode == "updates" else local
    truth = rounds.Rounds(start, local, center, 10**6, 1, mode == "updates", reset)
    for number, x in enumerate(values, 1):
        coordinator.schedule(function, args=(tf.constant(x),))
        coordinator.join()
        for g in x:
            truth.local_step(0, {"w": g})
        truth.push([0])
        np.testing.assert_allclose(w.numpy(), truth.c["w"], rtol=2e-6, atol=2e-6)
        assert int(optimizer.rounds.numpy()) == number
    assert int(optimizer.iterations.numpy()) == values.shape[0] * PERIOD - 1
    with pytest.raises(ValueError, match=r"schedule functions that call AGN\.round"):
        optimizer.apply([tf.ones([2, 2])], [w])


CASES = {"plain": plain, "killed": killed, "followed": followed}


def main():
    end_with_launcher()
    arguments = argparse.ArgumentParser()
    arguments.add_argument("case", choices=CASES)
    arguments.add_argument("--out", type=pathlib.Path, required=True)
    given = arguments.parse_args()
    CASES[given.case](parameter_servers(1), given.out)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
