"""What only parameter servers show: counting at once, shards that are refused, killed workers.

A program, run by `test_strategies.py` as a cluster:
`python -m programs.server_cases CASES --out FOLDER`. It ends with code 0 when all assertions hold.
"""

import argparse
import os
import pathlib
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf

import tf_graft as tg
from programs.strategy_cases import parameter_servers
from tf_graft.processes.cluster import end_with_launcher

STEPS = 300


def problem(strategy, optimizer):
    """A table and a vector, and a step of ones for both."""
    with strategy.scope():
        table = keras.Variable(tf.zeros([4, 2]), name="table")
        bias = keras.Variable(tf.zeros([4]), name="bias")
        parts = tg.shards([table, bias])
        optimizer.build(parts)

    @tf.function
    def step():
        def on_worker():
            with tf.GradientTape() as tape:
                found = tf.nn.embedding_lookup(table.value, [0, 1, 2, 3])
                loss = tf.reduce_sum(found) + tf.reduce_sum(tf.convert_to_tensor(bias.value))
            optimizer.apply(tape.gradient(loss, parts), parts)
            return loss

        return strategy.run(on_worker)

    return table, bias, step


def counted(strategy, out):
    """Two workers at once: every update is counted, and sees the schedule."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    optimizer = tg.SGD(tg.schedules.PolyDecay(0.5, STEPS, power=1.0), name="optimizer")
    _, _, step = problem(strategy, optimizer)
    for _ in range(STEPS):
        coordinator.schedule(step)
    coordinator.join()
    assert int(optimizer.iterations.numpy()) == STEPS, optimizer.iterations.numpy()
    assert float(optimizer.learning_rate) == 0.0
    places = {variable.path: variable.value.device for variable in optimizer.variables}
    assert all("/job:ps/" in place for place in places.values()), places


def refused(strategy, out):
    """A divided Keras variable is no variable for an optimizer, and the error says what is."""
    with strategy.scope():
        kernel = keras.Variable(tf.zeros([4, 2]), name="kernel")
    for call in (tg.Adam().build, lambda given: tg.Adam().apply([tf.zeros([4, 2])], given)):
        try:
            call([kernel])
        except ValueError as error:
            message = str(error)
        assert message == (
            "Adam.build: 'kernel' is divided into 2 shards on parameter servers; take the "
            "gradients of tf_graft.shards(variables), and give the optimizer those."
        ), message
    parts = tg.shards([kernel])
    assert [part.name for part in parts] == [f"kernel/part_{i}:0" for i in range(2)]
    optimizer = tg.Adam(name="optimizer")
    with strategy.scope():
        optimizer.build(parts)
    for part in parts:
        (slot,) = [
            v
            for v in optimizer.variables
            if v.path == f"optimizer/{part.name.removesuffix(':0')}/momentum"
        ]
        assert slot.value.device == part.device  # each beside its shard


def killed(strategy, out):
    """Goes on until it is told to stop, while workers are killed; the counter is right."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    optimizer = tg.SGD(1.0, momentum=0.0, name="optimizer")
    _, bias, step = problem(strategy, optimizer)
    scheduled = 0
    while not (out / "stop").exists():
        for _ in range(20):
            coordinator.schedule(step)
        coordinator.join()
        scheduled += 20
        (out / "scheduled").write_text(str(scheduled))
        time.sleep(0.02)
    kills = int((out / "stop").read_text())
    done = int(optimizer.iterations.numpy())
    # Each step runs at least once: again when its worker is killed before it has answered.
    assert scheduled <= done <= scheduled + kills, (scheduled, done, kills)
    for value in bias.numpy():
        assert abs(-value - done) <= kills, (bias.numpy(), done, kills)
    (out / "result").write_text(f"{scheduled} {done} {kills}")


CASES = {"counted": counted, "refused": refused, "killed": killed}


def main():
    end_with_launcher()
    arguments = argparse.ArgumentParser()
    arguments.add_argument("cases", choices=CASES, nargs="+")
    arguments.add_argument("--out", type=pathlib.Path, required=True)
    given = arguments.parse_args()
    strategy = parameter_servers(2 if given.cases == ["refused"] else 1)
    for case in given.cases:
        CASES[case](strategy, given.out)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
