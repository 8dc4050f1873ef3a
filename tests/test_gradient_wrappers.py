"""Adaptive gradient clipping, gradient centralization, and cautious steps.

`goldens/gradient_transforms.json` has runs of optax. Its `centralize` takes the mean over all axes
but the first; here kernels are Keras', whose outputs are the last axis, so its variables are
transposed.
"""

import functools
import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import recordings

CASES = json.loads((Path(__file__).parent / "goldens" / "gradient_transforms.json").read_text())


def made(config, **changed):
    if "clipping" in config:
        clipping = changed.get("clipping", config["clipping"])
        return tg.AdaptiveGradientClipping(tg.SGD(config["sgd"]), clipping)
    child = tg.Adam(config["adam"], epsilon=1e-8) if "adam" in config else None
    child = child or tg.SGD(config["sgd"], momentum=config.get("momentum", 0.0))
    return tg.GradientCentralization(child, **changed)


def replayed(case, **changed):
    """The largest difference from the recorded weights."""
    first_is_output = "clipping" not in case["config"]

    def ours(x):
        x = np.array(x)
        return np.moveaxis(x, 0, -1) if first_is_output and x.ndim > 1 else x

    optimizer = made(case["config"], **changed)
    weights = {p: tf.Variable(ours(w), name=p) for p, w in case["initial"].items()}
    worst = 0.0
    for gradients, expected in zip(case["gradients"], case["variables"], strict=True):
        given = [tf.constant(ours(gradients[path])) for path in weights]
        optimizer.apply(given, list(weights.values()))
        for path, w in weights.items():
            worst = max(worst, np.abs(w.numpy() - ours(expected[path])).max())
    return worst


def allowed(name):
    """A rate of 0.1 is 1.5e-9 off in float32; optax' Adam has the paper's epsilon, ours Keras'."""
    return 1e-6 if "adam" in name else 5e-8


@pytest.mark.parametrize("name", CASES)
def test_equals_the_recording(name):
    of_all = name.replace("optax/", "optax_transforms/")
    recordings.check(of_all, replayed(CASES[name]), allowed(name))


@pytest.mark.parametrize("name", CASES)
def test_the_comparison_notices_another_transform(name):
    clips = "clipping" in CASES[name]["config"]
    changed = {"clipping": 0.05} if clips else {"exclude_from_centralization": ["kernel"]}
    assert replayed(CASES[name], **changed) > 1e-4


SLICES = ([[1.0, 2.0], [0.5, -1.0], [3.0, 0.25]], [2, 0, 2])


def stepped(optimizer, dense, execution="eager"):
    table = tf.Variable([[1.0, -1.0], [0.0, 2.0], [0.5, 0.25]], name="embeddings")
    gradient = tf.IndexedSlices(tf.constant(SLICES[0]), SLICES[1], dense_shape=[3, 2])

    def step():
        optimizer.apply([tf.convert_to_tensor(gradient) if dense else gradient], [table])

    if execution != "eager":
        step = tf.function(step, jit_compile=execution == "xla")
    for _ in range(2):
        step()
    return table.numpy()


@pytest.mark.parametrize("execution", ["eager", "function", "xla"])
def test_each_touched_row_of_an_embedding_is_clipped_by_itself(execution):
    w = np.array([[1.0, -1.0], [0.0, 2.0], [0.5, 0.25]])
    g = np.zeros([3, 2])
    np.add.at(g, SLICES[1], SLICES[0])
    for _ in range(2):
        largest = 0.1 * np.maximum(np.linalg.norm(w, axis=1, keepdims=True), 1e-3)
        norms = np.linalg.norm(g, axis=1, keepdims=True)
        w = w - g * np.minimum(largest / np.maximum(norms, 1e-30), 1)
    for dense in (False, True):
        optimizer = tg.AdaptiveGradientClipping(tg.SGD(1.0), 0.1)
        np.testing.assert_allclose(stepped(optimizer, dense, execution), w, rtol=1e-6)


@pytest.mark.parametrize("execution", ["eager", "xla"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: tg.AdaptiveGradientClipping(tg.Adam(0.1), 0.1, by_row=[]),
        lambda: tg.GradientCentralization(tg.Adam(0.1), []),
    ],
)
def test_other_row_sparse_gradients_act_as_dense_ones(make, execution):
    np.testing.assert_allclose(
        stepped(make(), False, execution), stepped(make(), True, execution), rtol=1e-6
    )


def test_embeddings_are_not_centralized():
    found = stepped(tg.GradientCentralization(tg.SGD(0.1)), False)
    np.testing.assert_array_equal(found, stepped(tg.SGD(0.1), False))


@pytest.mark.parametrize("shape", [(1, 3), (1, 1, 1, 2), (3,), ()])
def test_units_of_one_weight_are_not_centralized(shape):
    """Or they could never train."""
    centralized, alone = (tf.Variable(tf.ones(shape), name="kernel") for _ in range(2))
    g = tf.reshape(tf.range(1.0, 1.0 + np.prod(shape)), shape)
    tg.GradientCentralization(tg.SGD(0.1)).apply([g], [centralized])
    tg.SGD(0.1).apply([g], [alone])
    np.testing.assert_array_equal(centralized, alone)


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["eager", "function", "xla"])
def test_a_cautious_step_counts_the_touched_rows(execution):
    """As if they were a variable of their own."""

    def made():
        return tg.Cautious(tg.SGD(0.1, momentum=0.9), weight_decay=0.1)

    table = tf.Variable(np.ones([7, 2], np.float32))
    alone = tf.Variable(np.ones([2, 2], np.float32))
    pairs = [(made(), table), (made(), alone)]

    def step(optimizer, w, values):
        g = tf.constant(values) if w is alone else tf.IndexedSlices(tf.constant(values), [1, 4])
        optimizer.apply([g], [w])

    for values in ([[1.0, 2.0], [3.0, 4.0]], [[1.0, -2.0], [-0.5, 4.0]]):
        for optimizer, w in pairs:
            one = functools.partial(step, optimizer, w, np.float32(values))
            (one if execution == "eager" else tf.function(one, jit_compile=execution == "xla"))()
    w = np.ones([2, 2]) * 0.99 - 0.1 * np.array([[1, 2], [3, 4]])
    d = np.array([[-0.19, 0.02], [0, -0.76]]) * 4 / 3  # 3 of 4 entries go down
    np.testing.assert_allclose(alone, 0.99 * w + d, rtol=1e-6)
    np.testing.assert_allclose(table.numpy()[[1, 4]], alone, rtol=1e-6)
    np.testing.assert_array_equal(table.numpy()[[0, 2, 3, 5, 6]], 1.0)


def test_what_is_excluded_takes_its_own_steps():
    optimizer = tg.AdaptiveGradientClipping(tg.SGD(0.1), exclude_from_clipping=["embeddings"])
    np.testing.assert_array_equal(stepped(optimizer, False), stepped(tg.SGD(0.1), False))


def test_a_kernel_of_attention_is_clipped_over_its_first_axis():
    w = tf.Variable(np.arange(1.0, 13.0).reshape(2, 3, 2), dtype=tf.float32)
    before, g = w.numpy(), np.ones([2, 3, 2], np.float32)
    tg.AdaptiveGradientClipping(tg.SGD(1.0), 0.01).apply([tf.constant(g)], [w])
    largest = 0.01 * np.linalg.norm(before, axis=0, keepdims=True)
    np.testing.assert_allclose(w, before - largest / np.sqrt(2), rtol=1e-6)


def test_few_cautious_entries_are_at_most_1000_times_as_long():
    w, optimizer = tf.Variable(tf.zeros([4000])), tg.Cautious(tg.SGD(0.5, momentum=0.5))
    optimizer.apply([tf.ones([4000])], [w])
    before = w.numpy()
    optimizer.apply([tf.concat([[1.0], -0.25 * tf.ones([3999])], 0)], [w])
    np.testing.assert_allclose(w - before, [-0.5 * 1.5 * 1000, *[0.0] * 3999], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [tg.AdaptiveGradientClipping, tg.GradientCentralization, tg.Cautious]
)
def test_fit_saves_and_goes_on(make, tmp_path):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Embedding(9, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input([3], dtype="int32"), *layers])
    model.compile(make(tg.Adam(0.01), use_ema=True), "mse")
    x, y = np.random.default_rng(0).integers(9, size=(32, 3)), np.ones([32, 1])
    losses = model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert repr(again.optimizer) == repr(model.optimizer)
    both = [m.fit(x, y, batch_size=8, shuffle=False, verbose=0).history for m in (model, again)]
    assert both[0] == both[1]


def layerwise(optimizer):
    return tg.LayerwiseRates(optimizer, {"bias": 1.0, "kernel": 1.0})


AROUND = {
    "none": lambda x: x,
    "LARC": lambda x: tg.LARC(x, eta=100.0),
    "AdaptiveGradientClipping": lambda x: tg.AdaptiveGradientClipping(x, 100.0),
    "GradientCentralization": tg.GradientCentralization,
    "MultiOptimizer": lambda x: tg.MultiOptimizer({".*": x}),
    "LayerwiseRates": layerwise,
    "Cautious": tg.Cautious,
    "Muon's others": lambda x: tg.Muon(others=x, axes={"kernel": {"inputs": [0], "outputs": [1]}}),
    "two": lambda x: tg.LARC(tg.MultiOptimizer({".*": tg.GradientCentralization(x)}), eta=100.0),
}


@pytest.mark.parametrize("outer", [tg.Cautious, tg.Hyperball])
@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_decay_stays_out_of_a_step_that_is_masked(around, outer):
    """The first entry of the step and the decay point against each other; the mask is the step's.

    Hyperball leaves a bias alone, and has a mask inside.
    """
    w, rest = tf.Variable([1.0, 1.0], name="bias"), tf.Variable(tf.eye(2), name="kernel")
    optimizer = around(tg.SGD(0.1, weight_decay=1.0))
    optimizer = tg.Cautious(optimizer) if outer is tg.Cautious else outer(tg.Cautious(optimizer))
    optimizer.build([w, rest])
    optimizer.apply([tf.constant([-0.01, 1.0])], [w])
    np.testing.assert_allclose(w, [1 + 0.001 - 0.1, 1 - 0.1 - 0.1], rtol=1e-6)


def test_the_decay_of_prodigy_stays_out_of_a_step_that_is_masked():
    def step(**given):
        w = tf.Variable([1.0, 1.0])
        tg.Cautious(tg.Prodigy(d0=0.25, **given)).apply([tf.constant([0.0, 4.0])], [w])
        return w.numpy()

    np.testing.assert_allclose(step(weight_decay=0.5), step() - 0.25 * 0.5, rtol=1e-6)


OF_KERNELS = {name: x for name, x in AROUND.items() if name not in ("Cautious", "Muon's others")}


@pytest.mark.parametrize("around", OF_KERNELS.values(), ids=OF_KERNELS)
def test_decay_is_not_normalized_with_the_step(around):
    """Hyperball scales the step to the learning rate times the radius, and adds decay to that."""
    initial = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)
    g = tf.constant([[-1.0, 1.0], [0.5, 0.25]])

    def left(optimizer):
        w, rest = tf.Variable(initial, name="kernel"), tf.Variable([1.0], name="bias")
        optimizer = tg.Hyperball(optimizer)
        optimizer.build([w, rest])
        optimizer.apply([g], [w])
        return w.numpy()

    optimizer = around(tg.SGD(0.1, weight_decay=1.0))
    centered = "GradientCentralization" in repr(optimizer)
    d = -0.1 * (g - tf.reduce_mean(g, 0, keepdims=True) if centered else g)
    d = d * 0.1 * 5 / tf.norm(d) - 0.1 * initial
    expected = (initial + d) * 5 / tf.norm(initial + d)
    np.testing.assert_allclose(left(optimizer), expected, rtol=1e-5)
