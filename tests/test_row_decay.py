"""`sparse="lazy_decay"`: rows decay while no gradient touches them, in every execution."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import samples
from support.replicas import row_steps

ROWS, WIDTH = 6, 3
IDS = ([0, 1, 1], [1, 4, 4], [1, 2, 0], [2, 2, 1], [1, 0, 3], [4, 1, 1])
EVERY = range(len(IDS))
RATE, DECAY = 0.25, 0.5
LAZY_DECAY = {"sparse": "lazy_decay", "weight_decay": DECAY}
REFUSED = ("adan", "ftrl", "novo_grad", "prodigy")
REFUSED += ("schedule_free_sgd", "schedule_free_adamw", "schedule_free_radam")
NAMES = [n for n in samples.listed(matrix=False, wrapper=False) if n not in REFUSED]
QUICK = ("adam", "row_wise_adagrad", "lamb")


def weights(dtype="float32"):
    return np.random.default_rng(3).normal(size=[ROWS, WIDTH]).astype(dtype)


def gradient(step, dtype="float32"):
    values = np.random.default_rng([5, step]).normal(size=[len(IDS[step]), WIDTH]).astype(dtype)
    return tf.IndexedSlices(tf.constant(values), tf.constant(IDS[step]), tf.constant([ROWS, WIDTH]))


def trained(optimizer, steps=EVERY, dtype="float32", wrap=lambda f: f, table=None):
    """The table after the steps, before idle rows catch up."""
    table = tf.Variable(weights(dtype), name="table") if table is None else table
    optimizer.build([table])
    step = wrap(lambda g: optimizer.apply([g], [table]))
    for number in steps:
        step(gradient(number, dtype))
    return table


def finished(optimizer, *args, **kwargs):
    table = trained(optimizer, *args, **kwargs)
    optimizer.finalize_variable_values([table])
    return table.numpy()


def decayed_by_hand(optimizer, rates=None, decays=None):
    """Float64: after each lazy step, the rows that it did not touch decay."""
    table = tf.Variable(weights("float64"), name="table")
    for step, ids in enumerate(IDS):
        rate = np.float32(RATE) if rates is None else np.float32(rates[step])
        share = np.float64(rate) * (DECAY if decays is None else np.float32(decays[step]))
        optimizer.apply([gradient(step, "float64")], [table])
        idle = np.setdiff1d(np.arange(ROWS), ids)
        value = table.numpy()
        value[idle] *= 1 - share
        table.assign(value)
    return table.numpy()


@pytest.mark.parametrize("name", samples.with_slow(NAMES, QUICK))
def test_rows_decay_as_if_each_update_had_come_by(name):
    def make(sparse):
        optimizer = tg.get({"class_name": name, "config": {"weight_decay": DECAY}})
        optimizer = type(optimizer).from_config(optimizer.get_config() | {"sparse": sparse})
        optimizer.learning_rate = RATE
        return optimizer

    actual = finished(make("lazy_decay"), dtype="float64")
    np.testing.assert_allclose(actual, decayed_by_hand(make("lazy")), rtol=1e-12, atol=1e-14)


WRAPPED = {
    "mixed_precision": lambda **o: tg.MixedPrecision(tg.Adagrad(RATE, weight_decay=DECAY), **o),
    "multi": lambda **o: tg.MultiOptimizer({"": tg.Adam(RATE, weight_decay=DECAY)}, **o),
    "graft": lambda **o: tg.AdaGraft(tg.Adam(RATE), tg.SGD(RATE), RATE, weight_decay=DECAY, **o),
    "two": lambda **o: tg.MixedPrecision(
        tg.MultiOptimizer({"": tg.SGD(RATE, weight_decay=DECAY)}), **o
    ),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_in_wrappers(name):
    actual = finished(WRAPPED[name](sparse="lazy_decay"), dtype="float64")
    expected = decayed_by_hand(WRAPPED[name](sparse="lazy"))
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


def test_schedules_multipliers_and_exclusions():
    rate = keras.optimizers.schedules.PolynomialDecay(0.5, len(IDS), 0.125)
    decay = keras.optimizers.schedules.InverseTimeDecay(0.5, 2, 0.5)

    def make(sparse, **options):
        return tg.SGD(rate, weight_decay=decay, sparse=sparse, **options)

    times = [float(rate(step)) for step in range(len(IDS))]
    shares = [float(decay(step)) for step in range(len(IDS))]
    actual = finished(make("lazy_decay"), dtype="float64")
    expected = decayed_by_hand(make("lazy"), times, shares)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)
    halved = {"learning_rate_multipliers": {"table": 0.5}}
    actual = finished(make("lazy_decay", **halved), dtype="float64")
    expected = decayed_by_hand(make("lazy", **halved), [x / 2 for x in times], shares)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)
    spared = {"exclude_from_weight_decay": ["table"]}
    optimizer = make("lazy_decay", **spared)
    np.testing.assert_array_equal(finished(optimizer), finished(make("lazy", **spared)))
    assert not [v for v in optimizer.variables if v.path.endswith("row_decay")]


def make_adam(**options):
    return tg.Adam(RATE, **LAZY_DECAY, **options)


@pytest.mark.parametrize("compiled", [False, True])
def test_functions_give_the_same_numbers(compiled):
    expected = finished(make_adam())
    actual = finished(make_adam(), wrap=lambda f: tf.function(f, jit_compile=compiled or None))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6 if compiled else 0)


@pytest.mark.slow
def test_two_replicas():
    optimizer, table, step = row_steps(make_adam, weights())
    for number in range(len(IDS)):
        whole = gradient(number)
        values, ids = whole.values.numpy(), whole.indices.numpy()
        step([values[:2], np.zeros_like(values[:2])], [ids[:2], ids[1:]])
    optimizer.finalize_variable_values([table])
    one = tf.Variable(weights(), name="table")
    alone = make_adam()
    for number in range(len(IDS)):
        g = gradient(number)
        values = tf.concat([g.values[:2], tf.zeros_like(g.values[:2])], 0)
        ids = tf.concat([g.indices[:2], g.indices[1:]], 0)
        alone.apply([tf.IndexedSlices(values, ids, [ROWS, WIDTH])], [one])
    alone.finalize_variable_values([one])
    np.testing.assert_allclose(table.numpy(), one.numpy(), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:Adam.apply. no gradient for table")
def test_only_updates_count():
    """Micro-steps and skipped updates let nothing decay; an update without the table neither."""
    twice = make_adam(gradient_accumulation_steps=2)
    table = trained(twice, steps=[0])
    spoiled = gradient(0)
    twice.finalize_variable_values([table])
    np.testing.assert_array_equal(table.numpy(), weights())
    skipping = make_adam()
    table = trained(skipping, steps=[])
    skipping.apply([tf.IndexedSlices(spoiled.values * np.nan, spoiled.indices)], [table])
    skipping.finalize_variable_values([table])
    assert skipping.skipped_steps == 1
    np.testing.assert_array_equal(table.numpy(), weights())
    both = make_adam()
    other = tf.Variable([[1.0, 2.0]], name="other")
    table = tf.Variable(weights(), name="table")
    both.build([table, other])
    both.apply([None, tf.ones([1, 2])], [table, other])
    both.finalize_variable_values([table, other])
    np.testing.assert_array_equal(table.numpy(), weights())


def test_a_dense_gradient_finds_the_rows_caught_up():
    def after(optimizer, dense):
        table = trained(optimizer, steps=[0, 1], dtype="float64")
        g = tf.convert_to_tensor(gradient(2, "float64"))
        if not dense:
            optimizer.finalize_variable_values([table])
        optimizer.apply([g], [table])
        return table.numpy()

    def make():
        return tg.SGD(RATE, **LAZY_DECAY)

    np.testing.assert_allclose(after(make(), True), after(make(), False), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_decays_its_master(dtype):
    """A share of 1e-4 is lost in half precision, where no update of one row would show it."""
    table = tf.Variable(tf.ones([ROWS, 1], dtype), name="table")
    optimizer = tg.SGD(0.01, weight_decay=0.01, sparse="lazy_decay")
    optimizer.build([table])
    one = tf.IndexedSlices(tf.zeros([1, 1], dtype), tf.constant([0]), [ROWS, 1])
    step = tf.function(lambda: optimizer.apply([one], [table]))
    for _ in range(400):
        step()
    optimizer.finalize_variable_values([table])
    expected = (1 - np.float64(np.float32(0.01)) * 0.01) ** 400
    np.testing.assert_allclose(table.numpy().astype("float32"), expected, rtol=0.004)
    (master,) = [v for v in optimizer.variables if v.path.endswith("master")]
    np.testing.assert_allclose(master.numpy()[1:], expected, rtol=1e-6)


def test_resumed_to_the_bit(tmp_path):
    def model():
        return keras.Sequential([keras.Input([1], dtype="int32"), keras.layers.Embedding(6, 3)])

    def steps(one, numbers):
        for number in numbers:
            one.optimizer.apply([gradient(number)], one.trainable_variables)

    whole, first = model(), model()
    for one in (whole, first):
        one.compile(make_adam())
        one.optimizer.build(one)
        one.set_weights([weights()])
    steps(whole, range(6))
    steps(first, range(3))
    first.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    steps(again, range(3, 6))
    for one in (whole, again):
        one.optimizer.finalize_variable_values(one.trainable_variables)
    np.testing.assert_array_equal(again.get_weights()[0], whole.get_weights()[0])


def test_fit_ends_with_rows_that_have_caught_up():
    ids = np.array([[0], [1]] * 8)
    model = keras.Sequential([keras.Input([1], dtype="int32"), keras.layers.Embedding(6, 3)])
    model.compile(tg.SGD(RATE, **LAZY_DECAY), "mse")
    model.set_weights([weights()])
    model.fit(ids, np.zeros([16, 1, 3]), batch_size=2, epochs=2, verbose=0)
    share = np.float64(np.float32(RATE)) * DECAY
    expected = weights("float64")[2:] * (1 - share) ** 16
    np.testing.assert_allclose(model.get_weights()[0][2:], expected, rtol=1e-6)


def test_rows_that_begin_anew_decay_from_then_on(tmp_path):
    """A row given to another id, and a row of a larger vocabulary."""
    optimizer = tg.SGD(RATE, **LAZY_DECAY)
    table = trained(optimizer, steps=[0, 1, 2])
    value = table.numpy()
    value[5] = 1
    table.assign(value)
    optimizer.reset_rows(table, [5])
    optimizer.finalize_variable_values([table])
    np.testing.assert_array_equal(table.numpy()[5], np.ones(WIDTH))

    def model(rows):
        made = keras.Sequential([keras.Input([1], dtype="int32")])
        made.add(keras.layers.Embedding(rows, 3, name="words"))
        made.compile(tg.SGD(RATE, **LAZY_DECAY), "mse")
        return made

    former, present = model(2), model(3)
    former.optimizer.build(former)
    former.optimizer.apply([tf.IndexedSlices([[0.0] * 3], [0], [2, 3])], former.trainable_variables)
    former.save_weights(tmp_path / "former.weights.h5")
    before, start = former.get_weights()[0], present.get_weights()[0]
    rows = {"words/embeddings": [0, 1, -1]}
    tg.vocabulary.load(present, tmp_path / "former.weights.h5", rows)
    present.optimizer.finalize_variable_values(present.trainable_variables)
    found = present.get_weights()[0]
    share = np.float64(np.float32(RATE)) * DECAY
    np.testing.assert_allclose(found[1], before[1] * (1 - share), rtol=1e-6)
    np.testing.assert_array_equal(found[2], start[2])


def test_a_share_of_all_leaves_zeros():
    optimizer = tg.SGD(1.0, weight_decay=1.0, sparse="lazy_decay")
    assert not finished(optimizer)[5].any()


@pytest.mark.parametrize("name", samples.with_slow(REFUSED, ["ftrl", "schedule_free_sgd"]))
def test_decay_of_another_form_is_refused(name):
    optimizer = tg.get({"class_name": name, "config": LAZY_DECAY})
    with pytest.raises(
        ValueError, match=r"lazy_decay.*'table' .*(way of its own|other weights); use"
    ):
        optimizer.build([tf.Variable(weights(), name="table")])


def test_what_makes_no_sense_is_refused():
    def build(optimizer):
        optimizer.build([tf.Variable(weights(), name="table")])

    with pytest.raises(ValueError, match=r"lazy_decay.*'table'.*use_ema"):
        build(make_adam(use_ema=True))
    half = tf.Variable(weights("float16"), dtype="bfloat16", name="table")
    with pytest.raises(ValueError, match="bfloat16 without a master"):
        make_adam(master_weights=False).build([half])
    inside = tg.AdaGraft(tg.Adam(weight_decay=0.1), tg.SGD(), sparse="lazy_decay")
    with pytest.raises(ValueError, match="Adam decays weights inside another optimizer"):
        build(inside)
    for around in (tg.AGN, tg.EMANesterov):
        with pytest.raises(ValueError, match="the state holds other weights"):
            build(around(tg.SGD(0.1, weight_decay=0.1), sparse="lazy_decay"))
    with pytest.raises(ValueError, match="SGD decays weights in a way of its own"):
        build(tg.wrap(keras.optimizers.SGD(0.1, weight_decay=0.1), sparse="lazy_decay"))
