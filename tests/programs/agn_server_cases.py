"""AGN on parameter servers, as a cluster: `python -m programs.agn_server_cases CASES --out FOLDER`.

Run by `test_agn_servers.py`. It ends with code 0 when what is asserted holds.
"""

import argparse
import functools
import os
import pathlib
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from programs.strategy_cases import parameter_servers
from support import oracles, rounds
from tf_graft.processes.cluster import end_with_launcher

PERIOD = 5
ROUNDS = 500


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

    def done(self):
        return int(self.optimizer.rounds.numpy())

    def accuracy(self):
        x, y = self.train[1]
        return float(np.mean(np.argmax(self.model(x).numpy(), -1) == y))


@functools.cache
def learned(strategy):
    """What `plain` begins and `killed` goes on with."""
    return Problem(strategy, tg.AGN(tg.SGD(0.1, momentum=0.9), 2, PERIOD, tg.Adam(0.002)))


def plain(strategy, out):
    """Every round is counted, all state is on the servers, and the network learns."""
    coordinator, problem = tf.distribute.coordinator.ClusterCoordinator(strategy), learned(strategy)
    began = time.monotonic()
    results = [coordinator.schedule(problem.round, args=problem.batches()) for _ in range(ROUNDS)]
    coordinator.join()
    seconds = time.monotonic() - began
    optimizer = problem.optimizer
    assert problem.done() == ROUNDS, problem.done()
    assert int(optimizer.iterations.numpy()) == ROUNDS * PERIOD
    losses = [float(result.fetch()) for result in results]
    places = {variable.value.device for variable in optimizer.variables}
    assert all("/job:ps/" in place for place in places), places
    accuracy = problem.accuracy()
    (out / "result").write_text(f"{ROUNDS} {accuracy} {losses[0]} {losses[-1]} {seconds}")
    assert accuracy > 0.95, accuracy


def killed(strategy, out):
    """Goes on until it is told to stop, while workers are killed; alone it learns all of it."""
    coordinator, problem = tf.distribute.coordinator.ClusterCoordinator(strategy), learned(strategy)
    scheduled, before = 0, problem.done()
    while before + scheduled < ROUNDS or not (out / "stop").exists():
        for _ in range(20):
            coordinator.schedule(problem.round, args=problem.batches())
        coordinator.join()
        scheduled += 20
        (out / "scheduled").write_text(str(scheduled))
    kills, done = int((out / "stop").read_text()), problem.done() - before
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


SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
# What a worker takes rounds with: arguments of AGN, batches that are not finite in each round, and
# how many steps of a round are left, which is the period of the same in one process.
OPTIONS = {
    "skip": (lambda: tg.Adam(0.1), {}, [[1], [0], [4]], PERIOD - 1),
    "apply": (lambda: tg.SGD(0.1), {"nonfinite": "apply"}, [[], [3], []], PERIOD),
    "schedule": (
        lambda: tg.AdaGraft(tg.Adam(SCHEDULE), tg.SGD(1.0)),
        {"mode": "updates", "clipnorm": 0.5, "loss_scale_factor": 64.0},
        [[], [], []],
        PERIOD,
    ),
    "accumulation": (
        lambda: tg.Adam(0.1),
        {"gradient_accumulation_steps": 2, "global_clipnorm": 0.5},
        [[0], [7], [5]],  # each spoils one step
        PERIOD - 1,
    ),
    "exact": (
        lambda: tg.SGD(0.1, momentum=0.9),
        {"sparse": "exact", "gradient_accumulation_steps": 2, "nonfinite": "apply"},
        [[], [], []],
        PERIOD,
    ),
}


def table_problem():
    """Variables, and a loss: a table of which not all rows are touched, a matrix and a scalar."""
    random = np.random.default_rng(0)
    shapes = {"table": (6, 3), "kernel": (3, 2), "scale": ()}
    model = {
        path: keras.Variable(random.normal(size=shape).astype("float32"), name=path)
        for path, shape in shapes.items()
    }
    model["kernel"].constraint = keras.constraints.MaxNorm(1.5)

    def loss(ids, factors):
        rows = tf.gather(model["table"], ids)
        return tf.reduce_sum((tf.matmul(rows, model["kernel"]) + model["scale"]) * factors)

    return model, loss


def batches_of(lengths, bad):
    """For each round, rows and factors of its batches: NaN in those named."""
    random = np.random.default_rng(1)
    for length, spoiled in zip(lengths, bad, strict=True):
        factors = random.normal(size=(length, 4, 2)).astype("float32")
        factors[spoiled, 0, 0] = np.nan
        yield random.integers(0, 5, (length, 4)), factors


def options(strategy, out):
    """One worker's rounds equal the steps of AGN in one process, whatever it was given."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    for name, (child, given, bad, period) in OPTIONS.items():
        micro = given.get("gradient_accumulation_steps", 1)
        assert_as_in_one_process(
            name,
            (strategy, coordinator),
            lambda period, child=child, given=given: tg.AGN(
                child(), communication_period=period, **given
            ),
            list(batches_of([PERIOD * micro] * 3, bad)),
            period,
        )
        print(name, "right", flush=True)
    # Rounds of one batch: what is accumulated stays on the worker until there is enough for a step.
    for reset in (False, True):
        assert_as_in_one_process(
            f"left over, reset_local_state={reset}",
            (strategy, coordinator),
            lambda _, reset=reset: tg.AGN(
                tg.SGD(0.1),
                communication_period=1,
                reset_local_state=reset,
                gradient_accumulation_steps=2,
            ),
            list(batches_of([1] * 5, [[]] * 5)),
            1,
        )
    assert_raises(strategy, coordinator)


def round_on(strategy, optimizer):
    """The variables on the servers, and a function of a round's batches."""
    with strategy.scope():
        model, loss = table_problem()
        optimizer.build(list(model.values()))
    return model, tf.function(lambda *xs: optimizer.round(loss, xs), autograph=False)


def assert_as_in_one_process(name, cluster, make, data, period):
    strategy, coordinator = cluster
    optimizer, here = make(PERIOD), make(period)
    there, function = round_on(strategy, optimizer)
    model, loss = table_problem()
    here.build(list(model.values()))

    @tf.function(autograph=False)
    def step(ids, factors):
        with tf.GradientTape() as tape:
            scaled = here.scale_loss(loss(ids, factors))
        raw = [variable.value for variable in model.values()]
        here.apply(tape.gradient(scaled, raw), raw)

    for batches in data:
        coordinator.schedule(function, args=tuple(map(tf.constant, batches)))
        coordinator.join()
        for batch in zip(*batches, strict=True):
            step(*map(tf.constant, batch))
        for path, value in here.center_values().items():
            np.testing.assert_allclose(
                there[path].numpy(), value, rtol=2e-6, atol=2e-6, err_msg=f"{name}: {path}"
            )
    for count in ("iterations", "skipped_steps", "rounds"):
        numbers = [int(getattr(o, count).numpy()) for o in (optimizer, here)]
        assert numbers[0] == numbers[1], (name, count, numbers)


def assert_raises(strategy, coordinator):
    """What is not finite ends the round before anything is changed; the next one is as ever."""
    optimizer = tg.AGN(tg.Adam(0.1), communication_period=PERIOD, nonfinite="raise")
    model, function = round_on(strategy, optimizer)

    def state():
        return {v.path: v.numpy() for v in (*model.values(), *optimizer.variables)}

    for bad in ([], [2], []):
        before = state()
        ((ids, factors),) = batches_of([PERIOD], [bad])
        coordinator.schedule(function, args=(tf.constant(ids), tf.constant(factors)))
        if bad:
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"AGN\.round: a gradient is"):
                coordinator.join()
            assert all(np.array_equal(x, before[path]) for path, x in state().items())
        else:
            coordinator.join()
    assert int(optimizer.rounds.numpy()) == 2


def short(strategy, out):
    """After a round of fewer batches, the slow weights go half the way to the fast ones, too."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    optimizer = tg.lookahead(tg.SGD(1.0), PERIOD, 0.5)
    with strategy.scope():
        w = keras.Variable([4.0], name="w")
        optimizer.build([w])
    function = tf.function(lambda x: optimizer.round(lambda g: tf.reduce_sum(g * w), (x,)))
    coordinator.schedule(function, args=(tf.constant([[1.0], [np.nan], [1.0]]),))  # to 3 and to 2
    coordinator.join()
    assert w.numpy().tolist() == [3.0]


CASES = {
    "plain": plain,
    "killed": killed,
    "followed": followed,
    "options": options,
    "short": short,
}


def main():
    end_with_launcher()
    arguments = argparse.ArgumentParser()
    arguments.add_argument("cases", choices=CASES, nargs="+")
    arguments.add_argument("--out", type=pathlib.Path, required=True)
    given = arguments.parse_args()
    strategy = parameter_servers(1)
    for case in given.cases:
        CASES[case](strategy, given.out)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
