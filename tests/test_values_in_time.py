"""Momentum, `beta_1` and weight decay as schedules, which follow the count of updates."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import samples
from support.replicas import mirrored
from tf_graft.core.nesting import nested

# By updates 1, 2 | 3 | 4 ...; Keras' boundaries are the last step of a piece.
IN_TIME = keras.optimizers.schedules.PiecewiseConstantDecay([1, 2], [0.5, 0.75, 0.25])
VALUES = [0.5, 0.5, 0.75, 0.25, 0.25]
STEPS = [([0.5, -1.0], [1, 1]), ([1.0, 0.25], [0, 2]), ([-0.5, 0.5], [2, 1]), ([2.0, 1.0], [1, 1])]
STEPS += [([0.25, -0.75], [0, 0])]

# One class for each that takes a schedule, alone and inside of others.
MADE = {
    "sgd": lambda v, **k: tg.SGD(0.1, momentum=v, **k),
    "nesterov": lambda v, **k: tg.SGD(0.1, momentum=v, nesterov=True, **k),
    "momentum": lambda v, **k: tg.Momentum(0.1, momentum=v, **k),
    "rmsprop": lambda v, **k: tg.RMSprop(0.1, momentum=v, **k),
    "lars": lambda v, **k: tg.LARS(0.1, momentum=v, **k),
    "adam": lambda v, **k: tg.Adam(0.1, beta_1=v, **k),
    "adamw": lambda v, **k: tg.AdamW(0.1, weight_decay=v, beta_1=v, **k),
    "radam": lambda v, **k: tg.RAdam(0.1, beta_1=v, **k),
    "adabelief": lambda v, **k: tg.AdaBelief(0.1, beta_1=v, **k),
    "nadam": lambda v, **k: tg.NAdam(0.1, beta_1=v, **k),
    "nadamw": lambda v, **k: tg.NAdamW(0.1, beta_1=v, **k),
    "adamax": lambda v, **k: tg.Adamax(0.1, beta_1=v, **k),
    "adopt": lambda v, **k: tg.ADOPT(0.1, beta_1=v, **k),
    "rowwise_adam": lambda v, **k: tg.RowWiseAdam(0.1, beta_1=v, **k),
    "yogi": lambda v, **k: tg.Yogi(0.1, beta_1=v, **k),
    "lion": lambda v, **k: tg.Lion(0.1, beta_1=v, beta_2=0.5, **k),
    "lamb": lambda v, **k: tg.LAMB(0.1, beta_1=v, **k),
    "muon": lambda v, **k: tg.Muon(0.1, momentum=v, others=tg.SGD(0.1, momentum=v), **k),
    "normuon": lambda v, **k: tg.NorMuon(0.1, momentum=v, others=tg.SGD(0.1), **k),
    "decay": lambda v, **k: tg.Adagrad(0.1, weight_decay=v, **k),
    "decay within": lambda v, **k: tg.Ftrl(0.1, weight_decay=v, **k),
    "decay of Keras'": lambda v, **k: tg.wrap(keras.optimizers.Ftrl(0.1), weight_decay=v, **k),
    "larc": lambda v, **k: tg.LARC(tg.SGD(0.1, momentum=v), weight_decay=v, **k),
    "graft": lambda v, **k: tg.AdaGraft(tg.Adam(0.1, beta_1=v), tg.SGD(1.0, momentum=v), **k),
    "mixed": lambda v, **k: tg.MixedPrecision(tg.SGD(0.1, momentum=v), 1, **k),
    "agn": lambda v, **k: tg.AGN(tg.SGD(0.1, momentum=v), None, 2, tg.SGD(1.0), **k),
}
QUICK = ("sgd", "graft")


def trained(optimizer, execution="eager", steps=STEPS, before=lambda number: None):
    """What is left of two variables, one of them with row-sparse gradients."""
    w, table = tf.Variable([1.0, -2.0]), tf.Variable([[1.0, 1.25], [1.5, 1.75], [2.0, 2.25]])

    def step(g, rows):
        slices = tf.IndexedSlices(tf.stack([g, 2 * g]), rows)
        optimizer.apply([g, slices], [w, table])

    if execution != "eager":
        step = tf.function(step, jit_compile=execution == "xla")
    for number, (g, rows) in enumerate(steps):
        before(number)
        step(tf.constant(g), tf.constant(rows))
    return np.concatenate([w.numpy().ravel(), table.numpy().ravel()])


def test_momentum_by_hand():
    optimizer = tg.SGD(0.1, momentum=IN_TIME)
    w, m, found = np.array([1.0, -2.0]), 0.0, trained(optimizer)
    for value, (g, _) in zip(VALUES, STEPS, strict=True):
        m = value * m - 0.1 * np.array(g)
        w = w + m
    np.testing.assert_allclose(found[:2], w, rtol=1e-6)


def test_weight_decay_by_hand():
    found = trained(tg.SGD(0.1, weight_decay=IN_TIME))
    w = np.array([1.0, -2.0])
    for value, (g, _) in zip(VALUES, STEPS, strict=True):
        w = w - 0.1 * np.array(g) - 0.1 * value * w
    np.testing.assert_allclose(found[:2], w, rtol=1e-6)


INSIDE = [
    lambda x: tg.SGD(0.1, momentum=x),
    lambda x: tg.Muon(0.1, momentum=x),
    lambda x: tg.NorMuon(0.1, momentum=x),
    lambda x: tg.Prodigy(weight_decay=x),
    lambda x: tg.Adan(weight_decay=x),
]


@pytest.mark.parametrize("make", INSIDE)
def test_inside_of_agn_it_counts_updates_though_local_state_begins_anew(make):
    """Each value is the one that was judged, so the schedule is never asked for another step."""

    class Seen(keras.optimizers.schedules.LearningRateSchedule):
        def __init__(self):
            self.steps = []

        def __call__(self, step):
            if tf.convert_to_tensor(step).dtype == tf.float32:  # in the step itself
                self.steps.append(step)
            return 0.1

        def get_config(self):
            return {}

    seen, w = Seen(), tf.Variable(tf.eye(2), name="kernel")
    optimizer = tg.AGN(
        make(seen), communication_period=2, reset_local_state=True, center_optimizer=tg.SGD(1.0)
    )
    for _ in range(5):
        optimizer.apply([tf.ones([2, 2])], [w])
    assert seen.steps == []


@pytest.mark.parametrize("name", MADE)
def test_a_constant_schedule_is_the_number(name):
    constant = keras.optimizers.schedules.PiecewiseConstantDecay([9], [0.5, 0.75])
    np.testing.assert_array_equal(trained(MADE[name](constant)), trained(MADE[name](0.5)))


@pytest.mark.parametrize("name", MADE)
def test_it_moves_and_executions_agree(name):
    eager = trained(MADE[name](IN_TIME))
    assert np.abs(eager - trained(MADE[name](0.5))).max() > 1e-5
    np.testing.assert_allclose(trained(MADE[name](IN_TIME), "function"), eager, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_xla_agrees(name):
    eager = trained(MADE[name](IN_TIME))
    np.testing.assert_allclose(trained(MADE[name](IN_TIME), "xla"), eager, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("execution", ["eager", "function"])
@pytest.mark.parametrize("count", [2**24 + 2, 2**31 + 4])
def test_the_count_of_updates_is_exact(count, execution):
    """Float32 has no odd numbers beyond 2^24: the boundary would come an update too late."""
    in_time = keras.optimizers.schedules.PiecewiseConstantDecay([count], [0.5, 0.25])
    sgd, decayed = tg.SGD(1.0, momentum=in_time), tg.SGD(1.0, weight_decay=in_time)
    v, w = tf.Variable([0.0]), tf.Variable([1.0])

    def step(g):
        sgd.apply([g], [v])
        decayed.apply([0 * g], [w])

    call = step if execution == "eager" else tf.function(step)
    call(tf.constant([-1.0]))
    w.assign([1.0])
    for optimizer in (sgd, decayed):
        optimizer.iterations.assign(count)
    for _ in range(2):
        call(tf.constant([0.0]))
    (momentum,) = (p.slots["momentum"] for p in sgd.state.parameters)
    assert np.abs(momentum.numpy()) == [0.5 * 0.25]
    assert w.numpy() == [0.5 * 0.75]


class Turning(keras.optimizers.schedules.LearningRateSchedule):
    """0.5, and from the third update on another value."""

    def __init__(self, value):
        self.value = value

    def __call__(self, step):
        return tf.where(tf.cast(step, "int64") < 2, 0.5, self.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, 1.5])
@pytest.mark.parametrize("name", [name for name in MADE if name not in ("agn", "mixed")])
def test_an_update_with_a_value_that_cannot_be_is_skipped(name, bad):
    if name.startswith("decay") and bad == 1.5:
        bad = -np.inf  # any finite decay can be
    optimizer = MADE[name](Turning(bad))
    assert np.isfinite(trained(optimizer)).all()
    assert (optimizer.skipped_steps.numpy(), optimizer.iterations.numpy()) == (3, 2)


@pytest.mark.parametrize("name", ["sgd", "adamw", "graft", "agn"])
def test_config_and_files(name, tmp_path):
    optimizer = MADE[name](IN_TIME)
    again = type(optimizer).from_config(optimizer.get_config())
    assert repr(again) == repr(optimizer)
    np.testing.assert_array_equal(trained(again), trained(optimizer))
    np.testing.assert_array_equal(
        trained(tg.get(tg.serialize(MADE[name](IN_TIME)))), trained(MADE[name](IN_TIME))
    )


def test_it_counts_updates_and_not_micro_steps():
    twice = [step for step in STEPS for _ in range(2)]
    found = trained(tg.SGD(0.1, momentum=IN_TIME, gradient_accumulation_steps=2), steps=twice)
    np.testing.assert_allclose(found, trained(tg.SGD(0.1, momentum=IN_TIME)), rtol=1e-6)


def test_it_goes_on_where_a_checkpoint_was(tmp_path):
    optimizer = tg.Adam(0.1, beta_1=IN_TIME)
    w = tf.Variable([1.0, -2.0], name="w")
    for g, _ in STEPS[:3]:
        optimizer.apply([tf.constant(g)], [w])
    path = tf.train.Checkpoint(w=w, optimizer=optimizer).write(str(tmp_path / "checkpoint"))
    fresh, v = tg.Adam(0.1, beta_1=IN_TIME), tf.Variable([0.0, 0.0], name="w")
    tf.train.Checkpoint(w=v, optimizer=fresh).read(path)
    for one, variable in ((optimizer, w), (fresh, v)):
        for g, _ in STEPS[3:]:
            one.apply([tf.constant(g)], [variable])
    np.testing.assert_array_equal(w, v)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "adamw", "larc"])
def test_two_replicas_equal_one(name):
    strategy = mirrored()
    with strategy.scope():
        optimizer, w = MADE[name](IN_TIME), tf.Variable([1.0, -2.0])

        @tf.function
        def step(g):
            strategy.run(lambda: optimizer.apply([g / 2], [w]))

        for g, _ in STEPS:
            step(tf.constant(g))
    one, v = MADE[name](IN_TIME), tf.Variable([1.0, -2.0])
    for g, _ in STEPS:
        one.apply([tf.constant(g)], [v])
    np.testing.assert_allclose(w.numpy(), v.numpy(), rtol=1e-6)


def set_in(optimizer, value):
    """Sets each argument of an optimizer, and of those within, that can be set between steps."""
    for each in nested(optimizer):
        for name in ("momentum", "beta_1", "weight_decay"):
            if isinstance(getattr(each, name, None), tg.Settable):
                setattr(each, name, value)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MADE]
)
def test_a_value_set_between_steps_equals_the_schedule(name):
    optimizer = MADE[name](tg.Settable(VALUES[0]))
    found = trained(optimizer, "function", before=lambda n: set_in(optimizer, VALUES[n]))
    np.testing.assert_array_equal(found, trained(MADE[name](IN_TIME), "function"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "adamw", "graft"])
def test_a_value_set_between_steps_is_seen_by_xla_and_by_replicas(name):
    optimizer = MADE[name](tg.Settable(VALUES[0]))
    found = trained(optimizer, "xla", before=lambda n: set_in(optimizer, VALUES[n]))
    np.testing.assert_allclose(found, trained(MADE[name](IN_TIME)), rtol=1e-5, atol=1e-6)
    strategy = mirrored()
    with strategy.scope():
        optimizer, w = MADE[name](tg.Settable(VALUES[0])), tf.Variable([1.0, -2.0])
    step = tf.function(lambda g: strategy.run(lambda: optimizer.apply([g / 2], [w])))
    one, v = MADE[name](IN_TIME), tf.Variable([1.0, -2.0])
    for value, (g, _) in zip(VALUES, STEPS, strict=True):
        set_in(optimizer, value)
        step(tf.constant(g))
        one.apply([tf.constant(g)], [v])
    np.testing.assert_allclose(w.numpy(), v.numpy(), rtol=1e-6)


def test_a_value_that_was_set_is_saved(tmp_path):
    optimizer = tg.LARC(tg.AdamW(0.1, weight_decay=tg.Settable(0.5), beta_1=tg.Settable(0.5)))
    w = tf.Variable([1.0, -2.0], name="w")
    optimizer.apply([tf.constant([0.5, 1.0])], [w])
    optimizer.weight_decay, optimizer.optimizer.beta_1 = 0.25, 0.75
    path = tf.train.Checkpoint(optimizer=optimizer).write(str(tmp_path / "checkpoint"))
    store = {}
    optimizer.save_own_variables(store)
    twin = tg.deserialize(tg.serialize(optimizer))
    assert repr(twin) == repr(optimizer)
    set_in(optimizer, 0.125)
    set_in(twin, 0.125)
    tf.train.Checkpoint(optimizer=optimizer).restore(path)
    twin.build([w])
    twin.load_own_variables(store)
    for restored in (optimizer, twin):
        assert float(restored.weight_decay) == 0.25
        assert float(restored.optimizer.beta_1) == 0.75


def test_optimizers_do_not_share_a_settable():
    given = tg.Settable(0.5)
    one, other = tg.SGD(momentum=given), tg.SGD(momentum=given)
    one.momentum = 0.25
    assert float(other.momentum) == 0.5


def test_setting_is_checked():
    optimizer = tg.SGD(momentum=tg.Settable(0.5))
    with pytest.raises(ValueError, match=r"SGD\(momentum=2.0\): momentum must lie in \[0, 1\]"):
        optimizer.momentum = 2.0
    plain = tg.SGD(momentum=0.5)
    plain.build([tf.Variable(1.0)])
    with pytest.raises(
        ValueError, match=r"make it momentum=tf_graft.Settable\(...\), or make a new"
    ):
        plain.momentum = 0.25


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: tg.SGD(momentum=keras.optimizers.schedules.ExponentialDecay(2.0, 1, 0.5)),
            ValueError,
            r"ExponentialDecay\(...\)\): at step 0 it is 2, and momentum must lie in",
        ),
        (lambda: tg.Adam(beta_2=IN_TIME), TypeError, "beta_2 must be a number"),
        (lambda: tg.Adam(beta_1={"class_name": "x"}), TypeError, "'x' is not a schedule"),
        (lambda: tg.SGD(momentum=lambda: 0.5), TypeError, "momentum must be a number"),
        (lambda: tg.SGD(momentum=tg.Settable(2.0)), ValueError, "momentum must lie in"),
        (lambda: tg.SGD(tg.Settable(0.1)), TypeError, "give a number here"),
    ],
)
def test_bad_schedules(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_every_class_that_takes_one_is_here():
    taken = {
        sample.cls
        for sample in samples.SAMPLES
        for name in ("momentum", "beta_1")
        if getattr(getattr(sample.cls, name, None), "_scheduled", False)
    }
    assert taken <= {type(make(0.5)) for make in MADE.values()}
