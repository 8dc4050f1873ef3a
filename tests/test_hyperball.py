"""Hyperball around optimizers of any kind; the recordings of NVIDIA's program: `test_muon.py`."""

import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg

SHAPES = {"kernel": (4, 3), "zero/kernel": (3, 2), "embeddings": (3, 2), "bias": (3,)}
SHAPES |= {"conv/kernel": (2, 2, 3, 2), "lora/kernel": (2, 2), "single/kernel": (1, 1)}


def trained(optimizer, steps=3, dtype="float32"):
    """The weights before the last step and after it, by path."""
    rng = np.random.default_rng(0)
    first = {p: rng.normal(size=s) * (not p.startswith("zero")) for p, s in SHAPES.items()}
    weights = {p: tf.Variable(w, dtype=dtype, name=p) for p, w in first.items()}
    for _ in range(steps):
        before = {p: w.numpy() for p, w in weights.items()}
        given = [tf.constant(rng.normal(size=s), dtype) for s in SHAPES.values()]
        optimizer.apply(given, list(weights.values()))
    return first, before, {p: w.numpy() for p, w in weights.items()}


CHILDREN = {
    "adam": lambda: tg.AdamW(0.1, weight_decay=0.1),
    "muon": lambda: tg.Muon(0.1, axes={"^kernel$": {"inputs": [0], "outputs": [1]}}),
    "soap": lambda: tg.SOAP(0.1),
    "cautious": lambda: tg.Cautious(tg.Adam(0.1)),
    "graft": lambda: tg.AdaGraft(tg.SGD(0.5), tg.Adam(0.1), learning_rate=0.2),
}


@pytest.mark.parametrize("child", [*CHILDREN])
def test_the_norms_stay_and_steps_are_as_long_as_the_rate_says(child):
    optimizer = tg.Hyperball(CHILDREN[child](), exclude_from_hyperball=["embeddings", "^lora/"])
    first, before, after = trained(optimizer)
    for path in ("kernel", "conv/kernel"):
        radius = np.linalg.norm(first[path])
        np.testing.assert_allclose(np.linalg.norm(after[path]), radius, rtol=1e-6)
        cosine = np.sum(before[path] * after[path]) / radius**2
        assert 0 < np.sqrt(1 - cosine**2) < 0.11, path  # the sine; decay adds a hundredth


@pytest.mark.parametrize(
    "path", ["zero/kernel", "embeddings", "bias", "lora/kernel", "single/kernel"]
)
def test_what_has_no_sphere_gets_the_optimizers_own_steps(path):
    excluded = ["embeddings", "^lora/"]
    _, _, kept = trained(tg.Hyperball(CHILDREN["adam"](), exclude_from_hyperball=excluded))
    _, _, alone = trained(CHILDREN["adam"]())
    np.testing.assert_allclose(kept[path], alone[path], rtol=1e-6)


def test_embeddings_are_left_out_unless_you_say_otherwise():
    slots = {v.path.split("/", 1)[1] for v in built(tg.Hyperball(tg.SGD(0.1))).variables}
    everything = {v.path.split("/", 1)[1] for v in built(tg.Hyperball(tg.SGD(0.1), [])).variables}
    assert everything - slots == {"embeddings/radius"}


def built(optimizer):
    optimizer.build([tf.Variable(tf.ones(s), name=p) for p, s in SHAPES.items()])
    return optimizer


def test_a_step_of_zero_at_most_rounds():
    w = tf.Variable([[0.1, 0.7], [0.3, -0.9]], name="kernel")
    before = w.numpy()
    tg.Hyperball(tg.AdamW(0.1, weight_decay=0.5)).apply([tf.zeros([2, 2])], [w])
    np.testing.assert_allclose(w, before, rtol=3e-7)


def test_half_precision_keeps_the_norm_of_its_float32_weights():
    first, _, after = trained(tg.Hyperball(tg.Adam(0.1)), dtype="bfloat16")
    norms = [np.linalg.norm(np.float64(x["kernel"])) for x in (first, after)]
    np.testing.assert_allclose(*norms, rtol=2e-3)
