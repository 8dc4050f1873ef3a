"""G25: float16 and bfloat16 variables follow float32 within their rounding."""

import numpy as np
import pytest
import tensorflow as tf

import tf_graft
from support.samples import BY_NAME, OPTIONS, each, having, of_each_class, slices, state_of

HALF = ["float16", "bfloat16"]
# Half an ulp relative to the number, at most: they have 11 and 8 bits.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
START = np.array([1.0, -1.5, 1.25, -1.75], "float32")
STEPS = 200


def directions(steps=STEPS, seed=5):
    """Gradients of magnitude one that point one way, exact in half precision."""
    random = np.random.default_rng(seed)
    return (np.sign(START) * random.integers(8, 16, [steps, 4]) / 16).astype("float32")


def drifted(optimizer):
    """The weights by (form, dtype), in float32, after one tiny step and after many."""
    kinds = [(form, dtype) for form in ("dense", "rows") for dtype in (*HALF, "float32")]
    model = [tf.Variable(tf.cast(START, dtype)) for _, dtype in kinds]
    optimizer.build(model)

    def gradient(form, dtype, g):
        g = tf.cast(g, dtype)
        halves = tf.concat([g, g], 0) / 2
        return slices([0, 1, 2, 3, 0, 1, 2, 3], halves) if form == "rows" else g

    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def apply(directions):
        for g in directions:
            optimizer.apply([gradient(*kind, g) for kind in kinds], model)

    def after(directions):
        apply(directions)
        return {k: tf.cast(w, "float32").numpy() for k, w in zip(kinds, model, strict=True)}

    everything = directions()
    return after(everything[:1]), after(everything[1:])


def assert_follows(actual, expected, dtype):
    """Rounded once, give or take what float32 lost on the way."""
    bound = ROUNDING[dtype] * np.abs(expected) * 1.01
    error = np.abs(actual - expected)
    assert (error <= bound).all(), f"{(error / bound).max():.2f} roundings off"


@each(
    [s for s in of_each_class() if s.of_vectors and s.name != "ftrl"],  # its first step is large
    quick=("adagrad", "adadelta", "adamw", "lars", "wrapped_nadam"),
)
def test_follows_float32(sample):
    once, after = drifted(sample.make(sample.tiny))
    for (form, dtype), weights in after.items():
        expected = after[form, "float32"]
        if dtype in HALF:
            assert (np.abs(expected - START) > 2 * ROUNDING[dtype] * np.abs(START)).all()
            assert_follows(weights, expected, dtype)
    # one step is lost in bfloat16, and so would all be
    lost = tf.cast(tf.cast(once["dense", "float32"], "bfloat16"), "float32")
    np.testing.assert_array_equal(lost, START)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    "option", ["weight_decay", "clipnorm", "accumulation", "ema", "loss_scale", "together"]
)
def test_follows_float32_with(dtype, option):
    """Averages are finalized: rounded once from a float32 average."""
    sample, steps, options = BY_NAME["adam"], 10, OPTIONS[option]
    results = []
    for kind in (dtype, "float32"):
        optimizer, w = sample.make(1e-3, **options), tf.Variable(tf.cast(START, kind))
        for g in directions(steps):
            optimizer.apply([tf.cast(g, kind)], [w])
        optimizer.finalize_variable_values([w])
        results.append(tf.cast(w, tf.float32).numpy())
    assert_follows(*results, dtype)


@each([s for s in having("of_vectors") if s.name != "multi"])  # whose roles depend on the path
@pytest.mark.parametrize("dtype", HALF)
def test_state_is_float32(sample, dtype):
    optimizer = sample.make(use_ema=True, gradient_accumulation_steps=2)
    w = tf.Variable(tf.cast(START, dtype), name="w")
    optimizer.build([w])
    dtypes = {name: value.dtype.name for name, value in state_of(optimizer).items()}
    roles = {*sample.roles(1), "master", "average", "gradient_accumulator"}
    assert {f"w/{role}" for role in roles} <= set(dtypes)
    assert {dtypes[f"w/{role}"] for role in roles} == {"float32"}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "rows"])
def test_weights_loaded_meanwhile_are_respected(dtype, sparse):
    """The variable is the truth: what is assigned from outside is not overwritten by the master."""
    w = tf.Variable(tf.cast(START, dtype))
    optimizer = tf_graft.SGD(0.25)

    def apply(g):
        optimizer.apply([slices(range(4), g) if sparse else g], [w])

    for _ in range(3):
        apply(tf.cast([1e-3] * 4, dtype))
    w.assign(tf.cast([8.0, 0.0, -4.0, 1.0], dtype))
    apply(tf.ones([4], dtype))
    np.testing.assert_array_equal(tf.cast(w, tf.float32), [7.75, -0.25, -4.25, 0.75])


def test_saturates_and_comes_back():
    """float16 ends at 65504; the master goes on, and the way back is as long as the way out."""
    w = tf.Variable(tf.constant([65504.0, -65504.0], tf.float16))
    optimizer = tf_graft.SGD(1.0)
    there = tf.constant([-1024.0, 1024.0], tf.float16)
    for g, expected in ((there, 65504.0), (there, 65504.0), (-there, 65504.0), (-there, 65504.0)):
        optimizer.apply([g], [w])
        np.testing.assert_array_equal(w.numpy(), np.array([expected, -expected], "float16"))
    optimizer.apply([-there], [w])
    np.testing.assert_array_equal(w.numpy(), np.array([64480.0, -64480.0], "float16"))


@pytest.mark.parametrize("variable", ["float16", "float32"])
def test_repeated_half_precision_rows_are_summed_in_float32(variable):
    """2048 + 1 + 1 is 2048 in float16."""
    w = tf.Variable(tf.zeros([2, 1], variable))
    values = tf.constant([[2048.0], [1.0], [1.0]], tf.float16)
    tf_graft.SGD(1 / 1024).apply([slices([1, 1, 1], values)], [w])
    np.testing.assert_array_equal(w.numpy(), np.array([[0.0], [-2050 / 1024]], variable))


def test_precisions_mix():
    """One call for variables of four dtypes, clipped together, against float64."""
    start = dict.fromkeys((*HALF, "float32", "float64"), START)
    oracle = BY_NAME["adam"].make_oracle(start, 0.125, global_clipnorm=0.5, weight_decay=0.2)
    optimizer = tf_graft.Adam(0.125, global_clipnorm=0.5, weight_decay=0.2)
    model = {name: tf.Variable(tf.cast(w, name)) for name, w in start.items()}
    for g in directions(4):
        optimizer.apply([tf.cast(g, name) for name in model], list(model.values()))
        oracle.apply(dict.fromkeys(model, g))
    for name, bound in (ROUNDING | {"float32": 1e-6, "float64": 1e-6}).items():
        actual = tf.cast(model[name], tf.float64).numpy()
        # the norm over all is taken in float64, the half gradients in float32: 1e-7 and a bit
        np.testing.assert_allclose(actual, oracle.w[name], rtol=bound * 1.01, err_msg=name)


# The check notices what it is for.


class WithoutMasters(tf_graft.SGD):
    """Adds to the half precision variable."""

    def apply(self, grads, trainable_variables=None):
        for g, w in zip(grads, trainable_variables, strict=True):
            if isinstance(g, tf.Tensor):
                w.assign_sub(tf.cast(self.learning_rate, w.dtype) * g)


@pytest.mark.slow
def test_notices_lost_steps():
    rate = BY_NAME["sgd"].tiny
    _, expected = drifted(tf_graft.SGD(rate))
    _, actual = drifted(WithoutMasters(rate))
    for dtype in HALF:
        with pytest.raises(AssertionError, match="roundings off"):
            assert_follows(actual["dense", dtype], expected["dense", "float32"], dtype)
