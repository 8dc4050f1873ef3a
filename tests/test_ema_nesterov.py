"""EMA-Nesterov: which weights a model has; the equations are in `test_equations.py`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import replicas

X = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
Y = (X @ [[1.0], [-2.0], [0.5]]).astype("float32")


def optimizer(**arguments):
    return tg.EMANesterov(tg.AdamW(0.05), momentum=0.8, ahead=0.5, **arguments)


def model(made=optimizer):
    keras.utils.set_random_seed(1)
    result = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    result.compile(made(), "mse")
    return result


def fit(given, epochs, *callbacks):
    arguments = {"epochs": epochs, "batch_size": 8, "shuffle": False, "verbose": 0}
    given.fit(X, Y, **arguments, callbacks=[*callbacks], validation_data=(X, Y))


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def both(given):
    """The evaluation weights and the training weights of a model."""
    given.optimizer.use_evaluation_weights()
    x = given.get_weights()
    given.optimizer.use_training_weights()
    return x, given.get_weights()


@pytest.mark.slow
def test_without_looking_ahead_it_is_the_optimizer():
    one = model(lambda: tg.EMANesterov(tg.AdamW(0.05), ahead=0.0))
    plain = model(lambda: tg.AdamW(0.05))
    fit(one, 2)
    fit(plain, 2)
    for a, b in zip(one.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_exchange_is_exact(dtype):
    w, made = tf.Variable([[1.0, -2.0]], dtype=dtype), optimizer()
    for g in ([[1.0, 0.5]], [[0.5, -1.0]]):
        made.apply([tf.constant(g, dtype)], [w])
    y = tf.cast(w, "float32").numpy()
    with made.evaluation_weights():
        assert not np.array_equal(tf.cast(w, "float32"), y)
    assert np.array_equal(tf.cast(w, "float32"), y)


@pytest.mark.slow
def test_fit_ends_with_the_evaluation_weights_and_goes_on_from_the_others():
    one, whole = model(), model()
    fit(one, 1, tg.EvaluationWeights())
    assert one.optimizer.evaluating
    fit(one, 1, tg.EvaluationWeights())
    fit(whole, 2, tg.EvaluationWeights())
    assert not same(*both(one))
    for a, b in zip(both(one), both(whole), strict=True):
        assert same(a, b)


def test_how_far_ahead_follows_a_schedule():
    """With 0 from the third update on, y is x, and the displacements of both are the same."""
    ahead = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.5, 0.0])
    w, made = tf.Variable([1.0]), tg.EMANesterov(tg.SGD(0.5), momentum=0.5, ahead=ahead)
    found = []
    for _ in range(3):
        made.apply([tf.constant([1.0])], [w])
        y = float(w[0])
        with made.evaluation_weights():
            found.append((float(w[0]), y))
    # m is -0.25, then half of it and of the displacement of x, which is -0.125 - 0.5
    np.testing.assert_allclose(found, [(0.5, 0.375), (-0.125, -0.34375), (-0.84375, -0.84375)])


@pytest.mark.slow
def test_a_file_has_both_weights(tmp_path):
    one, whole = model(), model()
    fit(one, 1, tg.EvaluationWeights())
    fit(whole, 2, tg.EvaluationWeights())
    one.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert same(loaded.get_weights(), one.get_weights())
    fit(loaded, 1, tg.EvaluationWeights())
    for a, b in zip(both(loaded), both(whole), strict=True):
        assert same(a, b)


@pytest.mark.slow
def test_on_two_replicas():
    with replicas.mirrored().scope():
        two = model()
    one = model()
    for given in (one, two):
        fit(given, 2, tg.EvaluationWeights())
    for a, b in zip(both(one), both(two), strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("outer", [tg.LARC, tg.MixedPrecision, tg.EMANesterov])
def test_it_must_be_the_outermost(outer):
    with pytest.raises(TypeError, match="must be the outermost optimizer"):
        outer(tg.EMANesterov("sgd"))
