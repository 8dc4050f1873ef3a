"""N replicas equal one device (G30), and a non-finite gradient counts whichever sent it (G16).

The replicas' gradients are summed, so the one-device run is given the sum. Dense gradients, and
row-sparse ones whose rows repeat within a replica and across replicas, differ in number between the
replicas.
"""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft
from support import column_runs, samples
from support.replica_problems import (
    IDS,
    OPTIONS,
    REPLICAS,
    STEPS,
    as_gradients,
    assert_counted,
    assert_equals_one,
    bad_replica,
    copies,
    data,
    forms_of,
    one_device,
    problem,
    run_replicas,
    summed,
)
from support.replicas import mirrored, per_replica

NAMES = (
    *("sgd_momentum", "adagrad", "adadelta", "rmsprop", "adam", "adamw"),
    *("graft_schedules_global", "wrapped_nadam"),
)
FORMS = ("dense", "rows")
IN_A_FUNCTION = pytest.param(True, marks=pytest.mark.slow)


def check(name: str, option: str, form: str, graph: bool) -> None:
    optimizer, model = problem(name, option, form, mirrored().scope(), mirrored().scope())
    run_replicas(optimizer, model, form, data(form, bad_replica(option)), graph)
    assert_equals_one(optimizer, model, one_device(name, option, form))
    assert_counted(optimizer, option)


# What runs in the quick suite: every option and every optimizer at least once.
QUICK = {
    ("sgd_momentum", "together", "rows"),
    ("sgd_momentum", "not_finite_on_0", "dense"),
    ("adagrad", "global_clipnorm", "rows"),
    ("adadelta", "loss_scale", "dense"),
    ("adadelta", "clipnorm", "rows"),
    ("rmsprop", "ema_overwrite", "rows"),
    ("adam", "accumulation", "rows"),
    ("adam", "not_finite_on_1", "rows"),
    ("adamw", "plain", "rows"),
    ("adamw", "weight_decay", "dense"),
    ("graft_schedules_global", "global_clipnorm", "rows"),
    ("wrapped_nadam", "accumulation", "rows"),
}
QUICK_IN_A_FUNCTION = {
    ("adamw", "together", "rows"),
    ("adagrad", "clipnorm", "dense"),
}


def cases(quick, turn):
    """Parametrizes by optimizer, option and form: the quick ones, and each option.

    The optimizers and the forms take turns, which begin with another optimizer in each turn.
    """
    some = [
        (NAMES[(number + turn) % len(NAMES)], option, FORMS[number % len(FORMS)])
        for number, option in enumerate(OPTIONS)
    ]
    slow = [pytest.param(*case, marks=pytest.mark.slow) for case in some if case not in quick]
    return pytest.mark.parametrize(("name", "option", "form"), [*sorted(quick), *slow])


@pytest.mark.slow
@cases(QUICK_IN_A_FUNCTION, turn=0)
def test_two_replicas_equal_one_in_a_function(name, option, form):
    check(name, option, form, graph=True)


@cases(QUICK, turn=3)
def test_two_replicas_equal_one_eagerly(name, option, form):
    check(name, option, form, graph=False)


@pytest.mark.parametrize(
    ("name", "form", "graph"),
    [
        ("lars", "dense", False),
        ("lamb", "rows", False),
        pytest.param("larc_clip", "rows", True, marks=pytest.mark.slow),
    ],
)
def test_norms_on_two_replicas_are_of_the_sum(name, form, graph):
    check(name, "plain", form, graph)


def test_quick_cases_cover_every_optimizer_and_option():
    assert {name for name, _, _ in QUICK} == set(NAMES)
    assert {option for _, option, _ in QUICK | QUICK_IN_A_FUNCTION} == set(OPTIONS)


@pytest.mark.parametrize("form", FORMS)
def test_the_comparison_notices_a_lost_replica(form):
    """The check of the check: replica 1's gradients halved are seen."""
    optimizer, model = problem(
        "sgd_momentum", "plain", form, mirrored().scope(), mirrored().scope()
    )
    steps = [[a, [value / 2 for value in b]] for a, b in data(form)]
    run_replicas(optimizer, model, form, steps, graph=False)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_equals_one(optimizer, model, one_device("sgd_momentum", "plain", form))


def test_the_comparison_notices_a_copy_of_its_own():
    optimizer, model = problem("adam", "plain", "dense", mirrored().scope(), mirrored().scope())
    run_replicas(optimizer, model, "dense", data("dense"), graph=False)
    second = mirrored().experimental_local_results(model[0].value)[1]
    second.assign_add(tf.ones_like(second) * 1e-6)
    with pytest.raises(AssertionError, match="replicas differ"):
        assert_equals_one(optimizer, model, one_device("adam", "plain", "dense"))


def test_sgd_takes_the_sum_by_hand():
    """No one-device run of ours in between: w - rate * (g_0 + g_1), clipped as a whole."""
    with mirrored().scope():
        w = keras.Variable([1.0, 2.0], name="w")
        optimizer = tf_graft.SGD(0.5, global_clipnorm=2.5)

    def on_replica(gradient):
        optimizer.apply([gradient], [w])

    mirrored().run(on_replica, args=(per_replica([[2.0, 4.0], [1.0, 0.0]]),))
    # The sum (3, 4) has norm 5, so half of it is applied; each alone would be clipped otherwise.
    np.testing.assert_allclose(w.numpy(), [1 - 0.5 * 1.5, 2 - 0.5 * 2], rtol=1e-6)


@pytest.mark.parametrize("graph", [False, IN_A_FUNCTION])
@pytest.mark.parametrize("row_sparse", [False, True])
def test_the_same_tensor_on_all_replicas_is_summed(row_sparse, graph):
    """One tensor object in all replicas: TensorFlow's own reduction leaves it as it is."""
    with mirrored().scope():
        w = keras.Variable([[1.0], [2.0]], name="w")
        optimizer = tf_graft.SGD(0.5)
        optimizer.build([w])
    gradient = tf.constant([[1.0], [3.0]])
    if row_sparse:
        gradient = tf.IndexedSlices(gradient, tf.constant([0, 1], tf.int64))

    def step():
        mirrored().run(lambda: optimizer.apply([gradient], [w]))

    (tf.function(step) if graph else step)()
    np.testing.assert_allclose(w.numpy(), [[1.0 - 1.0], [2.0 - 3.0]], rtol=1e-6)


# Where the optimizer and the gradients come from.


@pytest.mark.slow
@pytest.mark.parametrize("graph", [False, IN_A_FUNCTION])
@pytest.mark.parametrize("option", ["plain", "together"])
def test_optimizer_made_outside_the_scope(option, graph):
    optimizer, model = problem("adam", option, "rows", mirrored().scope())
    run_replicas(optimizer, model, "rows", data("rows"), graph)
    assert_equals_one(optimizer, model, one_device("adam", option, "rows"))


@pytest.mark.slow
@pytest.mark.parametrize("graph", [False, IN_A_FUNCTION])
def test_optimizer_built_in_cross_replica_context_first(graph):
    optimizer, model = problem("adam", "together", "rows", mirrored().scope())
    with mirrored().scope():
        optimizer.build(model)
    run_replicas(optimizer, model, "rows", data("rows"), graph)
    assert_equals_one(optimizer, model, one_device("adam", "together", "rows"))


@pytest.mark.slow
def test_optimizer_built_outside_any_scope_for_mirrored_variables():
    optimizer, model = problem("adam", "together", "rows", mirrored().scope())
    optimizer.build(model)
    run_replicas(optimizer, model, "rows", data("rows"), graph=True)
    assert_equals_one(optimizer, model, one_device("adam", "together", "rows"))


@pytest.mark.parametrize(
    ("option", "inside_scope", "graph"),
    [
        ("plain", True, False),
        ("together", False, False),
        pytest.param("plain", False, True, marks=pytest.mark.slow),
        pytest.param("together", True, True, marks=pytest.mark.slow),
    ],
)
def test_apply_in_cross_replica_context_takes_plain_tensors_as_sums(option, inside_scope, graph):
    optimizer, model = problem("adam", option, "rows", mirrored().scope(), mirrored().scope())

    def step(values):
        gradients = as_gradients("rows", values, np.unique(np.concatenate(IDS)))
        with mirrored().scope() if inside_scope else contextlib.nullcontext():
            optimizer.apply(gradients, model)

    step = tf.function(step) if graph else step
    for replicas in data("rows"):
        sums = summed("rows", replicas)
        step([sums[0].values, *sums[1:]])
    assert_equals_one(optimizer, model, one_device("adam", option, "rows"))


@pytest.mark.parametrize("graph", [False, IN_A_FUNCTION])
@pytest.mark.parametrize("option", ["together", "not_finite_on_1"])
def test_apply_in_cross_replica_context_sums_what_the_replicas_computed(option, graph):
    """`grads = strategy.run(gradients)`, then `apply(grads)` outside of `run`."""
    optimizer, model = problem("adam", option, "dense", mirrored().scope(), mirrored().scope())

    def step(values):
        gradients = mirrored().run(lambda values: [2 * v / 2 for v in values], args=(values,))
        with mirrored().scope():
            optimizer.apply(gradients, model)

    step = tf.function(step) if graph else step
    for replicas in data("dense", bad_replica(option)):
        step([per_replica(column) for column in zip(*replicas, strict=True)])
    assert_equals_one(optimizer, model, one_device("adam", option, "dense"))


def test_update_step_on_replicas_equals_one_device():
    optimizer, model = problem("adam", "plain", "dense", mirrored().scope(), mirrored().scope())
    one, alone = problem("adam", "plain", "dense")
    gradient = tf.constant(data("dense")[0][0][0])
    for o, m in ((optimizer, model), (one, alone)):
        o.build(m)
        o.update_step(gradient, m[0], 0.3)
    assert not np.array_equal(alone[0].numpy(), samples.weights(forms_of("dense"))["kernel"])
    assert_equals_one(optimizer, model, samples.state_of(one, *alone))


@pytest.mark.slow
def test_finalize_and_averages_on_replicas():
    optimizer, model = problem("adam", "together", "rows", mirrored().scope(), mirrored().scope())
    run_replicas(optimizer, model, "rows", data("rows"), graph=False)
    one, alone = problem("adam", "together", "rows")
    for replicas in data("rows"):
        one.apply(summed("rows", replicas), alone)
    for a, b in zip(optimizer.synchronized_averages(), one.synchronized_averages(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6, atol=1e-6)
    optimizer.finalize_variable_values(model)
    one.finalize_variable_values(alone)
    assert_equals_one(optimizer, model, samples.state_of(one, *alone))


def test_nonfinite_raise_on_replica_1_changes_nothing():
    optimizer, model = problem("adam", "plain", "dense", mirrored().scope())
    with mirrored().scope():
        optimizer = tf_graft.Adam(0.1, nonfinite="raise", name="optimizer")
        optimizer.build(model)
    before = samples.state_of(optimizer, *model)
    steps = data("dense", bad_replica=1)[1:2]
    with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
        run_replicas(optimizer, model, "dense", steps, graph=False)
    samples.assert_same_state(samples.state_of(optimizer, *model), before)


def test_row_out_of_range_on_replica_1_changes_nothing():
    with mirrored().scope():
        table = keras.Variable(np.ones((6, 3), np.float32), name="table")
        optimizer = tf_graft.Adagrad(0.1)
        optimizer.build([table])
    before = samples.state_of(optimizer, table)

    def on_replica(ids):
        optimizer.apply([tf.IndexedSlices(tf.ones([2, 3]), ids)], [table])

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"row outside \[0, 6\)"):
        mirrored().run(on_replica, args=(per_replica([[0, 1], [2, 6]]),))
    samples.assert_same_state(samples.state_of(optimizer, table), before)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_masters_on_replicas(dtype):
    """The sum is what reaches the float32 master, which both replicas keep alike."""

    def run(strategy):
        with strategy.scope():
            w = keras.Variable([1.0, 2.0], dtype=dtype, name="w")
            optimizer = tf_graft.SGD(2**-14, name="optimizer")
        replicas = strategy.num_replicas_in_sync

        def on_replica(gradient):
            optimizer.apply([gradient], [w])

        for _ in range(16):
            strategy.run(on_replica, args=(tf.constant([2.0, 2.0], dtype) / replicas,))
        return optimizer, w

    optimizer, w = run(mirrored())
    one, alone = run(tf.distribute.OneDeviceStrategy("CPU:0"))
    masters = [samples.state_of(o)["w/master"] for o in (optimizer, one)]
    np.testing.assert_array_equal(masters[0], [1 - 2**-9, 2 - 2**-9])
    np.testing.assert_array_equal(*masters)
    np.testing.assert_array_equal(w.numpy(), alone.numpy())


# Other strategies.


@pytest.mark.parametrize(
    ("option", "graph"),
    [
        ("together", False),
        ("not_finite_on_0", False),
        pytest.param("together", True, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "strategy",
    [
        tf.distribute.OneDeviceStrategy("CPU:1"),
        tf.distribute.experimental.CentralStorageStrategy(["CPU:1"], "CPU:0"),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_strategy_of_one_device(strategy, option, graph):
    optimizer, model = problem("adam", option, "rows", strategy.scope(), strategy.scope())

    def step(values):
        gradients = as_gradients("rows", values, np.unique(np.concatenate(IDS)))
        strategy.run(lambda: optimizer.apply(gradients, model))

    step = tf.function(step) if graph else step
    for replicas in data("rows", bad_replica(option)):
        sums = summed("rows", replicas)
        step([sums[0].values, *sums[1:]])
    expected = one_device("adam", option, "rows")
    actual = samples.state_of(optimizer, *model)
    assert actual.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(actual[path], value, rtol=1e-6, atol=1e-6, err_msg=path)


@pytest.mark.parametrize("make", [tf_graft.Adam, lambda: tf_graft.wrap(keras.optimizers.Adam())])
def test_central_storage_of_two_devices_is_refused(make):
    """Its variables can only be written in merge calls, which a decision cannot contain."""
    strategy = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = net(embedding=False)
        model.compile(make(), "mse")
    before = samples.state_of(model.optimizer, *model.trainable_variables)
    with pytest.raises(
        ValueError, match=r"hidden/kernel' was made under a CentralStorageStrategy of"
    ):
        model.fit(np.ones((4, 5), np.float32), np.ones((4, 1), np.float32), verbose=0)
    assert not model.optimizer.built
    after = samples.state_of(model.optimizer, *model.trainable_variables)
    np.testing.assert_equal(after, before)


@pytest.mark.parametrize("option", ["plain", "together", "not_finite_on_1"])
def test_one_merge_call_a_step(option, monkeypatch):
    """The summation; more would be an error within the decisions, and costs time without."""
    context = tf.distribute.ReplicaContext
    original, calls = context.merge_call, []

    def counted(self, *args, **kwargs):
        calls.append(self.replica_id_in_sync_group)
        return original(self, *args, **kwargs)

    optimizer, model = problem("adam", option, "rows", mirrored().scope(), mirrored().scope())
    optimizer.build(model)
    monkeypatch.setattr(context, "merge_call", counted)
    run_replicas(optimizer, model, "rows", data("rows", bad_replica(option)), graph=False)
    assert len(calls) == STEPS * REPLICAS


@pytest.mark.slow
def test_replicas_of_a_strategy_without_merge_calls():
    """On GPUs under XLA a merge call is an error; collectives, which do not survive an error."""
    said = column_runs.run_alone(column_runs.program("programs.without_merge_calls"), 200)
    assert said.split()[-3:] == ["plain", "together", "not_finite_on_1"]


def net(embedding: bool) -> keras.Model:
    layers = (
        [keras.layers.Embedding(7, 4, name="table"), keras.layers.GlobalAveragePooling1D()]
        if embedding
        else [keras.layers.Dense(4, activation="tanh", name="hidden")]
    )
    inputs = keras.Input([5], dtype="int32" if embedding else "float32")
    return keras.Sequential([inputs, *layers, keras.layers.Dense(1, name="head")], name="net")


def fitted(strategy, embedding: bool, make) -> keras.Model:
    """A net fitted under a strategy; the same for every strategy of the same global batch."""
    random = np.random.default_rng(3)
    x = random.integers(0, 7, (36, 5)) if embedding else random.normal(size=(36, 5))
    y = random.normal(size=(36, 1)).astype(np.float32)
    with strategy.scope() if strategy else contextlib.nullcontext():
        keras.utils.set_random_seed(0)
        model = net(embedding)
        model.compile(optimizer=make(), loss="mse")
    inputs = x.astype(np.int32 if embedding else np.float32)
    model.fit(inputs, y, batch_size=6, epochs=2, shuffle=False, verbose=0)
    return model


# Without steps_per_execution, which Keras 3.15 and before cannot do on two CPU replicas with any
# optimizer.
FITS = {name: samples.OPTIONS[name] for name in ("plain", "accumulation", "together")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fit", "embedding"),
    [
        ("together", True),
        pytest.param("plain", False, marks=pytest.mark.slow),
        pytest.param("accumulation", True, marks=pytest.mark.slow),
    ],
)
def test_fit_on_two_replicas_equals_fit_on_one(fit, embedding):
    options = FITS[fit]

    def make():
        return tf_graft.Adam(0.05, name="optimizer", **options)

    two = fitted(mirrored(), embedding, make)
    one = fitted(None, embedding, make)
    assert int(one.optimizer.iterations.numpy()) == 12 // options.get(
        "gradient_accumulation_steps", 1
    )
    expected = samples.state_of(one.optimizer, *one.trainable_variables)
    assert_equals_one(two.optimizer, two.trainable_variables, expected)


@pytest.mark.parametrize(
    ("bad", "graph"), [(0, True), pytest.param(1, False, marks=pytest.mark.slow)]
)
def test_inside_keras_loss_scale_optimizer(bad, graph):
    """Keras looks at its own replica only; whichever was not finite, nothing of ours moves."""
    with mirrored().scope():
        w = keras.Variable([1.0, 2.0], name="w")
        inner = tf_graft.Adam(0.1)
        outer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0)
        outer.build([w])

    def step(gradient):
        mirrored().run(lambda g: outer.apply([g], [w]), args=(gradient,))

    step = tf.function(step) if graph else step
    good = per_replica([[4.0, 8.0], [4.0, -4.0]])
    infinite = [[np.inf, 8.0], [4.0, -4.0]]
    step(good)
    after = w.numpy()
    assert not np.array_equal(after, [1.0, 2.0])
    step(per_replica(infinite if bad == 0 else infinite[::-1]))
    np.testing.assert_array_equal(copies(w), [after, after])
    assert np.isfinite(samples.state_of(inner)["w/momentum"]).all()
    assert int(inner.iterations.numpy()) == 1
    scale = float(outer.dynamic_scale.numpy())
    assert scale == (2.0 if bad == 0 else 4.0)  # Keras halves it for replica 0 only
    step(good)
    one = tf_graft.Adam(0.1)
    expected = keras.Variable([1.0, 2.0], name="w")
    for divisor in (4.0, scale):
        one.apply([tf.constant([8.0, 4.0]) / divisor], [expected])
    assert np.isfinite(w.numpy()).all()
    np.testing.assert_allclose(copies(w)[0], expected.numpy(), rtol=1e-5)
    np.testing.assert_array_equal(*copies(w))
