"""TPUs: what is traced for one, and the numbers of what it does in its own way.

No TPU is there: `tpu_traced.py` traces under a `TPUStrategy` of invented devices. What is done for
TPUs alone also runs on the replicas of a `MirroredStrategy` here, taken for a TPU's.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft
from support import cells, columns, samples, schedule_samples, tpu_traced
from support.replicas import mirrored
from tf_graft.core.places import tpus

SLOW = pytest.mark.slow


def assert_traced(sample, option, how=None):
    reason = tpu_traced.trace(sample, option, how)
    assert reason is None or tpu_traced.known_refusal(reason), f"{option}, {how}: {reason}"
    return reason


@pytest.mark.parametrize(
    ("sample", "options"),
    [
        pytest.param(
            samples.BY_NAME[name],
            options,
            id=name,
            marks=[] if name in ("adam", "lars", "wrapped_nadam") else [SLOW],
        )
        for name, options in samples.spread(
            [s.name for s in samples.SAMPLES if not s.slow], tpu_traced.OPTIONS, 12
        ).items()
    ],
)
def test_a_step_is_traced(sample, options):
    for option in options:
        assert_traced(sample, option)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "how", "option"),
    [
        ("adam", "agn_mixed_precision", "together"),
        pytest.param("sgd_momentum", "agn_updates", "clipnorm", marks=SLOW),
        pytest.param("lars", "mixed_precision", "together", marks=SLOW),
        pytest.param("graft_schedules_global", "agn", "accumulation", marks=SLOW),
        pytest.param("wrapped_nadam", "agn", "not_finite", marks=SLOW),
    ],
)
def test_a_step_of_a_wrapper_is_traced(name, how, option):
    assert assert_traced(samples.BY_NAME[name], option, how) is None


@pytest.mark.parametrize("replicas", [1, 4])
def test_another_number_of_replicas_is_traced(replicas):
    adam = samples.BY_NAME["adam"]
    assert tpu_traced.traced(adam.make, under=tpu_traced.strategy(replicas)) is None


@pytest.mark.parametrize("options", [{}, {"use_ema": True, "gradient_accumulation_steps": 2}])
def test_rows_in_unknown_number_are_traced(options):
    """As in a `fit` whose last batch is smaller."""
    assert tpu_traced.traced(lambda: tf_graft.Adam(0.1, **options), rows=None) is None


@pytest.mark.slow
@pytest.mark.parametrize("rows", [tpu_traced.ROWS, None])
@pytest.mark.parametrize("options", [{}, {"use_ema": True, "gradient_accumulation_steps": 2}])
def test_counted_and_clipped_rows_are_traced(options, rows):
    """The ids of a batch can be counted if every batch has the same size."""

    def make(**given):
        return tf_graft.Adam(0.1, count_rows=[""], **given, **options)

    assert tpu_traced.traced(lambda: make(clip_rows={"": 1.0}), rows=rows) is None
    reason = tpu_traced.traced(lambda: make(clip_rows={"table": tf_graft.CowClip()}), rows=rows)
    assert reason is None if rows else "drop_remainder=True" in reason


@pytest.mark.slow
def test_no_schedule_holds_float64():
    schedules = [schedule for schedule, _ in schedule_samples.SAMPLES.values()]
    policies = {case["policy"]: case["params"] for case in schedule_samples.RECORDED}
    schedules += [tf_graft.schedules.LrPolicy(*policy) for policy in policies.items()]
    assert len(schedules) > 20
    under = tpu_traced.strategy()
    with under.scope():
        count = keras.Variable(0, dtype="int64", trainable=False)

    def step():
        return under.run(lambda: [schedule(count) for schedule in schedules])

    made = tf.function(step).get_concrete_function()
    assert tpu_traced.found_wrong(tpu_traced.graph_of(made)) is None


# The checks of the checks.


class Wrong(tf_graft.SGD):
    """Does in its step what it is told."""

    def step(self, g, w, s, lr, t):
        return self.told(g), {}


def told(function):
    optimizer = Wrong(0.1)
    optimizer.told = function
    return optimizer


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda g: tf.cast(tf.cast(g, tf.float64), tf.float32), "float64 in Cast"),
        (
            lambda g: tf.py_function(lambda x: x, [g], tf.float32),
            "XLA has no kernel for EagerPyFunc",
        ),
        (lambda g: g + undefined, "NameError: name 'undefined' is not defined"),  # noqa: F821
    ],
    ids=["float64", "kernel", "error"],
)
def test_the_trace_notices(function, reason):
    assert tpu_traced.traced(lambda: told(function)) == reason


def test_the_trace_notices_that_nothing_runs():
    made = tf.function(lambda: tf.constant(1)).get_concrete_function()
    assert tpu_traced.found_wrong(tpu_traced.graph_of(made)) == "nothing of it runs on a TPU"


# What runs around the steps.


def assert_all_traced(traces, at_least):
    found = [tpu_traced.found_wrong(tpu_traced.graph_of(trace)) for trace in traces]
    on_tpu = [reason for reason in found if reason != "nothing of it runs on a TPU"]
    assert len(on_tpu) >= at_least
    assert set(on_tpu) == {None}


CENTERED = {"communication_period": 2, "center_optimizer": {"name": "sgd", "use_ema": True}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "callback"),
    [
        pytest.param(
            lambda: tf_graft.Adam(tf_graft.schedules.ExpDecay(0.1, 9, 0.5), use_ema=True),
            keras.callbacks.SwapEMAWeights,
            id="averages",
        ),
        pytest.param(
            lambda: tf_graft.AGN("adam", **CENTERED), tf_graft.CenterWeights, id="agn", marks=SLOW
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # nothing runs
def test_fit_is_traced_to_its_end(make, callback):
    """Its steps, the swaps of the callback, and what it does when it ends."""
    with tpu_traced.strategy().scope():
        model = keras.Sequential(
            [
                keras.Input([4], dtype="int32"),
                keras.layers.Embedding(20, 3),
                keras.layers.BatchNormalization(),
                keras.layers.Flatten(),
                keras.layers.Dense(2, activation="softmax"),
            ]
        )
        model.compile(make(), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    x, y = np.zeros([6, 4], "int32"), np.zeros([6], "int32")
    with tpu_traced.never_run() as traces:
        swap = callback(swap_on_epoch=True)
        model.fit(x, y, batch_size=4, verbose=0, validation_data=(x, y), callbacks=[swap])
    assert_all_traced(traces, at_least=4)


def outside():
    """Optimizers and a variable of a TPU, to be used from outside of its replicas."""
    under = tpu_traced.strategy()
    with under.scope():
        model = [keras.Variable(np.ones([6, 2], "float32"), name="table")]
        optimizer, agn = tf_graft.Adam(0.5, use_ema=True), tf_graft.AGN("adam", **CENTERED)
        for each in (optimizer, agn):
            each.build(model)
    return under, model, optimizer, agn


@pytest.mark.slow
@pytest.mark.parametrize("within", [False, True], ids=["outside", "in_scope"])
def test_what_is_called_eagerly_is_traced_once(within):
    under, model, optimizer, agn = outside()
    gradient = tf.ones([6, 2])
    slices = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([1, 2, 2]))
    each = under.experimental_distribute_values_from_function(lambda _: gradient)
    calls = [
        lambda: optimizer.apply([gradient], model),
        lambda: optimizer.apply([each], model),
        lambda: optimizer.apply([slices], model),
        lambda: optimizer.update_step(gradient, model[0], optimizer.learning_rate),
        lambda: optimizer.synchronized_averages(),
        lambda: optimizer.finalize_variable_values(model),
        lambda: agn.center_values(),
        lambda: agn.finalize_variable_values(model),
    ]
    for call in calls:
        with tpu_traced.never_run() as traces:
            for _ in range(2):
                with under.scope() if within else tf.init_scope():
                    call()
        assert_all_traced(traces, at_least=2)
        half = len(traces) // 2
        assert {*map(id, traces[:half])} == {*map(id, traces[half:])}, "traced again"


@pytest.mark.slow
@pytest.mark.parametrize("rows", [3, None])
def test_apply_is_traced_in_a_function_outside_replicas(rows):
    _, model, optimizer, agn = outside()

    def step(values, ids, dense):
        optimizer.apply([tf.IndexedSlices(values, ids)], model)
        agn.apply([dense], model)

    specs = tf.TensorSpec([rows, 2]), tf.TensorSpec([rows], tf.int64), tf.TensorSpec([6, 2])
    made = tf.function(step).get_concrete_function(*specs)
    assert_all_traced([made], at_least=1)


# The numbers, on replicas that are taken for a TPU's.


def hidden(slices):
    """Slices of which it is known at run time only how many rows they have."""
    both = [
        tf.raw_ops.PlaceholderWithDefault(input=x, shape=[None, *x.shape[1:]])
        for x in (slices.values, slices.indices)
    ]
    return tf.IndexedSlices(*both)


class HiddenShapes(columns.Replicas):
    """Replicas that learn at run time only how many rows they are given."""

    problem = cells.Problem(averages_whole_tables=True)

    def gradients(self, values, rows, model):
        slices, *dense = super().gradients(values, rows, model)
        return [hidden(slices), *dense]


@pytest.fixture
def as_on_a_tpu(monkeypatch):
    """Takes mirrored replicas for a TPU's from here on."""
    return lambda: monkeypatch.setattr(tpus, "KINDS", tf.distribute.MirroredStrategy)


def filled(place, name, options):
    """The errors, as shares of what is allowed, and the digests of all that was computed."""
    both = list(columns.filled(place, samples.BY_NAME[name], options))
    return [cells[""].error for cells, _ in both], [digest for _, digest in both]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["adagrad", *(pytest.param(n, marks=SLOW) for n in ("adam", "lars", "wrapped_nadam"))]
)
def test_rows_gathered_as_on_a_tpu_give_the_same_numbers(name, as_on_a_tpu):
    options = ["together", "not_finite"]
    _, usual = filled(columns.Replicas(mirrored()), name, options)
    as_on_a_tpu()
    errors, digests = filled(columns.Replicas(mirrored()), name, options)
    assert max(errors) <= 1
    assert digests == usual  # bit for bit


@SLOW
def test_rows_in_unknown_number_give_the_right_numbers(as_on_a_tpu):
    as_on_a_tpu()
    errors, _ = filled(HiddenShapes(mirrored(), tf.function), "adam", ["together", "not_finite"])
    assert max(errors) <= 1


def run_on_replicas(slices, options):
    """One step of SGD on a table of zeros, which each replica gives slices of its own."""
    strategy = mirrored()
    with strategy.scope():
        table = keras.Variable(np.zeros([6, 1], "float32"))
        optimizer = tf_graft.SGD(1.0, **options)
        optimizer.build([table])

    @tf.function(autograph=False)
    def step():
        def on_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            ids, values = map(tf.constant, slices[int(tf.get_static_value(replica))])
            given = tf.IndexedSlices(tf.reshape(tf.cast(values, tf.float32), [-1, 1]), ids)
            alike = len({len(ids) for ids, _ in slices}) == 1
            optimizer.apply([given if alike else hidden(given)], [table])

        strategy.run(on_replica)

    step()
    first, second = (x.numpy()[:, 0] for x in strategy.experimental_local_results(table.value))
    np.testing.assert_array_equal(first, second)
    return first.tolist()


def test_rows_that_are_not_finite_leave_the_others(as_on_a_tpu):
    """Placing a replica's rows by products with zero would make others' rows NaN."""
    as_on_a_tpu()
    found = run_on_replicas([([1, 1], [1, np.inf]), ([0, 4], [2, 3])], {"nonfinite": "apply"})
    assert found == [-2, -np.inf, 0, 0, -3, 0]


def test_replicas_may_have_other_numbers_of_rows(as_on_a_tpu):
    slices = [([1, 1, 4], [1, 2, 4]), ([4], [8])]
    as_on_a_tpu()
    assert run_on_replicas(slices, {}) == [0, -3, 0, 0, -12, 0]


@pytest.mark.slow
def test_methods_run_traced_give_the_same_numbers(as_on_a_tpu):
    """From outside of the replicas, eagerly: they are traced once and see what is new."""

    def run():
        strategy = mirrored()
        with strategy.scope():
            model = [keras.Variable(np.ones([4, 2], "float32"), name="table")]
            optimizer = tf_graft.Adam(0.5, use_ema=True, ema_momentum=0.5)
            agn = tf_graft.AGN("adam", **CENTERED)
            for each in (optimizer, agn):
                each.build(model)
        found = []
        for factor in (1.0, 2.0, 3.0):
            rows = tf.IndexedSlices(factor * tf.ones([2, 2]), tf.constant([3, 3]))
            optimizer.apply([factor * tf.ones([4, 2])], model)
            agn.apply([rows], model)
            optimizer.update_step(rows, model[0], factor)
            found += [model[0].numpy(), optimizer.synchronized_averages()[0].numpy()]
            found += [agn.center_values()["table"]]
        for each in (optimizer, agn):
            each.finalize_variable_values(model)
            found.append(model[0].numpy())
        return found, optimizer

    usual, _ = run()
    as_on_a_tpu()
    found, optimizer = run()
    np.testing.assert_array_equal(found, usual)
    kept = optimizer.state._everywhere._traced
    assert {function.experimental_get_tracing_count() for function in kept.values()} == {1}
