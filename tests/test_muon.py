"""Muon, NorMuon and Muon in a hyperball held to recordings of their reference programs.

`goldens/matrices.json` has runs of the programs named there. Those given the matrices [out, in],
as torch has them, are called `transposed`; `as_keras` ones were given ours, whose inputs they take
for outputs.
"""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import oracles, recordings
from tf_graft.optimizers import newton_schulz

CASES = json.loads((Path(__file__).parent / "goldens" / "matrices.json").read_text())
AXES = {"attention": ((0,), (1, 2)), "conv": ((0, 1, 2), (3,)), "dense": ((0,), (1,))}
# How far a run may lie from the recording, relative to the largest movement. A learning rate is
# float32 here, which is 2e-8.
FARTHEST = {
    "muon_keras/mixed_variables": 1e-5,  # their AdamW has its betas in float32
    "muon_emerging/polar_express_independent_wd_transposed": 2e-5,  # coefficients of 4 decimals
    "muon_emerging": 2e-6,  # recorded in float32
    # Theirs rounds the momentum to bfloat16 first, though the recordings' names say float64.
    "muon_dion/muon_class_polar_express__ns_float64": 0.02,
    "muon_dion/muon_class_cautious__ns_float64": 0.02,
    "muon_hyperball_emerging": 2e-6,  # likewise
    "muon_optax": 2e-6,  # their AdamW, too
    "normuon_dion": 0.02,  # likewise
}


def axes_for(name, paths):
    """What the reference program took for inputs and outputs."""
    said = {}
    for path in paths:
        kind = next((kind for kind in AXES if path.startswith(kind)), None)
        if kind and path.endswith("kernel") and "mixed" not in name:
            inputs, outputs = AXES[kind][::-1] if "as_keras" in name else AXES[kind]
            said[rf"^{path}$"] = {"inputs": inputs, "outputs": outputs}
    return said


def replayed(name, **changed):
    """The largest difference from the recorded weights, relative to the largest movement.

    Ours are in float64, so that where theirs are in float32 their rounding is the only one.
    """
    case = CASES[name]
    config = case["config"] | changed
    optimizer = getattr(tg, config.pop("optimizer"))(axes=axes_for(name, case["initial"]), **config)
    if name.startswith("muon_hyperball"):
        optimizer = tg.Hyperball(optimizer)
    weights = {p: tf.Variable(w, dtype="float64", name=p) for p, w in case["initial"].items()}
    worst = moved = 0.0
    for gradients, expected in zip(case["gradients"], case["variables"], strict=True):
        given = [tf.constant(gradients[path], "float64") for path in weights]
        optimizer.apply(given, list(weights.values()))
        for path, w in weights.items():
            worst = max(worst, np.abs(w.numpy() - np.array(expected[path])).max())
            moved = max(moved, np.abs(np.array(case["initial"][path]) - expected[path]).max())
    return worst / moved


@pytest.mark.parametrize("name", CASES)
def test_equals_the_recording(name):
    bounds = (FARTHEST[key] for key in (name, name.partition("/")[0]) if key in FARTHEST)
    recordings.check(name, replayed(name), next(bounds, 5e-8))


@pytest.mark.parametrize("name", CASES)
def test_the_comparison_notices_another_momentum(name):
    assert replayed(name, momentum=0.5) > 0.02


def test_the_comparison_notices_decay_of_all_entries():
    assert replayed("muon_dion/muon_class_cautious__ns_float64", weight_decay_mode=None) > 0.1


def model():
    """A convolution, attention and two dense layers, of which the last is not for Muon."""
    image = keras.Input((4, 4, 3))
    x = keras.layers.Conv2D(4, 2, padding="same", name="conv")(image)
    x = keras.layers.Reshape((16, 4))(x)
    x = keras.layers.MultiHeadAttention(2, 3, name="attention")(x, x)
    x = keras.layers.Dense(5, name="dense")(x)
    return keras.Model(image, keras.layers.Dense(2, name="head")(x))


def reshaped(path, shape):
    """The shape of a variable as matrices, [batch, in, out], written down by hand."""
    if path.startswith("conv"):
        return (1, 12, 4)
    if path.startswith("attention"):
        return (1, 6, 4) if "output" in path else (1, 4, 6)
    return (1, *shape)


@pytest.mark.parametrize("cls", [tg.Muon, tg.NorMuon])
def test_a_model_is_updated_as_its_reshaped_matrices(cls):
    built, random = model(), np.random.default_rng(0)
    optimizer = cls(0.1, weight_decay=0.5, others=tg.SGD(0.25))
    expected = {v.path: v.numpy().astype(np.float64) for v in built.trainable_variables}
    states = {path: {} for path in expected}
    optimizer.build(built)
    for _ in range(3):
        gradients = {path: random.normal(size=w.shape) for path, w in expected.items()}
        optimizer.apply(
            [tf.constant(g, tf.float32) for g in gradients.values()], built.trainable_variables
        )
        for path, g in gradients.items():
            if "kernel" not in path or path.startswith("head"):
                expected[path] = expected[path] - 0.25 * g
                continue
            w, shape = expected[path], g.shape
            rule = oracles.muon_step if cls is tg.Muon else oracles.normuon_step
            steps = rule(g.reshape(reshaped(path, shape))[0], states[path])
            expected[path] = w + 0.1 * (steps.reshape(shape) - 0.5 * w)
    for v in built.trainable_variables:
        np.testing.assert_allclose(v.numpy(), expected[v.path], atol=2e-6, err_msg=v.path)


@pytest.mark.parametrize("cls", [tg.Muon, tg.NorMuon])
def test_nesterov_momentum_keeps_the_digits_of_the_gradient(cls):
    """`g + momentum * (m - g)` would cancel all but a twentieth of the first gradient."""
    g = np.random.default_rng(0).normal(size=(8, 8)).astype("float32")
    (u,), _ = cls(momentum=0.95).moments(g, {"momentum": tf.zeros_like(g)}, tf.constant(1.0))
    ratio = u.numpy().astype("float64") / g
    np.testing.assert_allclose(ratio, 1 - 0.95**2, rtol=4 * np.finfo("float32").eps)


def test_a_transposed_layout_gives_the_transposed_step():
    g = np.random.default_rng(0).normal(size=(4, 6, 3)).astype("float32")
    w = tf.Variable(tf.zeros([4, 6, 3]), name="w")
    tg.NorMuon(axes={"w": {"inputs": [0], "outputs": [1, 2]}}).apply([tf.constant(g)], [w])
    moved = tf.Variable(tf.zeros([3, 4, 6]), name="moved")
    axes = {"moved": {"inputs": [1], "outputs": [2, 0]}}
    tg.NorMuon(axes=axes).apply([tf.constant(g.transpose(2, 0, 1))], [moved])
    np.testing.assert_allclose(moved.numpy().transpose(1, 2, 0), w.numpy(), atol=1e-7)


def test_heads_apart_are_updated_as_matrices_of_their_own():
    g = np.random.default_rng(0).normal(size=(4, 2, 3)).astype("float32")
    w = tf.Variable(tf.zeros([4, 2, 3]), name="w")
    axes = {"w": {"inputs": [0], "outputs": [2], "batch": [1]}}
    tg.Muon(axes=axes).apply([tf.constant(g)], [w])
    for head in range(2):
        alone = tf.Variable(tf.zeros([4, 3]), name="alone")
        tg.Muon().apply([tf.constant(g[:, head])], [alone])
        np.testing.assert_allclose(w[:, head], alone, atol=1e-7)


def test_polar_express_makes_singular_values_one():
    m = np.diag([1.0, 0.1, 0.01]).astype("float32")
    w = tf.Variable(tf.zeros([3, 3]), name="w")
    tg.Muon(1.0, ns_coefficients="polar_express", ns_steps=8).apply([tf.constant(m)], [w])
    np.testing.assert_allclose(w, -np.eye(3), atol=1e-5)


@pytest.mark.parametrize("iterations", [1, 3, 5, 8])
@pytest.mark.parametrize("shape", [(2, 3, 8), (2, 8, 3), (1, 4, 8), (1, 5, 6)])
def test_newton_schulz_is_its_iteration(shape, iterations):
    """Whether several iterations are taken together, for long matrices, or not."""
    m = np.random.default_rng(0).normal(size=shape)
    x = m / np.linalg.norm(m, axis=(1, 2), keepdims=True)
    coefficients = newton_schulz.NAMED["polar_express"]
    for a, b, c in coefficients[:iterations]:
        square = x @ np.swapaxes(x, 1, 2)
        x = a * x + (b * square + c * square @ square) @ x
    found = newton_schulz.orthogonalized(tf.constant(m), coefficients, iterations, 1e-30)
    np.testing.assert_allclose(found, x, rtol=1e-10, atol=1e-12)


def test_rounding_of_iterations_that_are_taken_together():
    """In float32, of singular values from 0.001 to 1."""
    random = np.random.default_rng(0)
    u, _, v = np.linalg.svd(random.normal(size=[32, 128]), full_matrices=False)
    m = tf.constant((u * np.geomspace(1, 1e-3, 32)) @ v)[tf.newaxis]
    given = ("polar_express", 8, 1e-30)
    exact = newton_schulz.orthogonalized(m, *given)
    rounded = newton_schulz.orthogonalized(tf.cast(m, tf.float32), *given)
    error = tf.norm(tf.cast(rounded, tf.float64) - exact) / tf.norm(exact)
    assert error < 2e-5


@pytest.mark.parametrize("shape", [(2, 24, 24), (2, 8, 64), (1, 64, 16)])
def test_iterations_in_bfloat16_are_near_and_the_same_in_a_graph(shape):
    m = np.random.default_rng(0).normal(size=shape)
    given = ([list(newton_schulz.QUINTIC)], 5, 1e-7)
    exact = newton_schulz.orthogonalized(tf.constant(m), *given)
    rounded = newton_schulz.orthogonalized(tf.constant(m, tf.float32), *given, "bfloat16")
    assert rounded.dtype == tf.float32
    error = tf.norm(tf.cast(rounded, tf.float64) - exact) / tf.norm(exact)
    assert 1e-3 < error < 0.04
    graph = tf.function(lambda m: newton_schulz.orthogonalized(m, *given, "bfloat16"))
    np.testing.assert_array_equal(graph(tf.constant(m, tf.float32)), rounded)


@pytest.mark.parametrize("cls", [tg.Muon, tg.NorMuon, tg.SOAPMuon])
def test_an_optimizer_makes_iterations_in_bfloat16(cls):
    g = np.random.default_rng(0).normal(size=(16, 8)).astype("float32")

    def stepped(**arguments):
        w = tf.Variable(tf.zeros([16, 8]), name="kernel")
        optimizer = cls(1.0, **arguments)
        for _ in range(2):
            optimizer.apply([tf.constant(g)], [w])
        return w.numpy()

    one, other = stepped(), stepped(ns_dtype="bfloat16")
    assert 1e-4 < np.linalg.norm(one - other) / np.linalg.norm(one) < 0.06
