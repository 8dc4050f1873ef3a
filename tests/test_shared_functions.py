"""Variables that share code move as if each had its own."""

import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import samples
from tf_graft.core.tensors import shared_functions

SHAPES = [(3, 4)] * 4 + [(2,)] * 4 + [(3,), ()]


def trained(make, dtype="float32", between=lambda weights: None, steps=3):
    """Weights of which many share a shape, after steps of a traced function."""
    random = np.random.default_rng(0)
    values = [tf.cast(random.normal(size=shape), dtype) for shape in SHAPES]
    weights = [tf.Variable(value, name=f"w{i}") for i, value in enumerate(values)]
    given = [tf.cast(random.normal(size=(steps, *shape)), dtype) for shape in SHAPES]
    optimizer = make()
    step = tf.function(lambda *gradients: optimizer.apply(gradients, weights), autograph=False)
    for i in range(steps):
        step(*[g[i] for g in given])
        between(weights)
    assert int(optimizer.iterations) == steps
    return [tf.cast(w, "float64").numpy() for w in weights]


def assert_same_alone(monkeypatch, *given, exactly=True):
    """Asserts that variables move as if each had code of its own."""
    found = trained(*given)
    monkeypatch.setattr(shared_functions, "MANY", len(SHAPES))
    for number, (a, b) in enumerate(zip(found, trained(*given), strict=True)):
        tolerance = 0 if exactly else 1e-6
        np.testing.assert_allclose(a, b, tolerance, tolerance, err_msg=f"variable {number}")


@samples.each(samples.of_each_class(), quick=("lamb", "lars", "novograd"))
def test_numbers(sample, monkeypatch):
    assert_same_alone(monkeypatch, sample.make)


FALLING = tg.schedules.PolyDecay(0.9, 10)
OPTIONS = {
    "multipliers": lambda: tg.LAMB(0.1, learning_rate_multipliers={"w[0-5]$": 2.0, "": 0.5}),
    "exclusions": lambda: tg.LAMB(0.1, weight_decay_rate=0.1, exclude_from_weight_decay=["w1$"]),
    "a schedule": lambda: tg.NAdamW(FALLING, weight_decay=0.01),
    "averages": lambda: tg.LAMB(0.1, use_ema=True, ema_overwrite_frequency=2),
    "a norm": lambda: tg.LARS(0.1, global_clipnorm=0.1),
    "a scale": lambda: tg.Lion(0.1, loss_scale_factor=8.0),
}


@pytest.mark.parametrize("option", samples.with_slow(OPTIONS, ["exclusions"]))
def test_numbers_with_options(option, monkeypatch):
    assert_same_alone(monkeypatch, OPTIONS[option])


@pytest.mark.slow
def test_masters_follow_weights_that_were_assigned(monkeypatch):
    def assign(weights):
        weights[1].assign(tf.ones_like(weights[1]))

    assert_same_alone(monkeypatch, lambda: tg.Adam(0.01), "bfloat16", assign)
    found = trained(lambda: tg.Adam(0.01), "bfloat16", assign)
    np.testing.assert_array_equal(found[1], 1)


@pytest.mark.slow
@pytest.mark.parametrize("make", [tg.Adam, tg.Lion, lambda: tg.AdaGraft(tg.Adam(), tg.SGD())])
def test_the_rank_of_gradients_may_be_unknown(make):
    optimizer, w = make(), [tf.Variable(tf.ones([3, 2])) for _ in range(12)]
    unknown = [tf.TensorSpec(None), tf.TensorSpec(None), tf.TensorSpec(None, tf.int64)]

    @tf.function(input_signature=unknown)
    def step(dense, values, rows):
        optimizer.apply([tf.IndexedSlices(values, rows), *[dense] * 11], w)

    step(tf.ones([3, 2]), tf.ones([1, 2]), tf.constant([1], tf.int64))
    assert int(optimizer.iterations) == 1
    np.testing.assert_array_equal(w[0].numpy() < 1, [[False] * 2, [True] * 2, [False] * 2])
    assert (w[1].numpy() < 1).all()
