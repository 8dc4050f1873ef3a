"""AGN: contrib's recordings, and NumPy models of workers in turn and of replicas in lockstep."""

import contextlib
import json
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import tf_graft as tg
from support import column_runs, oracles, rounds
from support.agn_replicas import RATE, SHAPES, assert_close, assert_replicas_follow, shares
from support.replicas import mirrored, per_replica
from support.samples import gradients, slices, state_of, variables, weights
from tf_graft.agn import ScaledAGN
from tf_graft.processes.cluster import Cluster


def values_of(model):
    return {path: variable.numpy() for path, variable in model.items()}


# Contrib's recordings.

CASES = json.loads((Path(__file__).parent / "goldens" / "agn.json").read_text())["cases"]
REPRODUCED = [
    "contrib_unit_test_constant_minus1",
    "float64_momentum_nesterov",
    "float64_sgd",
    "num_worker_has_no_effect",
    "period1",
    "single_sgd_period3",
    "sparse_duplicates_momentum",
    "zero_gradients",
]
EAGERLY = ["single_sgd_period3", "sparse_duplicates_momentum"]
TREATED = ["nan_gradient", "single_adam_period4"]


def numbers(values):
    return np.array(values, dtype=object).astype(np.float64)


def optimizer_of(case, **options):
    given = dict(case["optimizer"])
    cls = given.pop("class")
    if cls == "Adam":
        names = {"beta1": "beta_1", "beta2": "beta_2"}
        given = {names.get(name, name): x for name, x in given.items()} | {"epsilon": 1e-8}
    # TensorFlow 1 holds hyperparameters in float32
    given = {k: float(np.float32(x)) if isinstance(x, float) else x for k, x in given.items()}
    period = case["communication_period"]
    return tg.AGN(getattr(tg, cls)(**given), communication_period=period, **options)


def gradients_of(case, step):
    for given in case["gradients"][step]:
        if "dense" in given:
            yield tf.constant(numbers(given["dense"]), case["dtype"])
        else:
            values = numbers(given["sparse"]["values"])
            yield slices(given["sparse"]["indices"], tf.constant(values, case["dtype"]))


def replay(case, optimizer, function):
    """(center, local copy, rounds) after each step."""
    model = variables({path: np.array(w, case["dtype"]) for path, w in case["initial"].items()})
    optimizer.build(list(model.values()))

    def apply(*given):
        optimizer.apply(list(given), list(model.values()))

    apply = tf.function(apply) if function else apply
    for step in range(len(case["gradients"])):
        apply(*gradients_of(case, step))
        center = list(optimizer.center_values().values())
        yield center, list(values_of(model).values()), int(optimizer.rounds.numpy())


def test_every_recording_has_its_place():
    assert sorted(CASES) == sorted(REPRODUCED + TREATED)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        (name, function)
        for name in REPRODUCED
        for function in (True, False)
        if function or name in EAGERLY
    ],
)
def test_reproduces_contrib(name, function):
    """Bit for bit but for what the recording rounds to nine digits."""
    case = CASES[name]
    found = replay(case, optimizer_of(case), function)
    for step, (center, local, count) in enumerate(found):
        assert count == case["rounds"][step]
        for actual, recorded in ((center, case["center"]), (local, case["local"])):
            for value, expected in zip(actual, recorded[step], strict=True):
                np.testing.assert_array_max_ulp(
                    value, numbers(expected).astype(case["dtype"]), maxulp=1
                )


def test_the_comparison_notices_another_period():
    case = CASES["single_sgd_period3"] | {"communication_period": 2}
    found = [center[0] for center, *_ in replay(case, optimizer_of(case), False)]
    right = [numbers(center[0]) for center in case["center"]]
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(found, right, rtol=1e-3)


def test_the_bias_correction_of_the_center_is_its_own():
    """`single_adam_period4`: the center used that of the worker, of `period` steps more a round."""
    case = CASES["single_adam_period4"]
    adam = rounds.by(oracles.adam, float(np.float32(0.1)), epsilon=1e-8)
    truth = rounds.Rounds(case["initial"], adam, adam, 4)
    found = list(replay(case, optimizer_of(case), True))
    for step, (center, local, _) in enumerate(found):
        truth.step(
            0, dict(zip(truth.c, (g.numpy() for g in gradients_of(case, step)), strict=True))
        )
        assert_close(dict(zip(truth.c, center, strict=True)), truth.c)
        assert_close(dict(zip(truth.c, local, strict=True)), truth.workers[0].w)
    first = np.array(case["initial"]["v1"]) - found[3][0][1]
    np.testing.assert_allclose(np.abs(first), 0.1, rtol=1e-4)  # as Adam's first step is
    recorded = np.array(case["initial"]["v1"]) - numbers(case["center"][3][1])
    assert np.abs(recorded).max() < 0.07
    assert found[2][1][1].tobytes() != found[3][1][1].tobytes()


def test_what_is_not_finite_never_reaches_the_center():
    """`nan_gradient`: it did, for good."""
    case = CASES["nan_gradient"]
    sgd = rounds.by(oracles.sgd, 0.1)
    truth = rounds.Rounds(case["initial"], sgd, sgd, case["communication_period"])
    optimizer = optimizer_of(case)
    for step, (center, *_) in enumerate(replay(case, optimizer, False)):
        truth.step(
            0, dict(zip(truth.c, (g.numpy() for g in gradients_of(case, step)), strict=True))
        )
        assert_close(dict(zip(truth.c, center, strict=True)), truth.c)
    assert np.isnan(numbers(case["center"][-1][0])).any()
    assert int(optimizer.skipped_steps.numpy()) == 1
    assert int(optimizer.rounds.numpy()) == 1  # three gradients were finite


# One process, against the model.

CHILDREN = {
    "sgd": (lambda: tg.SGD(RATE), rounds.by(oracles.sgd, RATE)),
    "momentum": (
        lambda: tg.SGD(RATE, momentum=0.9, nesterov=True),
        rounds.by(oracles.sgd, RATE, momentum=0.9, nesterov=True),
    ),
    "adam": (lambda: tg.Adam(RATE), rounds.by(oracles.adam, RATE)),
    "keras_adam": (lambda: keras.optimizers.Adam(RATE), rounds.by(oracles.adam, RATE)),
    "lars": (lambda: tg.LARS(RATE, eeta=0.5), rounds.by(oracles.lars, RATE, eeta=0.5)),
}
MODES = ("gradients", "updates")


def assert_follows(optimizer, truth, steps=10, function=False):
    model = variables(weights(SHAPES))
    optimizer.build(list(model.values()))

    def apply(g):
        optimizer.apply([g[path] for path in model], list(model.values()))

    apply = tf.function(apply) if function else apply
    for g in gradients(steps, SHAPES):
        apply({path: tf.constant(x) for path, x in g.items()})
        truth.step(0, g)
        assert_close(values_of(model), truth.workers[0].w, atol=1e-5)
        assert_close(optimizer.center_values(), truth.c, atol=1e-5)
    assert int(optimizer.rounds.numpy()) == truth.rounds
    assert int(optimizer.iterations.numpy()) == steps


@pytest.mark.parametrize(
    ("child", "mode", "reset"),
    [
        (child, mode, i % 2 == j)
        for i, child in enumerate(CHILDREN)
        for j, mode in enumerate(MODES)
        if child in ("momentum", "adam") or i // 2 % 2 == j
    ],
)
def test_follows_the_model(child, mode, reset):
    make, local = CHILDREN[child]
    center = local if mode == "gradients" else rounds.by(oracles.sgd, 1.0)
    optimizer = tg.AGN(make(), communication_period=3, mode=mode, reset_local_state=reset)
    truth = rounds.Rounds(weights(SHAPES), local, center, 3, 1, mode == "updates", reset)
    assert_follows(optimizer, truth, function=child == "adam")


@pytest.mark.parametrize("make", [lambda: tg.NAdam(0.1), lambda: tg.Prodigy(d0=0.01)])
def test_a_reset_is_also_of_state_that_all_variables_share(make):
    w, moved = tf.Variable([0.0]), []
    optimizer = tg.AGN(make(), 1, 3, tg.SGD(1.0), mode="updates", reset_local_state=True)
    for _ in range(9):
        before = w.numpy()
        optimizer.apply([tf.constant([1.0])], [w])
        moved.append(w.numpy() - before)
    fresh, alone, first = tf.Variable([0.0]), make(), []
    for _ in range(2):
        before = fresh.numpy()
        alone.apply([tf.constant([1.0])], [fresh])
        first.append(fresh.numpy() - before)
    for start in (0, 3, 6):  # the third step of a round contains the pull
        np.testing.assert_allclose(moved[start : start + 2], first, rtol=1e-4)


def test_the_centers_copy_excludes_the_variables_of_an_optimizer_of_keras():
    a, b = (keras.Variable([1.0], name=name) for name in "ab")
    stock = keras.optimizers.SGD(0.1, weight_decay=0.5)
    stock.exclude_from_weight_decay(var_list=[b])
    optimizer = tg.AGN(stock, communication_period=1)
    optimizer.apply([tf.constant([0.0])] * 2, [a, b])
    np.testing.assert_allclose([a.numpy()[0], b.numpy()[0]], [0.95, 1.0], rtol=1e-6)


def test_a_graft_as_child():
    child = lambda: tg.AdaGraft(tg.SGD(RATE), tg.SGD(1.0))  # noqa: E731 - SGD, up to rounding
    sgd = rounds.by(oracles.sgd, RATE)
    assert_follows(
        tg.AGN(child(), communication_period=2), rounds.Rounds(weights(SHAPES), sgd, sgd, 2)
    )


def test_diloco_and_post_local_sgd_are_settings():
    """The difference of center and local copy, through Nesterov, or averaged."""
    period = 4
    for momentum, rate in ((0.9, 0.7), (0.0, 1.0)):
        center = tg.SGD(rate, momentum=momentum, nesterov=True) if momentum else None
        optimizer = tg.AGN(tg.SGD(RATE), None, period, center, mode="difference")
        model = variables(weights(SHAPES))
        c = {p: w.astype("float64") for p, w in weights(SHAPES).items()}
        v = dict.fromkeys(c, 0.0)
        w = dict(c)
        for number, g in enumerate(gradients(8, SHAPES), 1):
            optimizer.apply([g[path] for path in model], list(model.values()))
            w = {path: w[path] - RATE * g[path] for path in w}
            if number % period == 0:
                for path in c:
                    difference = c[path] - w[path]
                    v[path] = momentum * v[path] - rate * difference
                    nesterov = momentum * v[path] - rate * difference
                    c[path] = c[path] + (nesterov if momentum else v[path])
                w = dict(c)
            assert_close(values_of(model), w, atol=1e-5)


def test_schedules_count_rounds_on_the_center_and_steps_on_the_worker():
    class Counting(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 1.0 / (1.0 + tf.cast(step, tf.float32))

    def rate(t):
        return 1.0 / t

    sgd = rounds.by(oracles.sgd, rate)
    truth = rounds.Rounds(weights(SHAPES), sgd, sgd, 3)
    assert_follows(tg.AGN(tg.SGD(Counting()), None, 3, tg.SGD(Counting())), truth, function=True)


def test_a_rate_that_is_set_is_set_for_the_copy_too():
    optimizer = tg.AGN(tg.SGD(0.5), communication_period=1)
    w = tf.Variable([1.0])
    optimizer.build([w])
    optimizer.learning_rate = 0.25
    optimizer.apply([tf.constant([1.0])], [w])
    assert w.numpy() == 0.75
    other = tg.AGN(tg.SGD(0.5), None, 1, tg.SGD(1.0))
    other.learning_rate = 0.25
    assert float(other.center_optimizer.learning_rate) == 1.0


@pytest.mark.parametrize("period", [2, 3])
def test_workers_in_turn_equal_the_model(period):
    """Two workers, one of which is faster, in one process."""
    sgd = rounds.by(oracles.sgd, RATE, momentum=0.9)
    truth = rounds.Rounds(weights(SHAPES), sgd, sgd, period, workers=2)
    workers = tg.AGN(tg.SGD(RATE, momentum=0.9), 2, period).workers()
    models = [variables(weights(SHAPES, seed=seed)) for seed in (1, 2)]
    for worker, model in zip(workers, models, strict=True):
        worker.build(list(model.values()))
    for number, g in enumerate(gradients(14, SHAPES)):
        turn = [0, 0, 1, 0, 1, 1, 0][number % 7]
        workers[turn].apply([g[path] for path in SHAPES], list(models[turn].values()))
        truth.step(turn, g)
        for worker, model in zip(truth.workers, models, strict=True):
            assert_close(values_of(model), worker.w, atol=1e-5)
        assert_close(workers[0].center_values(), truth.c, atol=1e-5)
    assert truth.rounds == int(workers[0].rounds.numpy()) == int(workers[1].rounds.numpy())


def test_workers_are_refused_without_a_number():
    with pytest.raises(ValueError, match=r"^AGN\.workers: called without num_worker\.$"):
        tg.AGN(tg.SGD(0.1)).workers()


# Rows.


@pytest.mark.parametrize("function", [False, True], ids=["eager", "function"])
def test_only_touched_rows_are_pushed_and_pulled(function):
    """Each row is a variable of its own, which takes part in the steps and rounds that touch it."""
    optimizer = tg.AGN(tg.SGD(RATE, momentum=0.9), communication_period=2)
    table = variables({"table": weights(SHAPES)["table"]})["table"]
    optimizer.build([table])
    w = table.numpy().astype("float64")
    c, a, m, cm = w.copy(), np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
    touched = set()

    def apply(ids, values):
        optimizer.apply([tf.IndexedSlices(values, ids)], [table])

    apply = tf.function(apply, reduce_retracing=True) if function else apply
    random = np.random.default_rng(3)
    for number, ids in enumerate([[1, 1, 3], [0], [3], [3, 4], [0, 1], [2, 2, 2]], 1):
        values = random.normal(size=(len(ids), 3)).astype("float32")
        apply(tf.constant(ids, tf.int64), tf.constant(values))
        g = np.zeros_like(w)
        np.add.at(g, ids, values)
        rows = sorted(set(ids))
        m[rows] = 0.9 * m[rows] - RATE * g[rows]
        w[rows] += m[rows]
        a[rows] += g[rows]
        touched |= set(ids)
        if number % 2 == 0:
            rows = sorted(touched)
            cm[rows] = 0.9 * cm[rows] - RATE * a[rows] / 2
            c[rows] += cm[rows]
            w[rows], a[rows] = c[rows], 0
            touched = set()
        np.testing.assert_allclose(table.numpy(), w, rtol=2e-6, atol=1e-6)
        np.testing.assert_allclose(optimizer.center_values()["table"], c, rtol=2e-6, atol=1e-6)


def test_exact_equals_dense():
    found = []
    for sparse in (True, False):
        optimizer = tg.AGN(tg.Adam(RATE), communication_period=2, sparse="exact")
        table = variables({"table": weights(SHAPES)["table"]})["table"]
        for ids in ([1, 1, 3], [0], [3], [3, 4]):
            g = slices(ids, np.ones([len(ids), 3], "float32"))
            g = g if sparse else tf.math.unsorted_segment_sum(g.values, g.indices, 6)
            optimizer.apply([g], [table])
        found.append(table.numpy())
    np.testing.assert_array_equal(*found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*no gradient for")
@pytest.mark.parametrize("jit_compile", [None, False, True], ids=["eager", "function", "xla"])
@pytest.mark.parametrize("sparse", ["exact", "lazy"])
def test_the_center_of_what_had_no_gradient_in_a_period_stays(sparse, jit_compile):
    """With `sparse="exact"`, in which rows without a gradient decay, it decayed."""
    names = ("always", "before", "never", "table")
    model = variables({name: np.ones([3, 1], "float32") for name in names})
    center = tg.SGD(0.5, weight_decay=0.5)
    optimizer = tg.AGN(tg.SGD(0.25), 1, 2, center_optimizer=center, sparse=sparse)
    optimizer.build(list(model.values()))

    def step(*gradients):
        optimizer.apply(gradients, list(model.values()))

    if jit_compile is not None:
        step = tf.function(step, jit_compile=jit_compile)
    one, row = tf.ones([3, 1]), slices([1], np.float32([[2.0]]), 3)
    step(one, one, None, row)
    step(one, None, None, None)
    centers = {path: c.ravel().tolist() for path, c in optimizer.center_values().items()}
    idle = 0.75 if sparse == "exact" else 1.0  # of the rows without a gradient, with decay
    expected = {"always": [0.25] * 3, "before": [0.5] * 3, "never": [1.0] * 3}
    expected["table"] = [idle, 0.25, idle]
    assert centers == expected
    assert {path: w.numpy().ravel().tolist() for path, w in model.items()} == expected


@pytest.mark.filterwarnings("ignore:.*no gradient for")
def test_the_center_of_a_matrix_that_had_no_gradient_in_a_period_stays():
    """Its momentum gave it a step of Muon, if another one had a gradient before the last step."""
    model = variables({name: np.eye(3, dtype="float32") for name in "abc"})
    axes = {name: {"inputs": [0], "outputs": [1]} for name in "abc"}
    optimizer = tg.AGN("sgd", None, 2, center_optimizer=tg.Muon(0.1, axes=axes))
    g, pushed = tf.constant(np.arange(9.0).reshape(3, 3), tf.float32), []
    for given in ("abc", "abc", "ab", "a", "ac", "a"):
        optimizer.apply([g if name in given else None for name in model], list(model.values()))
        pushed.append(optimizer.center_values()["b"].copy())
    assert np.abs(pushed[3] - pushed[1]).max() > 0.01
    np.testing.assert_array_equal(pushed[5], pushed[3])


# Replicas in lockstep.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "graph", "period"),
    [
        ("dense", True, 3),
        pytest.param("rows", True, 1, marks=pytest.mark.slow),
        ("rows", False, 3),
    ],
)
def test_two_replicas_equal_the_model(form, graph, period):
    assert_replicas_follow(mirrored(), form, graph, period)


@pytest.mark.rare
def test_four_replicas_equal_the_model():
    said = column_runs.run_alone(column_runs.program("programs.agn_cases"), column_runs.SECONDS)
    assert said.count("right") == 2, said


@pytest.mark.slow
def test_on_a_mesh_as_on_one_device():
    said = column_runs.run_alone(
        column_runs.program("programs.agn_cases", "mesh"), column_runs.SECONDS
    )
    assert said.count("right") == 2, said


@pytest.mark.slow
def test_two_workers_in_processes_of_their_own_equal_the_model():
    command = column_runs.program("programs.agn_cases")
    with Cluster(command, {"worker": 2}, column_runs.ENVIRONMENT) as cluster:
        column_runs.assert_ends(cluster, 200)


@pytest.mark.parametrize("bad", [0, 1])
def test_a_replica_that_skips_still_meets(bad):
    """Its step is neither made nor accumulated; all replicas communicate when it is time."""
    strategy, period = mirrored(), 2
    with strategy.scope():
        model = variables({"w": np.float32([1.0, 2.0])})
        optimizer = tg.AGN(tg.SGD(0.25), communication_period=period)
        optimizer.build(list(model.values()))

    @tf.function
    def step(g):
        strategy.run(lambda g: optimizer.apply([g], list(model.values())), args=(g,))

    sgd = rounds.by(oracles.sgd, 0.25)
    truth = rounds.Rounds({"w": np.float32([1.0, 2.0])}, sgd, sgd, period, 2)
    for number in range(6):
        each = [np.float32([1.0, -0.5]) * (number + 1), np.float32([0.5, 2.0])]
        if number in (1, 2):
            each[bad] = np.float32([np.nan, 1.0])
        step(per_replica(each))
        truth.steps_together([{"w": g} for g in each], number)
        copies = strategy.experimental_local_results(model["w"].value)
        for copy, worker in zip(copies, truth.workers, strict=True):
            np.testing.assert_allclose(copy.numpy(), worker.w["w"], rtol=1e-6)
    assert int(optimizer.rounds.numpy()) == 3


@pytest.mark.slow
def test_a_round_of_which_a_replica_has_nothing_is_left_out():
    """As with a period of 1, where a non-finite gradient of any replica skips the step."""
    strategy = mirrored()
    with strategy.scope():
        model = variables({"w": np.float32([1.0, 2.0])})
        optimizer = tg.AGN(tg.SGD(0.25, momentum=0.9), communication_period=1)
        optimizer.build(list(model.values()))
    step = tf.function(
        lambda g: strategy.run(lambda g: optimizer.apply([g], list(model.values())), args=(g,))
    )
    step(per_replica([np.float32([1.0, 1.0]), np.float32([np.inf, 1.0])]))
    np.testing.assert_array_equal(model["w"].numpy(), [1.0, 2.0])
    assert int(optimizer.rounds.numpy()) == 0
    assert int(optimizer.center_optimizer.skipped_steps.numpy()) == 1
    step(per_replica([np.float32([1.0, 1.0]), np.float32([1.0, 1.0])]))
    np.testing.assert_array_equal(model["w"].numpy(), [0.5, 1.5])


def executed_collectives(optimizer, steps):
    """How many collectives ran, on all replicas together, in so many steps after the first."""
    strategy = mirrored()
    with strategy.scope():
        start = {"kernel": np.zeros([64, 64], "float32"), "bias": np.zeros(64, "float32")}
        model = list(variables(start).values())
        optimizer.build(model)

    @tf.function
    def step(g):
        strategy.run(lambda g: optimizer.apply([g, tf.reduce_sum(g, 0)], model), args=(g,))

    g = per_replica([np.ones([64, 64], "float32")] * 2)
    step(g)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        for _ in range(steps):
            step(g)
        tf.profiler.experimental.stop()
        (file,) = Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(file.read_bytes())
    names = [
        plane.event_metadata[event.metadata_id].name
        for plane in space.planes
        for line in plane.lines
        for event in line.events
    ]
    assert not any("Gather" in name for name in names if "ollective" in name)
    return names.count("BaseCollectiveExecutor::ExecuteAsync")


@pytest.mark.slow
def test_traffic_is_that_of_synchronous_training_divided_by_the_period():
    """Either sends every entry of every gradient once in one all-reduce, AGN once a period."""
    period = 5
    plain = executed_collectives(tg.SGD(0.1), 20)
    assert plain == 20 * 2
    rarely = executed_collectives(tg.AGN(tg.SGD(0.1), communication_period=period), 20)
    assert rarely == plain // period


# In `fit`; saving; what is refused.


def net():
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, name="a"), keras.layers.Dense(3, name="b")]
    )


def data(count=96):
    x = np.random.default_rng(0).normal(size=(count, 4)).astype("float32")
    return x, x[:, :3].argmax(axis=1)


def compiled(optimizer, **options):
    keras.utils.set_random_seed(1)
    model = net()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, **options)
    return model


def assert_holds_the_center(model):
    center = model.optimizer.center_values()
    for variable, value in zip(model.trainable_variables, center.values(), strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3])
def test_fit_ends_with_the_center(steps):
    model = compiled(tg.AGN(tg.Adam(0.05), communication_period=4), steps_per_execution=steps)
    history = model.fit(*data(), epochs=3, batch_size=16, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert int(model.optimizer.iterations.numpy()) == 18
    assert int(model.optimizer.rounds.numpy()) == 4
    assert_holds_the_center(model)


@pytest.mark.rare
def test_fit_on_replicas_with_a_period_of_one_is_synchronous_training():
    found = []
    for make in (lambda: tg.SGD(0.1), lambda: tg.AGN(tg.SGD(0.1), communication_period=1)):
        with mirrored().scope():
            model = compiled(make())
        model.fit(*data(), epochs=2, batch_size=16, verbose=0, shuffle=False)
        found.append(model.get_weights())
    for ours, plain in zip(*reversed(found), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_fit_on_replicas_ends_with_the_center_on_all():
    with mirrored().scope():
        model = compiled(tg.AGN(tg.Adam(0.05), communication_period=4))
    history = model.fit(*data(), epochs=3, batch_size=16, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert int(model.optimizer.rounds.numpy()) == 4
    for variable in model.trainable_variables:
        first, second = mirrored().experimental_local_results(variable.value)
        np.testing.assert_array_equal(first.numpy(), second.numpy())
    assert_holds_the_center(model)


@pytest.mark.slow
def test_validation_sees_the_center_and_training_the_local_copy():
    optimizer = tg.AGN(tg.SGD(0.05), communication_period=100)  # the center never moves
    model = compiled(optimizer)
    x, y = data()
    before = model.evaluate(x, y, verbose=0)

    class Look(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.shown = []

        def on_epoch_end(self, epoch, logs=None):
            self.shown.append(np.concatenate([w.ravel() for w in self.model.get_weights()]))

    fit = {"epochs": 2, "batch_size": 16, "verbose": 0, "validation_data": (x, y)}
    look = Look()
    history = model.fit(x, y, callbacks=[tg.CenterWeights(), look], **fit).history
    np.testing.assert_allclose(history["val_loss"], before, rtol=1e-6)
    assert history["loss"][1] < history["loss"][0]
    assert np.abs(look.shown[1] - look.shown[0]).max() > 1e-3
    saved = Look()
    model.fit(x, y, callbacks=[tg.CenterWeights(swap_on_epoch=True), saved], **fit)
    start = np.concatenate([c.ravel() for c in optimizer.center_values().values()])
    for shown in saved.shown:
        np.testing.assert_array_equal(shown, start)
    assert_holds_the_center(model)


@pytest.mark.rare
def test_the_state_is_saved_and_goes_on(tmp_path):
    """In the middle of a round, in all three forms; eagerly: `test_files.py`."""
    x, y = data()

    def fitted(epochs, weights_of=None):
        keras.backend.clear_session(free_memory=False)  # layers are named alike
        model = compiled(tg.AGN(tg.Adam(0.05), communication_period=4))
        model.optimizer.build(model.trainable_variables)
        if weights_of is not None:
            weights_of(model)
        for number in range(*epochs):
            model.train_on_batch(x[number * 16 :][:16], y[number * 16 :][:16])
        return model

    undisturbed = fitted((0, 6))
    whole = state_of(undisturbed.optimizer, *undisturbed.trainable_variables)
    half = fitted((0, 3))
    half.save(tmp_path / "m.keras")
    half.save_weights(tmp_path / "m.weights.h5")
    path = tf.train.Checkpoint(model=half, optimizer=half.optimizer).write(str(tmp_path / "c"))
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    for number in range(3, 6):
        loaded.train_on_batch(x[number * 16 :][:16], y[number * 16 :][:16])
    ways = [
        loaded,
        fitted((3, 6), lambda model: model.load_weights(tmp_path / "m.weights.h5")),
        fitted(
            (3, 6),
            lambda model: (
                tf.train.Checkpoint(model=model, optimizer=model.optimizer)
                .read(path)
                .assert_existing_objects_matched()
            ),
        ),
    ]
    for model in ways:
        found = state_of(model.optimizer, *model.trainable_variables)
        for mine, right in zip(found.values(), whole.values(), strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5"])
def test_what_is_saved_in_centered_goes_on_from_the_center(tmp_path, name):
    """The file's center is the center, and not the local copy that is put aside meanwhile."""
    model = compiled(tg.AGN(tg.Adam(0.05), communication_period=4))
    x, y = data()
    for _ in range(6):
        model.train_on_batch(x, y)
    local, center = model.get_weights(), list(model.optimizer.center_values().values())
    with model.optimizer.centered():
        (model.save if name == "m.keras" else model.save_weights)(tmp_path / name)
    for mine, right in zip(model.get_weights(), local, strict=True):
        np.testing.assert_array_equal(mine, right)
    if name == "m.keras":
        loaded = keras.saving.load_model(tmp_path / name)
    else:
        keras.backend.clear_session(free_memory=False)  # layers are named alike
        loaded = compiled(tg.AGN(tg.Adam(0.05), communication_period=4))
        loaded.load_weights(tmp_path / name)
        loaded.optimizer.build(loaded.trainable_variables)
    for mine, right in zip(loaded.get_weights(), center, strict=True):
        np.testing.assert_array_equal(mine, right)
    assert_holds_the_center(loaded)


def test_autograph_leaves_apply_alone():
    """Its own `apply` too: AutoGraph warned of each method without a body that it came to."""
    assert all(hasattr(cls.apply, "autograph_info__") for cls in (tg.SGD, tg.AGN))


def test_another_centers_state_is_refused(tmp_path):
    models = [
        compiled(tg.AGN(tg.SGD(0.05), center_optimizer=center)) for center in (tg.SGD(), tg.Adam())
    ]
    for model in models:
        model.optimizer.build(model.trainable_variables)
    models[0].save_weights(tmp_path / "m.weights.h5")
    with pytest.raises(ValueError, match=r"is the state of AGN\(SGD, SGD\)"):
        models[1].load_weights(tmp_path / "m.weights.h5")


@pytest.mark.parametrize(
    "arguments",
    [
        {"optimizer": "adam"},
        {"optimizer": {"name": "sgd", "momentum": 0.9}, "mode": "updates", "num_worker": 2},
        {"optimizer": "ftrl", "center_optimizer": {"name": "sgd", "clipnorm": 1.0}},
        {"optimizer": "lars", "communication_period": 3, "reset_local_state": True},
    ],
    ids=str,
)
def test_config_round_trip(arguments):
    optimizer = tg.get({"name": "agn", **arguments})
    config = optimizer.get_config()
    json.dumps(config)
    assert tg.AGN.from_config(config).get_config() == config
    assert tg.deserialize(tg.serialize(optimizer)).get_config() == config


SGD = {"name": "sgd"}
REFUSED = [
    ({"communication_period": 0}, ValueError, "communication_period must be at least 1"),
    ({"communication_period": -3}, ValueError, "communication_period must be at least 1"),
    ({"communication_period": 1.5}, ValueError, "communication_period must be a whole number"),
    ({"communication_period": "2"}, TypeError, "communication_period must be a number"),
    ({"communication_period": None}, TypeError, "communication_period must be a number"),
    ({"num_worker": 0}, ValueError, "num_worker must be at least 1"),
    ({"use_locking": 1}, TypeError, "use_locking must be True or False"),
    ({"reset_local_state": None}, TypeError, "reset_local_state must be True or False"),
    ({"mode": "mean"}, ValueError, "mode must be one of 'gradients', 'updates', 'difference'"),
    ({"center_optimizer": 3}, TypeError, "an optimizer, a name, or a dict"),
    ({"use_ema": True}, ValueError, "give it to center_optimizer"),
    ({"weight_decay": 0.1}, ValueError, "give it to optimizer"),
    ({"center_optimizer": SGD | {"loss_scale_factor": 2.0}}, ValueError, "give it to optimizer"),
    ({"learning_rates": 0.1}, TypeError, "there is no such argument; did you mean"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), REFUSED, ids=str)
def test_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        tg.AGN(SGD, **arguments)


def test_it_is_outermost():
    for make in (tg.LARC, tg.AGN, lambda child: tg.AdaGraft(child, tg.SGD())):
        with pytest.raises(
            TypeError, match="does more than compute steps, so it must be the outermost"
        ):
            make(tg.AGN(tg.SGD()))


def test_a_loss_scale_that_stays():
    w = tf.Variable([1.0])
    optimizer = tg.AGN(tg.SGD(0.5, loss_scale_factor=8.0), communication_period=2)
    for g in (8.0, 24.0):
        optimizer.apply([tf.constant([g])], [w])
    assert w.numpy() == 0.0


def test_clipping_and_accumulation_are_of_the_local_gradients():
    w = tf.Variable([0.0])
    child = tg.SGD(1.0, clipvalue=2.0, gradient_accumulation_steps=2)
    optimizer = tg.AGN(child, communication_period=2)
    found = []
    for g in (1.0, 2.0, 8.0, 0.0):  # means 1.5 and 4, which is clipped
        optimizer.apply([tf.constant([g])], [w])
        found.append(float(w.numpy()[0]))
    assert found == [0.0, -1.5, -1.5, -1.75]
    assert int(optimizer.iterations.numpy()) == 2


def test_as_many_workers_as_replicas():
    with mirrored().scope():
        model = variables({"w": np.float32([1.0])})
        with pytest.raises(ValueError, match=r"^AGN\(num_worker=3\): the strategy has 2 replicas"):
            tg.AGN(tg.SGD(), num_worker=3).build(list(model.values()))
        tg.AGN(tg.SGD(), num_worker=2).build(list(model.values()))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_has_a_center_in_float32(dtype):
    """As in float32, rounded; the local copy's master goes on from the center, too."""
    found = {}
    for kind in (dtype, "float32"):
        w = tf.Variable(tf.cast([1.0, 2.0], kind), name="w")
        optimizer = tg.AGN(tg.SGD(1e-3), communication_period=2)
        for _ in range(21):
            optimizer.apply([tf.cast([0.5, 0.25], kind)], [w])
        found[kind] = tf.cast(w, tf.float32).numpy(), optimizer.centers()[0].numpy()
    np.testing.assert_allclose(found[dtype][1], found["float32"][1], rtol=1e-6)
    epsilon = {"float16": 2**-11, "bfloat16": 2**-8}[dtype]
    np.testing.assert_allclose(found[dtype][0], found["float32"][0], rtol=epsilon)


def test_patterns_are_for_the_models_paths_on_the_center_too():
    child = tg.SGD(0.5, weight_decay=0.5, exclude_from_weight_decay=["bias$"])
    model = variables({"kernel": np.float32([1.0]), "bias": np.float32([1.0])})
    optimizer = tg.AGN(child, communication_period=1)
    optimizer.apply([tf.zeros(1), tf.zeros(1)], list(model.values()))
    assert [v.numpy().item() for v in model.values()] == [0.75, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_fit_of_a_model_that_its_first_step_makes(jit_compile):
    """There the center begins from weights that have no values before the step runs."""

    def weights_after(deferred):
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(2, kernel_initializer="ones"), keras.layers.Dense(1)]
        model = keras.Sequential(layers if deferred else [keras.Input((3,)), *layers])
        optimizer = tg.AGN(tg.SGD(RATE), communication_period=3)
        model.compile(optimizer, "mse", jit_compile=jit_compile)
        x = np.arange(15, dtype="float32").reshape(5, 3) / 16
        model.fit(x, x[:, :1], batch_size=1, shuffle=False, verbose=0)
        return model.get_weights()

    for deferred, right in zip(weights_after(True), weights_after(False), strict=True):
        np.testing.assert_allclose(deferred, right, rtol=1e-6)


def test_the_center_begins_from_weights_that_are_set_after_build():
    w = tf.Variable([1.0])
    optimizer = tg.AGN(tg.SGD(0.5), communication_period=1)
    optimizer.build([w])
    w.assign([5.0])
    optimizer.apply([tf.constant([2.0])], [w])
    assert w.numpy().tolist() == [4.0]


def test_constraints_hold_on_the_center_too():
    """They did on the local copy, until it was replaced with the center."""
    w = keras.Variable([1.0, -1.0])
    w.constraint = keras.constraints.NonNeg()
    optimizer = tg.AGN(tg.SGD(0.5), communication_period=2)
    for _ in range(2):
        optimizer.apply([tf.constant([4.0, -4.0])], [w])
    assert w.numpy().tolist() == [0.0, 1.0]


def test_a_round_is_for_parameter_servers():
    optimizer = tg.AGN(tg.SGD(0.5))
    with pytest.raises(ValueError, match=r"AGN\.round: a round is for parameter servers"):
        optimizer.round(lambda x: x, (tf.ones([3]),))


def test_without_a_round_nothing_of_the_center_is_written():
    optimizer = tg.AGN(tg.Adam(RATE), communication_period=10)
    model = list(variables(weights(SHAPES)).values())
    optimizer.build(model)
    before = state_of(optimizer)
    for g in gradients(9, SHAPES):
        optimizer.apply(list(g.values()), model)
    after = state_of(optimizer)
    for name in before:
        if "center" in name:
            np.testing.assert_array_equal(before[name], after[name], err_msg=name)


# Around MixedPrecision.


@contextlib.contextmanager
def under(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def scaled(child, scale=1024.0, **options):
    return tg.AGN(tg.MixedPrecision(child, scale), communication_period=3, **options)


def without_scaler(state):
    return {name: x for name, x in state.items() if not name.startswith("loss_scale/")}


def after_scaled_steps(optimizer, function):
    model = variables(weights(SHAPES))
    optimizer.build(list(model.values()))

    def apply(g, rows):
        factor = optimizer.scale_loss(tf.constant(1.0))
        g = {path: x * factor for path, x in g.items()}
        g["table"] = tf.IndexedSlices(g["table"], rows)
        optimizer.apply([g[path] for path in model], list(model.values()))

    step = tf.function(apply) if function else apply
    for rows, g in (each[0] for each in shares("rows", 1, 7)):
        step({path: tf.constant(x) for path, x in g.items()}, tf.constant(rows))
    return without_scaler(state_of(optimizer)) | values_of(model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "function"),
    [({}, True), ({"mode": "updates"}, False), ({"reset_local_state": True}, True)],
    ids=str,
)
def test_around_mixed_precision_as_without(options, function):
    """A power of two changes no bit, of the local copy, the center or the state of either."""
    child = lambda: tg.SGD(RATE, momentum=0.9, clipvalue=1.0)  # noqa: E731
    plain = tg.AGN(child(), communication_period=3, **options)
    right = after_scaled_steps(plain, function)
    assert int(plain.rounds.numpy()) == 2
    # eagerly and traced in turn
    for scale in ("backoff",) if function else (1024.0, "logmax"):
        found = after_scaled_steps(scaled(child(), scale, **options), function)
        assert list(found) == list(right)
        for name, value in right.items():
            np.testing.assert_array_equal(found[name], value, err_msg=f"{scale}: {name}")


@pytest.mark.parametrize(("bad", "dtype"), [(np.inf, "float32"), (np.nan, "float16")])
def test_an_overflow_skips_one_local_step_and_halves_the_scale(bad, dtype):
    w = tf.Variable(tf.cast([1.0, 2.0], dtype), name="w")
    optimizer = scaled(tg.SGD(0.25, momentum=0.5), "backoff")
    truth = tg.AGN(tg.SGD(0.25, momentum=0.5), communication_period=3)
    right = tf.Variable([1.0, 2.0], name="w")
    scale = float(optimizer.loss_scale())
    for number in range(1, 8):
        if number in (2, 3):
            before = without_scaler(state_of(optimizer, w)) | {"skipped_steps": None}
            optimizer.apply([tf.cast([bad, 1.0], dtype)], [w])
            after = without_scaler(state_of(optimizer, w)) | {"skipped_steps": None}
            assert {k: repr(x) for k, x in after.items()} == {k: repr(x) for k, x in before.items()}
            scale /= 2
        assert float(optimizer.loss_scale()) == scale
        g = [0.5 * number, -1.0]
        optimizer.apply([tf.cast(tf.constant(g) * scale, dtype)], [w])
        truth.apply([tf.constant(g)], [right])
        np.testing.assert_array_equal(optimizer.centers()[0].numpy(), truth.centers()[0].numpy())
        np.testing.assert_array_equal(
            tf.cast(w, tf.float32), tf.cast(tf.cast(right, dtype), tf.float32)
        )
    assert int(optimizer.skipped_steps.numpy()) == 2
    assert int(optimizer.rounds.numpy()) == 2
    assert optimizer.centers()[0].dtype == "float32"


@pytest.mark.slow
def test_each_replica_has_a_loss_scale_of_its_own():
    """That of the replica which overflows is halved; both equal the model of their local steps."""
    strategy, bad = mirrored(), 1
    with strategy.scope():
        model = variables({"w": np.float32([1.0, 2.0])})
        optimizer = tg.AGN(tg.MixedPrecision(tg.SGD(0.25), "backoff"), communication_period=2)
        optimizer.build(list(model.values()))

    @tf.function
    def step(g):
        def on_replica(g):
            scale = optimizer.scale_loss(tf.constant(1.0))
            optimizer.apply([g * scale], list(model.values()))
            return scale

        return strategy.run(on_replica, args=(g,))

    sgd = rounds.by(oracles.sgd, 0.25)
    truth = rounds.Rounds({"w": np.float32([1.0, 2.0])}, sgd, sgd, 2, 2)
    scales = np.float32([2.0**14, 2.0**14])
    for number in range(6):
        each = [np.float32([1.0, -0.5]) * (number + 1), np.float32([0.5, 2.0])]
        if number in (1, 2):
            each[bad] = np.float32([np.inf, 1.0])
        used = strategy.experimental_local_results(step(per_replica(each)))
        np.testing.assert_array_equal([x.numpy() for x in used], scales)
        if number in (1, 2):
            scales[bad] /= 2
        truth.steps_together([{"w": g} for g in each], number)
        copies = strategy.experimental_local_results(model["w"].value)
        for copy, worker in zip(copies, truth.workers, strict=True):
            np.testing.assert_allclose(copy.numpy(), worker.w["w"], rtol=1e-6)
        assert_close(optimizer.center_values(), truth.c)
    assert scales[bad] == 2.0**12
    assert int(optimizer.rounds.numpy()) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("mixed_float16", {}),
        pytest.param("float16", {"steps_per_execution": 3}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_fit_in_half_precision(policy, options):
    """The first scales overflow; Keras puts no scaling of its own around it."""
    scaler = tg.scaling.BackoffScaler(scale_max=2.0**24)
    optimizer = tg.AGN(tg.MixedPrecision(tg.Adam(0.02), scaler), communication_period=4)
    with under(policy):
        model = compiled(optimizer, **options)
    assert model.optimizer is optimizer
    logger = tg.scaling.LossScaleLogger()
    history = model.fit(*data(), epochs=16, batch_size=16, verbose=0, callbacks=[logger]).history
    assert history["loss"][-1] < 0.6 * history["loss"][0]
    skipped = int(optimizer.skipped_steps.numpy())
    assert 0 < skipped < 24
    assert history["skipped_steps"][-1] == skipped
    assert history["loss_scale"][-1] == float(optimizer.loss_scale()) == 2.0 ** (24 - skipped)
    assert int(optimizer.iterations.numpy()) == 96 - skipped
    assert int(optimizer.rounds.numpy()) == (96 - skipped) // 4
    assert int(optimizer.center_optimizer.skipped_steps.numpy()) == 0
    kind = "float16" if policy == "float16" else "float32"
    for variable, center in zip(model.trainable_variables, optimizer.centers(), strict=True):
        assert (variable.dtype, center.dtype) == (kind, "float32")
        np.testing.assert_array_equal(variable.numpy(), center.numpy().astype(kind))


@pytest.mark.rare
def test_fit_in_half_precision_on_replicas():
    scaler = tg.scaling.BackoffScaler(scale_max=2.0**24)
    with mirrored().scope(), under("float16"):
        optimizer = tg.AGN(tg.MixedPrecision(tg.Adam(0.02), scaler), communication_period=4)
        model = compiled(optimizer)
    history = model.fit(*data(), epochs=12, batch_size=16, verbose=0).history
    assert history["loss"][-1] < 0.6 * history["loss"][0]
    assert 0 < int(optimizer.skipped_steps.numpy()) < 24
    assert (
        int(optimizer.rounds.numpy()) + int(optimizer.center_optimizer.skipped_steps.numpy())
        == 72 // 4
    )
    assert all(np.isfinite(c).all() for c in optimizer.center_values().values())


def test_keras_scales_for_what_is_around_no_mixed_precision():
    with under("mixed_float16"):
        model = compiled(tg.AGN(tg.Adam(0.02), communication_period=4))
    assert type(model.optimizer) is keras.optimizers.LossScaleOptimizer


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["backoff", "logmax"])
def test_the_scalers_state_is_saved_and_goes_on(scale, tmp_path):
    """In the middle of a round and after an overflow, bit for bit, in all three forms."""
    x, y = data()
    x[20] = 1e30  # overflows in the second step of either half
    x[84] = 1e30

    def trained(first, last, model=None, restored=lambda model: None):
        keras.backend.clear_session(free_memory=False)  # layers are named alike
        if model is None:
            model = compiled(scaled(tg.Adam(0.05), {"name": scale} | OPTIONS[scale]))
            model.optimizer.build(model.trainable_variables)
            restored(model)
        for number in range(first, last):
            model.train_on_batch(x[number * 16 :][:16], y[number * 16 :][:16])
        return model

    whole = trained(0, 6)
    assert int(whole.optimizer.skipped_steps.numpy()) == 2
    half = trained(0, 4)
    new, old = (state_of(model.optimizer) for model in (trained(0, 0), half))
    assert any(name.startswith("loss_scale/") and old[name] != new[name] for name in new)
    half.save(tmp_path / "m.keras")
    half.save_weights(tmp_path / "m.weights.h5")
    path = tf.train.Checkpoint(model=half, optimizer=half.optimizer).write(str(tmp_path / "c"))

    def restored(model):
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        checkpoint.read(path).assert_existing_objects_matched()

    right = state_of(whole.optimizer, *whole.trainable_variables)
    assert sum(name.startswith("loss_scale/") for name in right) > 1
    for again in (
        trained(4, 6, keras.saving.load_model(tmp_path / "m.keras")),
        trained(4, 6, None, lambda m: m.load_weights(tmp_path / "m.weights.h5")),
        trained(4, 6, None, restored),
    ):
        assert type(again.optimizer) is type(whole.optimizer)
        found = state_of(again.optimizer, *again.trainable_variables)
        for mine, theirs in zip(found.values(), right.values(), strict=True):
            np.testing.assert_array_equal(mine, theirs)


OPTIONS = {"backoff": {"step_window": 2, "scale_max": 2.0**20}, "logmax": {}}


@pytest.mark.parametrize("scale", [8.0, "backoff", "logmax"])
@pytest.mark.parametrize("center", [None, {"name": "sgd", "momentum": 0.5}], ids=["copy", "own"])
def test_config_round_trip_around_mixed_precision(scale, center):
    mixed = {"name": "mixed_precision", "optimizer": {"name": "adam", "clipnorm": 1.0}}
    mixed["loss_scale"] = scale
    optimizer = tg.get({"name": "agn", "optimizer": mixed, "center_optimizer": center})
    config = optimizer.get_config()
    json.dumps(config)
    assert type(optimizer.scaler) is type(tg.scaling.get(scale))
    assert optimizer.clipnorm == 1.0
    assert type(optimizer.center_optimizer) is (tg.Adam if center is None else tg.SGD)
    assert isinstance(optimizer, tg.AGN)
    for again in (tg.AGN.from_config(config), tg.deserialize(tg.serialize(optimizer))):
        assert again.get_config() == config
        assert type(again) is type(optimizer)
        assert type(again.scaler) is type(optimizer.scaler)
        assert again.scaler.get_config() == optimizer.scaler.get_config()


def test_workers_in_turn_have_loss_scales_of_their_own():
    workers = tg.AGN(tg.MixedPrecision(tg.SGD(0.5), "backoff"), 2, 2).workers()
    models = [tf.Variable([1.0]), tf.Variable([1.0])]
    for worker, w in zip(workers, models, strict=True):
        worker.build([w])
    workers[1].apply([tf.constant([np.inf])], [models[1]])
    first, second = (float(worker.loss_scale()) for worker in workers)
    assert second == first / 2
    assert [w.numpy().item() for w in models] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: tg.AGN("sgd", center_optimizer=tg.MixedPrecision("sgd")),
            TypeError,
            r"^AGN\(center_optimizer=MixedPrecision\(\.\.\.\)\): .* MixedPrecision alone",
        ),
        (
            lambda: tg.AGN(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())),
            TypeError,
            r"^AGN\(optimizer=LossScaleOptimizer\(\.\.\.\)\): .* MixedPrecision alone",
        ),
        (lambda: tg.AGN(scaled("sgd")), TypeError, r"^AGN\(optimizer=ScaledAGN\(\.\.\.\)\)"),
        (
            lambda: type("Mine", (tg.AGN,), {})(tg.MixedPrecision("sgd")),
            TypeError,
            r"^Mine\(optimizer=MixedPrecision\(\.\.\.\)\): derive .* tf_graft\.agn\.ScaledAGN",
        ),
        (lambda: ScaledAGN("sgd"), TypeError, "^ScaledAGN: its optimizer must be a MixedPrecision"),
        (lambda: tg.LARC(scaled("sgd")), TypeError, "must be the outermost optimizer"),
        (lambda: tg.MixedPrecision(scaled("sgd")), TypeError, "must be the outermost optimizer"),
        (lambda: tg.MixedPrecision(tg.AGN("sgd")), TypeError, "must be the outermost optimizer"),
        (
            lambda: keras.optimizers.LossScaleOptimizer(scaled("sgd")),
            ValueError,
            "^ScaledAGN: it scales the loss itself",
        ),
        (
            lambda: scaled("sgd", loss_scale_factor=2.0),
            ValueError,
            r"^AGN\(loss_scale_factor=2\): the loss would be scaled twice",
        ),
        (
            lambda: tg.AGN(tg.MixedPrecision("sgd", use_ema=True)),
            ValueError,
            r"^AGN\(optimizer=MixedPrecision\(use_ema=True\)\): .* give it to center_optimizer",
        ),
        (lambda: tg.AGN("sgd", loss_scale=8), TypeError, "there is no such argument"),
        (lambda: scaled("sgd").round(None, None), ValueError, "keeps no loss scale"),
    ],
)
def test_what_scales_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_mixed_precision_with_state_is_refused():
    mixed = tg.MixedPrecision("sgd")
    mixed.build([tf.Variable([1.0])])
    with pytest.raises(ValueError, match=r"^AGN\(optimizer=MixedPrecision.* is already built"):
        tg.AGN(mixed)
