"""RadialBrake: what its steps do to the norms of weights; the equations: `test_equations.py`."""

import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg

# A matrix of norm 5, and directions along it and across it.
W = np.array([[3.0, 0.0], [0.0, 4.0]])
ALONG, ACROSS = W / 5, np.array([[0.0, 1.0], [0.0, 0.0]])


def stepped(step, initial=W, rate=1.0, dtype="float64", name="kernel", **arguments):
    """The weights after a step that the optimizer inside would make."""
    w = tf.Variable(initial, dtype=dtype, name=name)
    tg.RadialBrake(tg.SGD(rate), **arguments).apply([tf.constant(-step / rate, dtype)], [w])
    return w.numpy()


@pytest.mark.parametrize("outward", [0.0, 0.5, 1.0])
def test_of_the_part_outward_a_share_is_left(outward):
    np.testing.assert_allclose(stepped(ALONG, outward=outward), W + outward * ALONG)


def test_the_part_inward_is_left_alone():
    np.testing.assert_allclose(stepped(-ALONG, outward=0.0), W - ALONG)


def test_a_step_across_turns_weights_without_lengthening_them():
    after = stepped(3 * ACROSS)
    np.testing.assert_allclose(after, (W + 3 * ACROSS) * 5 / np.sqrt(34))


def test_a_step_over_the_origin_ends_there():
    np.testing.assert_array_equal(stepped(-6 * ALONG), np.zeros([2, 2]))


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_a_short_step_is_lengthened_in_proportion_to_the_weights(rate):
    after = stepped(0.01 * ACROSS, rate=rate, floor=0.2)
    across = rate * 0.2 * 5 * ACROSS
    np.testing.assert_allclose(after, (W + across) * 5 / np.sqrt(25 + np.sum(across**2)))


def test_a_longer_step_does_not_change_with_the_floor():
    np.testing.assert_array_equal(stepped(2 * ACROSS, floor=0.2), stepped(2 * ACROSS))


def test_a_step_of_zero_changes_nothing():
    np.testing.assert_array_equal(stepped(np.zeros([2, 2]), floor=0.2), W)


@pytest.mark.parametrize(
    ("name", "initial"), [("kernel", np.zeros([2, 2])), ("embeddings", W), ("bias", W[0])]
)
def test_zeros_embeddings_and_vectors_get_the_optimizers_own_steps(name, initial):
    step = np.ones_like(initial)
    after = stepped(step, initial, name=name, outward=0.0, floor=0.4)
    np.testing.assert_allclose(after, initial + step)


def test_weights_whose_norm_overflows_get_the_optimizers_own_steps():
    initial, step = np.full([2, 2], 1e20), np.full([2, 2], 1e18)
    after = stepped(step, initial, rate=1e8, dtype="float32", outward=0.0, floor=0.4)
    np.testing.assert_allclose(after, initial + step, rtol=1e-6)


def test_weight_decay_acts_after_it():
    """Decay is not braked, and what it takes is the optimizer's own share of the weights."""
    w = tf.Variable(W, dtype="float64", name="kernel")
    optimizer = tg.RadialBrake(tg.SGD(0.5, weight_decay=0.1), outward=0.0)
    optimizer.apply([tf.constant(-2 * ALONG)], [w])
    np.testing.assert_allclose(w, W - 0.5 * 0.1 * W)
