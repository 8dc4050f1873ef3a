"""State in bfloat16, with and without an error term: the same bits in every execution, no drift."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import replicas
from support.samples import BY_NAME
from tf_graft.core.tensors import rounding

HALF = {"state_dtype": "bfloat16"}
CORRECTED = {"state_dtype": "bfloat16+8"}
both = pytest.mark.parametrize("dtype", [HALF, CORRECTED], ids=["half", "corrected"])
STEPS = 6


def model():
    draw = np.random.default_rng(0)
    shapes = {"kernel": (8, 4), "bias": (4,)}
    return [tf.Variable(draw.normal(size=s).astype("float32"), name=p) for p, s in shapes.items()]


def gradients(steps=STEPS):
    draw = np.random.default_rng(1)
    shapes = ((8, 4), (4,))
    return [[tf.constant(draw.normal(size=s), tf.float32) for s in shapes] for _ in range(steps)]


def state(optimizer, weights):
    """The values of all variables; those of slots with their error terms."""
    named = dict(optimizer.state.named())
    for name in [name for name in named if name.endswith("_error")]:
        error, role = named.pop(name), name.removesuffix("_error")
        named[role] = rounding.joined(
            tf.convert_to_tensor(named[role]), tf.convert_to_tensor(error)
        )
    values = {name: tf.cast(v, tf.float64).numpy() for name, v in named.items()}
    return values | {w.name: w.numpy() for w in weights}


def trained(optimizer, apply=None, steps=None):
    weights = model()
    optimizer.build(weights)
    for g in steps or gradients():
        (apply or optimizer.apply)(g, weights)
    return state(optimizer, weights)


def assert_equal(one, other, rtol=0):
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, rtol=rtol, atol=rtol, err_msg=name)


def test_what_is_halved():
    """Slots of the variable's shape; not averages, masters, norms, sums, or what must be exact."""
    weights = [tf.Variable(tf.ones([4, 3]), name="kernel"), tf.Variable(tf.ones([2], tf.bfloat16))]
    weights.append(tf.Variable(tf.ones([2], tf.float64), name="double"))
    options = {**HALF, "use_ema": True, "gradient_accumulation_steps": 2}
    for make in (tg.Adam, tg.Prodigy, tg.COCOB, tg.Adafactor, tg.NovoGrad):
        optimizer = make(**options)
        optimizer.build(weights)
        kernel, half, double = optimizer.state.parameters
        for p, expected in ((kernel, "bfloat16"), (half, "bfloat16"), (double, "float64")):
            for role, slot in p.slots.items():
                whole = slot.shape == p.variable.shape and role not in ("initial", "bet")
                rounds = whole and slot.dtype != "int64"
                found = expected if rounds or p is double else "float32"
                if make is tg.Adafactor and p is kernel:
                    found = "float32"  # its factors
                assert slot.dtype == found, (make, role)
            assert all(slot.dtype != "bfloat16" for slot in p.state.values())


@pytest.mark.slow
@both
@pytest.mark.parametrize("name", ["adam", "lion", "adagrad"])
def test_every_execution_gives_the_same_state(name, dtype):
    def make(**options):
        return BY_NAME[name].make(0.01, **dtype, **options)

    expected = trained(make())
    optimizer = make()
    assert_equal(expected, trained(optimizer, tf.function(optimizer.apply)))
    compiled = make()
    applied = tf.function(compiled.apply, jit_compile=True)
    rtol = 1e-6 if dtype is HALF else 2**-14  # XLA is an ulp off, which may change a unit's draw
    assert_equal(expected, trained(compiled, applied), rtol)
    assert_equal(expected, trained(make(jit_compile=True)), rtol)


@pytest.mark.slow
@both
def test_replicas_give_the_same_state(dtype):
    optimizer, strategy = tg.Adam(0.01, **dtype), replicas.mirrored()
    with strategy.scope():
        weights = model()
        optimizer.build(weights)

    @tf.function
    def step(g):
        optimizer.apply([x / 2 for x in g], weights)

    for g in gradients():
        strategy.run(step, (g,))
    assert_equal(trained(tg.Adam(0.01, **dtype)), state(optimizer, weights))


@both
def test_rows_get_the_bits_of_the_whole_variable(dtype):
    """Adagrad changes nothing on zeros: row-sparse steps equal dense ones."""
    draw = np.random.default_rng(2)
    results = []
    steps = [(draw.permutation(8)[:3], draw.normal(size=(3, 4))) for _ in range(STEPS)]
    for dense in (True, False):
        table = model()[:1]
        optimizer = tg.Adagrad(0.1, **dtype)
        optimizer.build(table)
        for rows, values in steps:
            values = tf.constant(values, tf.float32)
            g = tf.IndexedSlices(values, tf.constant(rows), [8, 4])
            optimizer.apply([tf.convert_to_tensor(g) if dense else g], table)
        results.append(state(optimizer, table))
    assert_equal(*results)


@pytest.mark.slow
def test_rounding_is_right_in_the_mean():
    """The nearest number of bfloat16 is up to 2^-9 off; the mean of many draws is not."""
    x = tf.constant(np.random.default_rng(3).normal(size=2000), tf.float32)
    w, before, draws = tf.reverse(x, [0]), tf.zeros_like(x), 500
    total = tf.zeros_like(x)
    for t in range(draws):
        total += tf.cast(rounding.rounded(x, before, w, tf.constant(float(t)), "m"), tf.float32)
    error = np.abs(total / draws - x) / np.abs(x)
    assert error.max() < 2**-8 * 5 / np.sqrt(draws)
    assert np.abs(error.mean()) > 0  # they are random


def test_slots_of_equal_values_get_different_noise():
    x, t = tf.linspace(1.0, 2.0, 100), tf.constant(1.0)
    momentum, velocity = (rounding.rounded(x, x, x, t, name) for name in ("momentum", "velocity"))
    assert np.not_equal(momentum, velocity).any()


def test_an_error_term_keeps_the_upper_24_bits():
    """Over all exponents, both signs, zeros, and numbers beyond the largest of bfloat16."""
    draw = np.random.default_rng(4).integers(0, 2**32, 20_000, np.uint32) & 0xFFFFFF00
    x = draw.view("float32")
    x = np.concatenate([x[np.isfinite(x)], np.float32([0.0, -0.0, 3.4028e38])])
    x = (x.view("uint32") & 0xFFFFFF00).view("float32")
    upper, error = rounding.split(tf.constant(x))
    assert (upper.dtype, error.dtype) == (tf.bfloat16, tf.int8)
    joined = rounding.joined(upper, error).numpy()
    np.testing.assert_array_equal(joined.view("uint32"), x.view("uint32"))
    fits = np.isfinite(tf.cast(upper, "float32"))
    normal = fits & (np.abs(x) > 1e-37)
    np.testing.assert_allclose(tf.cast(upper, "float64")[normal], x[normal], rtol=2**-8)


def test_the_error_term_makes_slots_256_times_as_fine():
    exact = trained(tg.Adam(0.01))
    for dtype, unit in ((HALF, 2**-7), (CORRECTED, 2**-15)):
        found = trained(tg.Adam(0.01, **dtype))
        roles = [role for role in exact if role.endswith(("momentum", "velocity"))]
        off = max(np.abs(found[r] - exact[r]).max() / np.abs(exact[r]).max() for r in roles)
        assert 0.1 * unit < off < 8 * unit  # 0.5 to 2 units of 20 seeds


@pytest.mark.slow
@both
def test_a_small_share_is_not_lost(dtype):
    """0.999 of the mean square and 0.001 of the new one: rounded to the nearest it would stay."""
    w = tf.Variable(tf.ones([2000]), name="w")
    w.assign(tf.linspace(1.0, 2.0, 2000))
    optimizer = tg.Adam(0.0, **dtype)
    optimizer.build([w])
    (parameter,) = optimizer.state.parameters
    parameter.slots["velocity"].assign(tf.ones([2000]))
    apply = tf.function(lambda: optimizer.apply([tf.zeros([2000])], [w]))
    for _ in range(200):
        apply()
    mean = tf.cast(parameter.slots["velocity"], tf.float32).numpy().mean()
    np.testing.assert_allclose(mean, 0.999**200, rtol=5e-3)


@both
def test_saved_and_resumed_bit_for_bit(tmp_path, dtype):
    def half(optimizer, weights, steps):
        for g in steps:
            optimizer.apply(g, weights)

    everything = gradients(8)
    weights, optimizer = model(), tg.Adam(0.01, **dtype)
    optimizer.build(weights)
    half(optimizer, weights, everything[:4])
    store = {}
    optimizer.save_own_variables(store)
    other, resumed = model(), tg.Adam(0.01, **dtype)
    resumed.build(other)
    for mine, theirs in zip(other, weights, strict=True):
        mine.assign(theirs)
    resumed.load_own_variables(store)
    checkpoint = tf.train.Checkpoint(optimizer=optimizer).write(str(tmp_path / "checkpoint"))
    third = [tf.Variable(w, name=w.name.partition(":")[0]) for w in weights]
    read = tg.Adam(**dtype)
    read.build(third)
    tf.train.Checkpoint(optimizer=read).read(checkpoint).assert_consumed()
    for one, its in ((optimizer, weights), (resumed, other), (read, third)):
        half(one, its, everything[4:])
    assert_equal(state(optimizer, weights), state(resumed, other))
    assert_equal(state(optimizer, weights), state(read, third))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: tg.Adam(state_dtype="float16"), "must be one of None, 'bfloat16', 'bfloat16\\+8'"),
        (lambda: tg.AGN(tg.SGD(0.1), **HALF), "AGN exchanges state in float32; give None"),
        (lambda: tg.AGN(tg.Adam(0.1, **HALF)), "AGN exchanges state in float32; give None"),
        (lambda: trained(tg.SGD(**HALF)), r"SGD\(state_dtype='bfloat16'\): no slot"),
        (lambda: trained(tg.wrap(keras.optimizers.Adam(), **HALF)), "no slot"),
        (lambda: tg.AdaGraft(tg.Adam(**HALF), tg.SGD()), "give it to AdaGraft"),
    ],
)
def test_what_is_refused(make, reason):
    with pytest.raises(ValueError, match=reason):
        make()
