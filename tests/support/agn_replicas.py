"""AGN on the replicas of a strategy, held against the model of `rounds.py` at every step."""

import numpy as np
import tensorflow as tf

import tf_graft as tg
from support import oracles, rounds
from support.samples import variables, weights

SHAPES = {"table": (6, 3), "kernel": (4, 3), "bias": (3,), "scale": ()}
RATE = 0.125


def assert_close(actual, expected, atol=2e-6):
    for path, value in expected.items():
        np.testing.assert_allclose(actual[path], value, rtol=2e-6, atol=atol, err_msg=path)


def shares(form, count, steps):
    """For each step and each replica, a gradient by path and the rows of the table's."""
    random = np.random.default_rng(11)
    result = []
    for _ in range(steps):
        each = []
        for replica in range(count):
            rows = random.integers(0, 5, 2 + replica) if form == "rows" else np.arange(6)
            shapes = SHAPES | {"table": (len(rows), 3)}
            g = {p: random.normal(size=s).astype("float32") for p, s in shapes.items()}
            each.append((rows.astype("int64"), g))
        result.append(each)
    return result


def whole(rows, g):
    """A replica's gradient with the table's as the dense one."""
    table = np.zeros(SHAPES["table"])
    np.add.at(table, rows, g["table"].astype("float64"))
    return g | {"table": table}


def assert_replicas_follow(strategy, form, graph, period, steps=7, first=0):
    """Each replica's local copy and the center follow the model at every step.

    `first` is the number of this process's first replica.
    """
    count = strategy.num_replicas_in_sync
    with strategy.scope():
        model = variables(weights(SHAPES))
        optimizer = tg.AGN(tg.SGD(RATE), communication_period=period)
        optimizer.build(list(model.values()))

    def step(rows, *values):
        def on_replica(rows, *values):
            table = tf.IndexedSlices(values[0], rows) if form == "rows" else values[0]
            optimizer.apply([table, *values[1:]], list(model.values()))

        strategy.run(on_replica, args=(rows, *values))

    step = tf.function(step, reduce_retracing=True) if graph else step
    sgd = rounds.by(oracles.sgd, RATE)
    truth = rounds.Rounds(weights(SHAPES), sgd, sgd, period, count)

    def distributed(values):
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(values[context.replica_id_in_sync_group])
        )

    for number, each in enumerate(shares(form, count, steps)):
        columns = zip(*(g.values() for _, g in each), strict=True)
        step(distributed([rows for rows, _ in each]), *map(distributed, columns))
        truth.steps_together([whole(rows, g) for rows, g in each], number)
        for path, variable in model.items():
            copies = strategy.experimental_local_results(variable.value)
            for replica, copy in enumerate(copies, first):
                right = truth.workers[replica].w[path]
                np.testing.assert_allclose(copy.numpy(), right, rtol=2e-6, atol=2e-6)
    assert int(optimizer.rounds.numpy()) == truth.rounds == steps // period
    assert_close(optimizer.center_values(), truth.c)
    optimizer.finalize_variable_values(list(model.values()))
    for path, variable in model.items():
        for copy in strategy.experimental_local_results(variable.value):
            np.testing.assert_array_equal(copy.numpy(), optimizer.center_values()[path])
