"""Cautious and corrected weight decay: rows, executions, replicas, wrappers, files.

`test_equations.py` holds each optimizer to the papers' equations, and `test_muon.py` one to a run
of another program.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import samples
from support.replicas import row_steps

ROWS, WIDTH, DECAY, HIGHEST = 6, 3, 0.5, 0.5
IDS = ([0, 1, 1], [1, 4, 4], [1, 2, 0], [2, 2, 1])
RATES = (0.25, 0.5, 0.25, 0.125)
MODES = {"cautious": tg.CautiousDecay(), "corrected": tg.CorrectedDecay(HIGHEST)}
EXECUTIONS = {
    "eager": lambda f: f,
    "function": tf.function,
    "xla": functools.partial(tf.function, jit_compile=True),
}
each_mode = pytest.mark.parametrize("mode", MODES)


def schedule():
    return keras.optimizers.schedules.PiecewiseConstantDecay([0, 1, 2], RATES)


def decaying(mode, **more):
    return {"weight_decay": DECAY, "weight_decay_mode": MODES[mode], **more}


def weights(dtype="float32"):
    return np.random.default_rng(3).normal(size=[ROWS, WIDTH]).astype(dtype)


def values(step):
    return np.random.default_rng([5, step]).normal(size=[len(IDS[step]), WIDTH]).astype("float32")


def gradient(step):
    ids = tf.constant(IDS[step])
    return tf.IndexedSlices(tf.constant(values(step)), ids, tf.constant([ROWS, WIDTH]))


def decayed(mode, w, d, rate):
    """What decay takes, from the papers: of AdamC, and where u w >= 0 of a step d = -rate u."""
    if mode == "corrected":
        return rate * rate / HIGHEST * DECAY * w
    return rate * DECAY * w * (d * w <= 0)


def expected(mode, sparse="lazy"):
    """SGD in float64; untouched rows, whose step is 0, decay unless lazy."""
    w = weights("float64")
    for step, rate in enumerate(RATES):
        d = np.zeros_like(w)
        np.add.at(d, IDS[step], -rate * values(step).astype("float64"))
        moved = d - decayed(mode, w, d, rate)
        rows = sorted({*IDS[step]}) if sparse == "lazy" else slice(None)
        w[rows] += moved[rows]
    return w


def trained(optimizer, wrap=lambda f: f, form=lambda g: g):
    table = tf.Variable(weights(), name="table")
    optimizer.build([table])
    step = wrap(lambda g: optimizer.apply([form(g)], [table]))
    for number in range(len(IDS)):
        step(gradient(number))
    optimizer.finalize_variable_values([table])
    return table.numpy()


@each_mode
@pytest.mark.parametrize("sparse", ["lazy", "exact", "lazy_decay"])
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_rows_decay_as_the_equations_say(execution, sparse, mode):
    optimizer = tg.SGD(schedule(), sparse=sparse, **decaying(mode))
    found = trained(optimizer, EXECUTIONS[execution])
    np.testing.assert_allclose(found, expected(mode, sparse), rtol=1e-5, atol=1e-6)


@each_mode
def test_replicas_decay_once(mode):
    _, table, step = row_steps(lambda: tg.SGD(schedule(), **decaying(mode)), weights())
    for number, ids in enumerate(IDS):
        both = values(number)[:2], np.pad(values(number)[2:], [[0, 1], [0, 0]])
        step(both, [ids[:2], [ids[2]] * 2])
    np.testing.assert_allclose(table.numpy(), expected(mode), rtol=1e-5, atol=1e-6)


def rule(optimizer):
    return {"sgd": tg.SGD, "momentum": tg.Momentum, "adam": tg.Adam, "lion": tg.Lion}[optimizer]


@each_mode
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "lion"])
@pytest.mark.parametrize("jit_compile", [False, "auto"])
def test_graph_equals_eager_bit_for_bit(optimizer, mode, jit_compile):
    def states(wrap):
        made = rule(optimizer)(schedule(), jit_compile=jit_compile, **decaying(mode))
        variables = [tf.Variable(weights(), name="a"), tf.Variable([0.0, -2.0], name="b")]
        made.build(variables)
        step = wrap(lambda *g: made.apply(g, variables))
        for number in range(len(IDS)):
            step(tf.convert_to_tensor(gradient(number)), tf.constant([1.0, -3.0]))
        return samples.state_of(made, *variables)

    samples.assert_same_state(states(tf.function), states(lambda f: f))


WRAPPED = {
    "mixed_precision": lambda **given: tg.MixedPrecision(tg.Adam(schedule(), **given)),
    "given outside": lambda **given: tg.MixedPrecision(tg.Adam(schedule()), **given),
    "parts": lambda **given: tg.MultiOptimizer({"": tg.Adam(schedule(), **given)}),
    "all parts": lambda **given: tg.MultiOptimizer({"": tg.Adam(schedule())}, **given),
    "scaled": lambda **given: tg.Adam(schedule(), loss_scale_factor=1.0, **given),
}


@each_mode
@pytest.mark.parametrize("name", WRAPPED)
def test_wrappers_leave_it_to_the_optimizer(name, mode):
    optimizer = WRAPPED[name](**decaying(mode))
    scale = float(optimizer.scale_loss(tf.constant(1.0)))

    def scaled(g):
        return tf.IndexedSlices(scale * g.values, g.indices, g.dense_shape)

    alone = trained(tg.Adam(schedule(), **decaying(mode)))
    plain = trained(tg.Adam(schedule(), weight_decay=DECAY))
    np.testing.assert_allclose(trained(optimizer, form=scaled), alone, rtol=1e-6, atol=1e-7)
    assert np.abs(alone - plain).max() > 0.01


def test_a_mode_that_is_set_is_that_of_the_optimizer_inside():
    agn = tg.AGN(tg.SGD(0.1, weight_decay=0.1))
    for optimizer in (tg.LARC(tg.SGD(0.1, weight_decay=0.1)), agn):
        optimizer.weight_decay_mode = "cautious_decay"
        assert optimizer.optimizer.weight_decay_mode == tg.CautiousDecay()
    assert agn.center_optimizer.weight_decay_mode == tg.CautiousDecay()
    parts = tg.MultiOptimizer({"a": tg.SGD(0.1, weight_decay=0.1), ".*": tg.Adam(weight_decay=0.2)})
    parts.weight_decay_mode = tg.CautiousDecay()
    parts.build([tf.Variable(1.0, name="a"), tf.Variable(1.0, name="b")])
    assert [x.weight_decay_mode for x in parts.groups.values()] == [tg.CautiousDecay()] * 2


def test_signs_of_the_smallest_numbers_count():
    w = tf.Variable([1e-30, 1e-30, -1e-30, 0.0])
    optimizer = tg.SGD(1.0, **decaying("cautious"))
    optimizer.apply([tf.constant([1e-30, -1e-30, 1e-30, 0.0])], [w])
    np.testing.assert_allclose(w, [-0.5e-30, 2e-30, -2e-30, 0.0], rtol=1e-6)


@each_mode
def test_nan_stays_where_nobody_judges(mode):
    w = tf.Variable([np.nan, 1.0, np.inf, 1.0])
    optimizer = tg.SGD(0.5, nonfinite="apply", **decaying(mode))
    optimizer.apply([tf.constant([-1.0, np.nan, -1.0, 1.0])], [w])
    assert np.isfinite(w.numpy()).tolist() == [False, False, False, True]


def test_a_row_that_counts_has_its_own_rate():
    """Of half the learning rate: the share of the highest one is halved, too."""
    table = tf.Variable([[4.0], [4.0]], name="table")
    mode = {"weight_decay": 1.0, "weight_decay_mode": tg.CorrectedDecay(0.5)}
    rows = tg.RowFrequency(1.0, lowest=0.5, highest=0.5)
    optimizer = tg.SGD(0.5, count_rows={"table": rows}, **mode)
    optimizer.apply([tf.IndexedSlices([[0.0]], [1])], [table])
    np.testing.assert_allclose(table, [[4.0], [4 - 0.25 * 0.5 * 4]])


@pytest.mark.parametrize(
    "given",
    [
        tg.CorrectedDecay(0.5),
        {"name": "corrected_decay", "max_learning_rate": 0.5},
        keras.saving.serialize_keras_object(tg.CorrectedDecay(0.5)),
    ],
    ids=["object", "flat", "of Keras"],
)
def test_modes_in_every_form(given):
    optimizer = tg.Adam(weight_decay=0.1, weight_decay_mode=given)
    assert optimizer.weight_decay_mode == tg.CorrectedDecay(0.5)
    for twin in (
        tg.deserialize(tg.serialize(optimizer)),
        tg.Adam.from_config(optimizer.get_config()),
        tg.LARC(optimizer).optimizer,
    ):
        assert twin.weight_decay_mode == optimizer.weight_decay_mode


@pytest.mark.slow
@each_mode
def test_in_fit_saved_and_resumed(mode, tmp_path):
    def made():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(3)])
        model.compile(tg.LARC(tg.Adam(0.1, **decaying(mode))), "mse")
        return model

    x, y = np.array([[0.0, 1.0], [1.0, 1.0]]), np.ones([2, 3])
    model = made()
    model.fit(x, y, batch_size=1, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.weight_decay_mode == MODES[mode]
    for each in (model, loaded):
        each.fit(x, y, batch_size=1, shuffle=False, verbose=0)
    np.testing.assert_array_equal(model.get_weights()[0], loaded.get_weights()[0])


@pytest.mark.parametrize("name", samples.DECAYING_THEMSELVES)
def test_optimizers_with_a_decay_of_their_own_refuse_it(name):
    cls, said = getattr(tg, name), rf"{name}\(weight_decay_mode=CautiousDecay\(\)\): {name} decays"
    with pytest.raises(ValueError, match=said):
        cls(weight_decay_mode=tg.CautiousDecay(), weight_decay=0.1)
    optimizer = cls(weight_decay=0.1)
    optimizer.weight_decay_mode = "cautious_decay"
    with pytest.raises(ValueError, match=said):
        optimizer.build([tf.Variable(1.0)])
    larc = tg.LARC(tg.NovoGrad(), weight_decay=0.1, weight_decay_mode="cautious_decay")
    with pytest.raises(ValueError, match=r"NovoGrad\(weight_decay_mode=CautiousDecay\(\)\)"):
        larc.build([tf.Variable(1.0)])


@pytest.mark.parametrize(
    "make",
    [
        lambda mode: tg.Adam(weight_decay_mode=mode),
        lambda mode: tg.wrap(keras.optimizers.Adam(weight_decay=0.1), weight_decay_mode=mode),
        lambda mode: tg.LARC(tg.Adam(), weight_decay_mode=mode),
        lambda mode: tg.AdaGraft(tg.SGD(weight_decay=0.1), "adam", weight_decay_mode=mode),
    ],
    ids=["alone", "of Keras", "inside", "outside"],
)
def test_a_mode_without_decay_is_refused(make):
    with pytest.raises(ValueError, match=r"it does nothing without weight_decay; give weight_dec"):
        make(tg.CautiousDecay()).build([tf.Variable(1.0)])


SWA = keras.saving.serialize_keras_object(tg.averages.SWA())


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (tg.CautiousDecay, TypeError, "weight_decay_mode must be None, tf_graft.CautiousDecay"),
        ("corrected_decay", TypeError, "max_learning_rate"),
        ({"name": "corrected_decay", "max_learning_rate": 0.0}, ValueError, "above 0"),
        (SWA, TypeError, "'SWA' is not a class of mode"),
    ],
)
def test_nonsense_is_refused(given, error, said):
    with pytest.raises(error, match=said):
        tg.Adam(weight_decay=0.1, weight_decay_mode=given)
