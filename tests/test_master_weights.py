"""bfloat16 weights without float32 masters: rounded at random, the same in every execution."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import samples
from support.replicas import mirrored, row_steps

WITHOUT = {"master_weights": False}
ULP = 2.0**-8  # of bfloat16 numbers from 0.5 to 1
ROWS, WIDTH, STEPS = 6, 3, 5
IDS = ([0, 1, 1, 4], [1, 4, 4, 4], [5, 2, 0, 0], [2, 2, 1, 5], [0, 1, 2, 4])
EXECUTIONS = {
    "eager": lambda f: f,
    "function": tf.function,
    "xla": lambda f: tf.function(f, jit_compile=True),
}
OPTIONS = {
    "plain": {},
    "decay": {"weight_decay": 0.1},
    "clips": {"clipnorm": 0.5},
    "accumulation": {"gradient_accumulation_steps": 2},
    "averages": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 3},
    "rounded slots": {"state_dtype": "bfloat16"},
    "counts": {"count_rows": ["table"]},
    "inside": {"name": "larc"},
}


def start():
    return tf.cast(np.random.default_rng(0).normal(size=[ROWS, WIDTH]), tf.bfloat16)


def values(step):
    draw = np.random.default_rng([1, step]).normal(size=[len(IDS[step]), WIDTH])
    return tf.cast(draw.astype("float32"), tf.bfloat16)


def gradient(step, dense=False):
    slices = samples.slices(IDS[step], tf.cast(values(step), tf.float32), ROWS)
    return tf.convert_to_tensor(slices) if dense else slices


def make(option="plain"):
    adam = tg.Adam(1e-3, **WITHOUT, **{k: v for k, v in OPTIONS[option].items() if k != "name"})
    return tg.LARC(adam) if option == "inside" else adam


def trained(optimizer, wrap=lambda f: f, table=None, dense=False, steps=range(STEPS)):
    table = tf.Variable(start(), name="table") if table is None else table
    optimizer.build([table])
    apply = wrap(lambda g: optimizer.apply([g], [table]))
    for step in steps:
        apply(gradient(step, dense))
    return table


def bits(table):
    return tf.bitcast(tf.convert_to_tensor(table), tf.uint16).numpy()


def assert_same_bits(one, other):
    np.testing.assert_array_equal(bits(one), bits(other))


def state(optimizer, table):
    return samples.state_of(optimizer, table)


def test_a_table_without_a_master_takes_2_bytes_an_entry():
    table, half, full = (
        tf.Variable(tf.zeros([8, 4], t)) for t in ("bfloat16", "float16", "float32")
    )
    optimizer = tg.Adam(state_dtype="bfloat16", use_ema=True, **WITHOUT)
    optimizer.build([table, half, full])
    of_table, of_half, of_full = optimizer.state.parameters
    assert {role: slot.dtype for role, slot in of_table.slots.items()} == {
        "momentum": "bfloat16",
        "velocity": "bfloat16",
    }
    assert of_table.state["average"].dtype == "float32"
    assert ["master" in p.state for p in (of_table, of_half, of_full)] == [False, True, False]


@pytest.mark.parametrize("wrap", [tf.function, EXECUTIONS["xla"]], ids=["function", "xla"])
def test_tiny_steps_act_in_the_mean(wrap):
    """A sixteenth of an ulp a step: to the nearest, no weight would move."""
    count, steps = 10_000, 64
    gradients = tf.constant(np.random.default_rng(0).uniform(0.5, 1.5, count), tf.float32)
    first = tf.cast(tf.linspace(0.75, 0.95, count), tf.bfloat16)
    w, optimizer = tf.Variable(first), tg.SGD(ULP / 16, **WITHOUT)
    optimizer.build([w])
    apply = wrap(lambda: optimizer.apply([gradients], [w]))
    for _ in range(steps):
        apply()
    moved = (tf.cast(first, tf.float32) - tf.cast(w, tf.float32)).numpy() / ULP
    expected = steps / 16 * gradients.numpy()
    spread = np.sqrt(steps * 1 / 16 * 15 / 16)  # of one weight, in ulps: 1.9
    assert np.abs(moved - expected).max() < 6 * spread
    assert np.std(moved - expected) == pytest.approx(spread, rel=0.1)
    assert np.mean(moved - expected) == pytest.approx(0, abs=6 * spread / np.sqrt(count))


def test_a_decay_below_half_an_ulp_acts_in_the_mean():
    """Zero gradients; weights of equal bits go the same way, so the weights differ here."""
    first = tf.cast(np.arange(128, 256).astype("float32"), tf.bfloat16)
    w, optimizer = tf.Variable(first), tg.SGD(1.0, weight_decay=2.0**-12, **WITHOUT)
    optimizer.build([w])
    apply = tf.function(lambda: optimizer.apply([tf.zeros([128])], [w]))
    for _ in range(256):
        apply()
    share = np.mean(tf.cast(w, tf.float32) / tf.cast(first, tf.float32))
    np.testing.assert_allclose(share, (1 - 2.0**-12) ** 256, atol=0.01)


def test_a_step_of_zero_leaves_the_bits():
    optimizer, table = tg.SGD(0.0, **WITHOUT), tf.Variable(start())
    optimizer.apply([tf.ones([ROWS, WIDTH])], [table])
    assert_same_bits(table, start())


@pytest.mark.parametrize("option", samples.with_slow(OPTIONS, ["decay", "averages"]))
def test_every_execution_gives_the_same_bits(option):
    expected = trained(make(option))
    assert np.any(bits(expected) != bits(start()))
    for wrap in (EXECUTIONS["function"], EXECUTIONS["xla"]):
        assert_same_bits(trained(make(option), wrap), expected)


@pytest.mark.slow
def test_steps_that_xla_compiles_on_their_own():
    made = [tg.Adam(1e-3, jit_compile=compiles, **WITHOUT) for compiles in (True, False)]
    assert_same_bits(*(trained(optimizer, dense=True) for optimizer in made))


@pytest.mark.slow
def test_replicas_give_the_bits_of_one():
    _, table, step = row_steps(make, start())
    for number in range(STEPS):  # the last row of each on the second replica
        step([values(number)[:-1], values(number)[-1:]], [IDS[number][:-1], IDS[number][-1:]])
    for copy in mirrored().experimental_local_results(table):
        assert_same_bits(copy, trained(make()))


def test_rows_get_the_bits_of_the_whole_variable():
    """SGD changes nothing on zeros: row-sparse steps equal dense ones, repeated rows too."""
    tables = [trained(tg.SGD(0.1, **WITHOUT), dense=dense) for dense in (False, True)]
    assert_same_bits(*tables)
    assert_same_bits(tables[0][3], start()[3])  # which no batch touches
    touched = [row for row in range(ROWS) if row != 3]
    assert np.all(np.any(bits(tables[0]) != bits(start()), 1)[touched])


@pytest.mark.slow
@pytest.mark.parametrize("option", ["plain", "averages", "rounded slots", "accumulation"])
def test_saved_and_resumed_bit_for_bit(tmp_path, option):
    table = tf.Variable(start(), name="table")
    optimizer = make(option)
    trained(optimizer, table=table, steps=range(3))
    store, saved = {}, tf.Variable(table, name="table")
    optimizer.save_own_variables(store)
    kept = tf.train.Checkpoint(optimizer=optimizer, table=table).write(str(tmp_path / "one"))
    trained(optimizer, table=table, steps=range(3, STEPS))
    resumed = make(option)
    resumed.build([saved])
    resumed.load_own_variables(store)
    trained(resumed, table=saved, steps=range(3, STEPS))
    read, third = make(option), tf.Variable(tf.zeros_like(start()), name="table")
    read.build([third])
    tf.train.Checkpoint(optimizer=read, table=third).read(kept).assert_consumed()
    trained(read, table=third, steps=range(3, STEPS))
    for its, other in ((resumed, saved), (read, third)):
        samples.assert_same_state(state(its, other), state(optimizer, table))


@pytest.mark.slow
def test_a_model_is_saved_with_the_option(tmp_path):
    layer = keras.layers.Embedding(8, 4, dtype="bfloat16")
    model = keras.Sequential([keras.Input([2], dtype="int32"), layer, keras.layers.Flatten()])
    model.compile(tg.AdaGraft(tg.Adam(), tg.SGD(), **WITHOUT), "mse")
    x, y = np.arange(8).reshape(4, 2), np.ones([4, 8])
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.optimizer.master_weights is False
    for one in (model, again):
        one.fit(x, y, epochs=2, shuffle=False, verbose=0)
    assert_same_bits(again.weights[0], model.weights[0])
    assert not [v.path for v in again.optimizer.variables if v.path.endswith("master")]


def test_averages_are_those_of_the_rounded_weights():
    optimizer, table = tg.SGD(1e-3, use_ema=True, ema_momentum=0.5, **WITHOUT), tf.Variable(start())
    average = None
    for step in range(STEPS):
        trained(optimizer, table=table, steps=[step])
        weights = tf.cast(table, tf.float32).numpy()
        average = weights if average is None else 0.5 * average + 0.5 * weights
    (kept,) = optimizer.synchronized_averages()
    np.testing.assert_allclose(kept, average, rtol=1e-6)
    optimizer.finalize_variable_values([table])
    assert_same_bits(table, tf.cast(average, tf.bfloat16))


def test_constraints_hold():
    table = keras.Variable(start(), dtype="bfloat16", name="table")
    table.constraint = keras.constraints.NonNeg()
    optimizer = tg.SGD(0.1, **WITHOUT)
    optimizer.build([table])
    optimizer.apply([tf.zeros([ROWS, WIDTH])], [table])
    assert_same_bits(table, keras.constraints.NonNeg()(start()))


def test_the_largest_weights_stay_finite():
    largest = tf.cast([float(tf.bfloat16.max), float(tf.bfloat16.min)], tf.bfloat16)
    w = tf.Variable(largest)
    tg.SGD(1.0, nonfinite="apply", **WITHOUT).apply([tf.constant([-1e36, 1e36])], [w])
    assert_same_bits(w, largest)


@pytest.mark.slow
def test_regularizers_act_on_weights_without_a_master():
    penalty = tg.scaling.MasterRegularizer(keras.regularizers.L2(0.5))
    w = keras.Variable(tf.ones([4]), dtype="bfloat16", name="w")
    w.regularizer = penalty
    tg.MixedPrecision(tg.SGD(0.25, **WITHOUT), 1).apply([tf.zeros([4])], [w])
    np.testing.assert_array_equal(tf.cast(w, tf.float32), 0.75)


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (lambda: tg.Adam(master_weights=None), "master_weights must be True or False"),
        (lambda: tg.AGN(tg.SGD(0.1), **WITHOUT), "AGN exchanges weights in float32; give True"),
        (lambda: tg.AGN(tg.SGD(0.1, **WITHOUT)), "AGN exchanges weights in float32; give True"),
        (lambda: tg.AdaGraft(tg.Adam(**WITHOUT), tg.SGD()), "give it to AdaGraft"),
    ],
)
def test_what_is_refused(refused, reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        refused()
