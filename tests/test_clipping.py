"""Clipping: what is cut, what is skipped instead, and `tg.clip_by_global_norm`."""

import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support.samples import slices

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize("nonfinite", ["skip", "raise"])
@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_what_is_clipped_may_be_large(nonfinite, clip):
    """The sum of squares of 1e30 overflows float32; clipped, the gradient can be applied."""
    optimizer, w = tg.SGD(0.5, nonfinite=nonfinite, **{clip: 3.0}), tf.Variable([0.0])
    optimizer.apply([tf.constant([1e30])], [w])
    assert int(optimizer.iterations.numpy()) == 1
    np.testing.assert_allclose(w.numpy(), [-1.5], rtol=1e-6)


@pytest.mark.parametrize(
    ("clip", "dtype", "value", "taken"),
    [
        (None, "float32", 2.0**51, 1),
        (None, "float32", 2.0**51 * 1.01, 0),
        (None, "float64", 2.0**484, 1),
        (None, "float64", 2.0**485, 0),
        (2.0**36, "float32", 3e38, 1),
        (2.0**37, "float32", 3e38, 0),  # clipped to as much as that, Adagrad's sums may overflow
    ],
)
def test_the_largest_norm_that_is_applied(clip, dtype, value, taken):
    optimizer = tg.Adagrad(0.5, global_clipnorm=clip)
    w = tf.Variable([0.0], dtype=dtype)
    optimizer.apply([tf.constant([value], dtype)], [w])
    assert int(optimizer.iterations.numpy()) == taken
    assert int(optimizer.skipped_steps.numpy()) == 1 - taken


@pytest.mark.parametrize("scale", [None, 2.0])
@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm"])
def test_gradients_whose_norm_is_too_large_are_skipped(clip, scale):
    """Each entry is finite; divided by a norm that is not, the weights would be NaN."""
    w = [tf.Variable([1.0, 2.0]), tf.Variable([1.0])]
    optimizer = tg.SGD(1.0, loss_scale_factor=scale, **{clip: 1.0})
    optimizer.apply([tf.constant([3e38, 3e38]), tf.constant([1.0])], w)
    taken = scale is not None  # half of that has a norm
    assert int(optimizer.skipped_steps) == 1 - taken
    moved = [1 - 0.5**0.5, 2 - 0.5**0.5] if taken else [1.0, 2.0]
    np.testing.assert_allclose(w[0].numpy(), moved, rtol=1e-6)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_the_check_of_a_global_clip(bad):
    """What overflows when it is squared is clipped; what is not finite is skipped."""
    w = tf.Variable([1.0, 2.0])
    optimizer = tg.SGD(1.0, global_clipnorm=5.0)
    step = tf.function(lambda g: optimizer.apply([g], [w]), autograph=False)
    step(tf.constant([3e30, 4e30]))
    np.testing.assert_allclose(w.numpy(), [-2.0, -2.0], rtol=1e-6)
    step(tf.constant([1.0, bad]))
    np.testing.assert_allclose(w.numpy(), [-2.0, -2.0], rtol=1e-6)
    assert int(optimizer.skipped_steps) == 1


@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm"])
def test_an_infinity_that_is_applied_is_no_step_of_zero(clip):
    w = tf.Variable([1.0, 2.0])
    tg.SGD(0.5, nonfinite="apply", **{clip: 1.0}).apply([tf.constant([1.0, INF])], [w])
    assert np.isnan(w.numpy()).all()


# `tg.clip_by_global_norm`.


def test_the_function():
    g, h = tf.constant([3.0, 0.0]), tf.constant(4.0, tf.float16)
    (a, b, c), norm = tg.clip_by_global_norm([g, h, None], 1)
    np.testing.assert_allclose(a, [0.6, 0.0], rtol=1e-6)
    np.testing.assert_allclose(b, 0.8, rtol=1e-3)
    assert (b.dtype, b.shape, c, float(norm)) == (tf.float16, (), None, 5.0)
    (a, b), _ = tg.clip_by_global_norm([g, h], 10.0)
    np.testing.assert_array_equal(a, g)
    (a,), norm = tg.clip_by_global_norm([tf.zeros([2])], 1.0)
    assert (a.numpy().tolist(), float(norm)) == ([0.0, 0.0], 0.0)
    assert tg.clip_by_global_norm([None], 1.0) == ([None], None)
    large = tf.fill([4], tf.constant(4e4, tf.float16))
    (a,), norm = tg.clip_by_global_norm([large], 1.0)
    np.testing.assert_allclose(a, 0.5, rtol=1e-3)
    assert float(norm) == pytest.approx(8e4)
    with pytest.raises(ValueError, match=r"clip_by_global_norm\(clip_norm=0\)"):
        tg.clip_by_global_norm([g], 0)


def test_the_function_on_repeated_rows():
    (g,), norm = tg.clip_by_global_norm([slices([1, 1], [[3.0], [1.0]], rows=2)], 2.0)
    assert float(norm) == 4.0
    np.testing.assert_allclose(
        tf.convert_to_tensor(tf.IndexedSlices(g.values, g.indices, [2, 1])), [[0.0], [2.0]]
    )


def test_the_function_tells_an_infinite_norm():
    inf, finite = tf.constant([1.0, INF]), tf.constant(2.0)
    clipped, norm = tg.clip_by_global_norm([inf, None, finite], 1.0)
    theirs, their_norm = tf.clip_by_global_norm([inf, None, finite], 1.0)
    assert float(norm) == float(their_norm) == INF
    for a, b in zip(clipped, theirs, strict=True):
        assert a is b is None or np.array_equal(a, b, equal_nan=True)


@pytest.mark.parametrize(
    "given",
    [
        *(tf.constant([3.0, 4.0]), np.array([3.0, 4.0]), tf.Variable([3.0, 4.0])),
        *(tf.IndexedSlices([[1.0]], [0]), {"w": tf.constant(1.0)}, "w", None),
    ],
    ids=lambda given: type(given).__name__,
)
def test_the_function_refuses_what_is_no_list(given):
    with pytest.raises(TypeError, match=r"clip_by_global_norm\(gradients=.* must be a list"):
        tg.clip_by_global_norm(given, 1.0)
    with pytest.raises(TypeError, match="gradient 1 is of dtype int32; it must be floating point"):
        tg.clip_by_global_norm([None, tf.constant([3])], 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True], ids=["function", "xla"])
def test_the_function_on_rows_of_dynamic_number(jit_compile):
    @tf.function(jit_compile=jit_compile)
    def clipped(values, ids, kept):
        values, ids = tf.boolean_mask(values, kept), tf.boolean_mask(ids, kept)
        gradient = tf.IndexedSlices(values, ids, tf.constant([4, 1], tf.int64))
        (g,), norm = tg.clip_by_global_norm([gradient], 2.5)
        return tf.math.unsorted_segment_sum(g.values, g.indices, 4), norm

    values, kept = tf.constant([[9.0], [1.0], [3.0], [2.0]]), tf.constant([False, True, True, True])
    dense, norm = clipped(values, tf.constant([0, 1, 2, 1], tf.int64), kept)
    np.testing.assert_allclose(norm, np.sqrt(18.0), rtol=1e-6)
    np.testing.assert_allclose(dense[:, 0], np.array([0, 3, 3, 0]) * 2.5 / np.sqrt(18), rtol=1e-6)


@pytest.mark.slow
def test_the_function_has_to_know_the_rows_in_xla():
    @tf.function(jit_compile=True)
    def clipped(values):
        return tg.clip_by_global_norm([slices([1, 1], values)], 2.5)[1]

    with pytest.raises(ValueError, match="must have a constant dense_shape"):
        clipped(tf.ones([2, 1]))
