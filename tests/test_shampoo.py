"""Shampoo and SOAP held to recordings of their reference implementations, and their roots.

`goldens/shampoo.json` has runs of the programs named there: a matrix, whose gradients are all zero
at one step. The gradients do not depend on the weights, so that each update is compared alone.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import recordings
from tf_graft.optimizers import factors, jacobi, roots
from tf_graft.optimizers.factors import Blocks

RECORDED = json.loads((Path(__file__).parent / "goldens" / "shampoo.json").read_text())
WEIGHTS, ROOTS = RECORDED["weights"], RECORDED["roots"]
# Meta's bias corrections are in float32, and so is our learning rate. SOAP's second moments lack
# full rank: what is nearly zero in their eigenvectors follows from the 12 digits recorded. The
# rates of `nobias` are divided by the correction of the bias, which is not in that run.
RTOL = {"shampoo_facebook": 2e-6, "soap_nikhilvyas": 4e-6}
FLOAT32 = {"soap_nikhilvyas/freq3_float32": 1e-5}


@tg.register
class MeanGradient(tg.Optimizer):
    """What Meta grafts to: a rule without momentum, for the running mean of the gradients."""

    def __init__(self, learning_rate=1.0, kind="sgd", **common):
        super().__init__(learning_rate, **common)
        self.kind = kind

    def slots(self):
        return {"mean": tg.Slot(), "square": tg.Slot()}

    def step(self, g, w, s, lr, t):
        m = s["mean"] + 0.1 * (g - s["mean"])
        weight, decay = {"sgd": (0, 0), "adagrad": (1, 1), "rmsprop": (0.01, 0.99)}[self.kind]
        v = decay * s["square"] + weight * g * g
        d = m if self.kind == "sgd" else m / (tf.sqrt(v) + 1e-8)
        return -lr * d / (1 if self.kind == "rmsprop" else 1 - 0.9**t), {"mean": m, "square": v}

    def get_config(self):
        return super().get_config() | {"kind": self.kind}


@tg.register
class Undivided(tg.KLShampoo):
    """Meta's KL-Shampoo: moments without the lengths of sides, that begin with P = Q = I."""

    def moment(self, g, side, s, t):
        rms = 1.0 if t > self.start else tf.sqrt(tf.reduce_mean(g * g))
        length = g.shape[1 + factors.BOTH.index(factors.across(side))]
        return super().moment(g, side, s, t) * length * rms


def replayed(case, **changed):
    """The largest difference between an update and the recorded one, relative to the latter."""
    config = case["optimizer"]
    inner = config.get("direction_optimizer", config) | changed
    grafted = config["name"] == "adagraft"
    optimizer = tg.get(config | {"direction_optimizer": inner} if grafted else inner)
    before, worst = np.array(case["initial"]), 0.0
    w = tf.Variable(before, name="dense/kernel")
    both = zip(case["gradients"], case["weights"], strict=True)
    for t, (gradient, after) in enumerate(both, 1):
        w.assign(before)
        optimizer.apply([tf.constant(np.array(gradient) + case.get("l2", 0) * before)], [w])
        expected = np.array(after) / (1 - case.get("decayed", 0))  # theirs decays last
        if t >= case["first"]:
            error = np.abs(w.numpy() - expected).max()
            worst = max(worst, error / max(np.abs(expected - before).max(), 1e-3))
        before = np.array(after)
    return worst


@pytest.mark.parametrize("name", WEIGHTS)
def test_equals_the_recording(name):
    allowed = FLOAT32.get(name, RTOL[name.partition("/")[0]])
    recordings.check(name, replayed(WEIGHTS[name]), allowed)


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_comparison_notices_another_beta(name):
    assert replayed(WEIGHTS[name], beta_1=0.7) > 1e-2


@pytest.mark.parametrize("name", ROOTS)
def test_roots_equal_the_recording(name):
    """Google's two; Newton's iterations in float32 are 1e-5 off, and tearfree cuts off at 1e-6.

    Further runs of these programs have the same factors and roots to the bit.
    """
    for factor, expected in ROOTS[name]["pairs"]:
        root, good = roots.inverse_power(tf.constant([factor], tf.float64), 0.25, 1e-6, True)
        assert good.numpy().all()
        assert np.abs(root[0] - expected).max() < 1e-4 * np.abs(expected).max()


def test_blocks_equal_the_recording():
    """Google's factors of blocks of 2; theirs begin at 1e-6 on the diagonal."""
    case, blocks = RECORDED["blocks"], Blocks.of((1, 3, 4), 2)
    made = {side: np.zeros(blocks.squares(side)) for side in factors.BOTH}
    for gradient in case["gradients"]:
        parts = blocks.split(tf.constant([gradient], tf.float64))
        np.testing.assert_array_equal(blocks.joined(parts)[0], gradient)
        for side, factor in made.items():
            factor += 0.01 * (factors.second_moment(parts, side).numpy() - factor)
    pairs = np.stack([*made.values()], 1).reshape(8, 2, 2)
    for factor, expected in zip(pairs, case["factors"], strict=True):
        n = len(expected)
        np.testing.assert_allclose(factor[:n, :n], expected, atol=2e-6)
        assert not factor[n:].any()


@pytest.mark.parametrize("case", RECORDED["moments"]["cases"], ids=lambda case: str(case["step"]))
def test_moments_of_klsoap_equal_the_recording(case):
    """NVIDIA's, whose means are corrected, and whose least eigenvalue is 1e-8, not relative.

    Their factors are in float32, where all other moments are too small to be seen.
    """
    recorded = {name: np.array(case[name], "float64") for name in case}
    slots = {f"outputs_{name}": tf.constant(recorded[name][None]) for name in ("factor", "basis")}
    values = np.diag(recorded["basis"].T @ recorded["factor"] @ recorded["basis"])
    optimizer = tg.KLSOAP(shampoo_epsilon=1e-8 / values.max())
    moment = optimizer.moment(
        tf.constant(recorded["gradient"][None]), "inputs", slots, case["step"] + 1
    )[0]
    share = 0.05 / (1 - 0.95 ** (case["step"] + 1))
    made = (1 - share) * recorded["before"] + share * moment
    assert np.abs(share * moment).max() > 0.5 * recorded["after"].max()
    np.testing.assert_allclose(made, recorded["after"], atol=1e-7 * recorded["after"].max())


@pytest.mark.slow
@pytest.mark.parametrize("cls", [tg.KLShampoo, tg.KLSOAP])
def test_steps_by_kl_do_not_depend_on_the_scale_of_the_gradients(cls):
    gradients = np.random.default_rng(0).normal(size=(25, 4, 3))

    def run(scale):
        w = tf.Variable(np.zeros([4, 3]), name="kernel")
        optimizer = cls(0.5, epsilon=0.03 if cls is tg.KLShampoo else 1e-30)
        for g in gradients * scale:
            optimizer.apply([tf.constant(g)], [w])
        return w.numpy()

    np.testing.assert_allclose(run(1e-3), run(1e3), rtol=1e-9)


@pytest.mark.parametrize("cls", [tg.KLShampoo, tg.KLSOAP])
def test_a_pause_without_gradients_does_not_lengthen_the_steps(cls):
    rng, w = np.random.default_rng(0), tf.Variable(tf.ones([4, 3]))
    optimizer = cls(1e-3)
    optimizer.build([w])
    apply = tf.function(lambda g: optimizer.apply([g], [w]))

    def longest(updates):
        before = w.numpy()
        for _ in range(updates):
            apply(tf.constant(rng.normal(size=[4, 3]), tf.float32))
        return np.abs(w.numpy() - before).max()

    without = longest(20)
    for _ in range(200):
        apply(tf.zeros([4, 3]))
    assert longest(20) < 3 * without


@pytest.mark.slow
@pytest.mark.parametrize("cls", [tg.KLShampoo, tg.KLSOAP, tg.Shampoo, tg.SOAP])
def test_an_outlier_leaves_all_slots_finite(cls):
    rng, w = np.random.default_rng(0), tf.Variable(tf.ones([4, 3]))
    optimizer = cls(1e-3)
    for size in [1e-12] * 20 + [1e14] + [1e-12] * 5:
        optimizer.apply([tf.constant(size * rng.normal(size=[4, 3]), tf.float32)], [w])
    assert int(optimizer.iterations.numpy()) == 26
    for slot in optimizer.variables:
        assert np.isfinite(slot.numpy().astype("float64")).all(), slot.path


def test_klshampoo_has_both_sides():
    optimizer = tg.KLShampoo()
    with pytest.raises(
        ValueError, match=r"KLShampoo\(sides='inputs'\): sides must be one of 'both'"
    ):
        optimizer.sides = "inputs"
    assert optimizer.sides == "both"


@pytest.mark.parametrize("side", [1, 2, 3, 8, 13])
def test_rotations_find_eigenvectors(side):
    x = np.random.default_rng(side).normal(size=(2, side, max(side - 2, 1)))
    a = tf.constant(x @ x.transpose(0, 2, 1))
    values, vectors = jacobi.eigenvectors(a)
    expected = np.linalg.eigvalsh(a)
    np.testing.assert_allclose(values, expected, atol=1e-13 * expected.max())
    again = vectors * values[:, None] @ tf.transpose(vectors, [0, 2, 1])
    np.testing.assert_allclose(again, a, atol=1e-13 * expected.max())


def test_what_is_not_finite_is_dropped():
    good = np.diag([1.0, 16.0])
    a = tf.constant([good, good + np.inf, good + np.nan])
    power, usable = roots.inverse_power(a, 0.25, 1e-12)
    assert usable.numpy().tolist() == [True, False, False]
    np.testing.assert_allclose(power[0], np.diag([1.0, 0.5]))
    basis, order = roots.next_eigenbasis(a, tf.eye(2, batch_shape=[3], dtype=tf.float64))
    np.testing.assert_array_equal(np.abs(basis[0]), [[0, 1], [1, 0]])
    np.testing.assert_array_equal(basis[1:], np.stack([np.eye(2)] * 2))
    assert order.numpy().tolist() == [[1, 0], [0, 1], [0, 1]]


@pytest.mark.parametrize("name", ["both", "inputs", "outputs", "smaller", "kl"])
@pytest.mark.parametrize("rank", [1, 3, 8])
def test_rounding_is_not_amplified_into_a_large_part_of_the_step(name, rank):
    """The factors of the first updates lack full rank, and hold rounding in the other directions.

    Nor are the steps after the first hundreds of times as long, in directions that it lacked.
    """
    random = np.random.default_rng(0)
    low = random.normal(size=(12, 16, rank)) @ random.normal(size=(12, rank, 8))
    gradients = (low / 100).astype("float32")

    def run(given):
        optimizer = tg.KLShampoo(1.0) if name == "kl" else tg.Shampoo(1.0, sides=name)
        w = tf.Variable(tf.zeros([16, 8]), name="kernel")
        weights = [w.numpy()]
        for g in given:
            optimizer.apply([tf.constant(g)], [w])
            weights.append(w.numpy())
        return np.array(weights)

    one, other = run(gradients), run(np.nextafter(gradients, np.float32(9)))
    length = np.linalg.norm(np.diff(one, axis=0), axis=(1, 2))
    assert np.abs(one - other).max() <= 1e-4 * np.abs(one).max()
    assert length.max() <= 20 * length[0]


def test_a_matrix_with_a_negative_eigenvalue_has_a_finite_power():
    """As if all eigenvalues were larger by as much."""
    a = tf.linalg.diag(tf.constant([[4.0, 1.0, -0.5]], tf.float64))
    power, usable = roots.inverse_power(a, 0.5, 0.25)
    assert usable[0]
    expected = [(x + 0.5 + 0.25) ** -0.5 for x in (4.0, 1.0, -0.5)]
    np.testing.assert_allclose(tf.linalg.diag_part(power)[0], expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*no gradient for late")
@pytest.mark.parametrize("spread", [False, True], ids=["alike", "in turns"])
@pytest.mark.parametrize("make", [tg.Shampoo, tg.KLShampoo])
def test_a_matrix_that_is_trained_later_takes_steps_as_long_as_from_the_start(make, spread):
    random = np.random.default_rng(0)
    gradients = [random.normal(size=(3, 4)).astype("float32") * 1e-3 for _ in range(60)]

    def lengths(first, idle):
        weights = [tf.Variable(tf.zeros([3, 4]), name=name) for name in ("late", "other")]
        axes = {w.name.partition(":")[0]: {"inputs": [0], "outputs": [1]} for w in weights}
        optimizer, moved = make(1.0, axes=axes, spread=spread), []
        optimizer.build(weights)
        step = tf.function(lambda *g: optimizer.apply(g, weights))
        for number, g in enumerate(gradients[first:]):
            before = weights[0].numpy()
            step(None if number < idle else tf.constant(g), tf.constant(g))
            moved.append(np.linalg.norm(weights[0].numpy() - before))
        return np.array(moved[idle:])

    usual, late = lengths(first=23, idle=0), lengths(first=0, idle=23)
    assert late.max() < 3 * usual.max()
    assert late[2] > 0.05 * np.median(usual)  # its momentum begins at 0
    assert 0.2 < np.median(late[10:] / usual[10:]) < 5
