"""Whose turn it is: the matrices of Shampoo and SOAP are refreshed a few at each update.

What is refreshed is seen from what changes: the roots of Shampoo, the bases of SOAP.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import samples
from tf_graft.matrices import matrix_optimizer
from tf_graft.optimizers import turns
from tf_graft.optimizers.turns import Turns

FREQUENCY, PERIOD = 3, range(6, 9)
# Five matrices of one shape, two of another, three experts in each of two variables.
SHAPES = {
    **{f"a{i}/kernel": (4, 4) for i in range(3)},
    **{f"b{i}/kernel": (6, 6) for i in range(2)},
    **{f"c{i}/experts": (3, 4, 4) for i in range(2)},
    **{f"d{i}/kernel": (4, 4) for i in range(2)},
    "bias": (4,),
}
# By hand, in the order above: places 0 to 2; the second shape after the five of the first; the
# third after these seven; the rest of the first.
TURNS = {
    **{"a0/kernel": [0], "a1/kernel": [1], "a2/kernel": [2]},
    **{"b0/kernel": [5 % 3], "b1/kernel": [6 % 3]},
    **{"c0/experts": [7 % 3, 8 % 3, 9 % 3], "c1/experts": [10 % 3, 11 % 3, 12 % 3]},
    **{"d0/kernel": [3 % 3], "d1/kernel": [4 % 3]},
}
MAKE = {
    "shampoo": lambda **more: tg.Shampoo(0.1, beta_2=0.9, epsilon=0.01, start=2, **more),
    "smaller": lambda **more: tg.Shampoo(0.1, sides="smaller", beta_2=0.9, epsilon=0.01, **more),
    "soap": lambda **more: tg.SOAP(0.1, **more),
}
LATER = {"shampoo": 0, "smaller": 0, "soap": 1}  # SOAP counts from the first update


def made(name, **more):
    optimizer = MAKE[name](precondition_frequency=FREQUENCY, others="sgd", **more)
    return optimizer, [tf.Variable(tf.zeros(s), name=path) for path, s in SHAPES.items()]


def gradients(t):
    random = np.random.default_rng(t)
    return [tf.constant(random.normal(size=s).astype("float32")) for s in SHAPES.values()]


def stepped(optimizer, variables, updates, wrap=lambda f: f):
    optimizer.build(variables)
    step = wrap(lambda g: optimizer.apply(g, variables))
    for t in updates:
        step(gradients(t))
    return samples.state_of(optimizer, *variables)


def refreshed(optimizer, variables, t):
    """Which matrices have other roots or bases after an update, by path."""
    optimizer.build(variables)
    before = {p.path: by_side(p) for p in optimizer.rule.parameters}
    stepped(optimizer, variables, [t])
    return {
        (p.path, i)
        for p in optimizer.rule.parameters
        for old, new in zip(before[p.path], by_side(p), strict=True)
        for i in np.flatnonzero((old != new).any((1, 2)))
    }


def by_side(parameter):
    return [v.numpy() for role, v in parameter.slots.items() if role.endswith(("_root", "_basis"))]


@pytest.mark.parametrize("name", MAKE)
def test_each_matrix_has_its_turn_once_in_a_period(name):
    optimizer, variables = made(name)
    stepped(optimizer, variables, range(1, PERIOD[0]))
    for t in PERIOD:
        due = [(path, i) for path, its in TURNS.items() for i, turn in enumerate(its) if
               (t - LATER[name]) % FREQUENCY == turn]  # fmt: skip
        assert refreshed(optimizer, variables, t) == {*due}
    every = [turn for its in TURNS.values() for turn in its]
    counts = [every.count(turn) for turn in range(FREQUENCY)]
    assert max(counts) <= min(counts) + 1


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKE)
def test_the_first_ones_and_those_without_turns_are_computed_at_once(name):
    every = {(path, i) for path, its in TURNS.items() for i in range(len(its))}
    first = 2 if name == "shampoo" else 1
    optimizer, variables = made(name)
    found = [refreshed(optimizer, variables, t) for t in range(1, first + 1)]
    assert found == [set()] * (first - 1) + [every]
    optimizer, variables = made(name, spread=False)
    stepped(optimizer, variables, range(1, PERIOD[0]))
    found = [refreshed(optimizer, variables, t) for t in PERIOD]
    assert [x for x in found if x] == [every]


def test_blocks_have_turns_of_their_own():
    optimizer = tg.Shampoo(precondition_frequency=4, block_size=2, others="sgd")
    w = tf.Variable(tf.zeros([4, 4]), name="kernel")
    optimizer.build([w])
    random, found = np.random.default_rng(0), []
    for _ in range(8):
        (p,) = optimizer.rule.parameters
        before = by_side(p)
        optimizer.apply([tf.constant(random.normal(size=(4, 4)).astype("float32"))], [w])
        changed = [(x != y).any((1, 2)) for x, y in zip(by_side(p), before, strict=True)]
        assert (changed[0] == changed[1]).all()
        found.append(np.flatnonzero(changed[0]).tolist())
    assert found == [[0, 1, 2, 3], [2], [3], [0], [1], [2], [3], [0]]


def test_nothing_is_computed_of_matrices_that_wait():
    """Of turns with fewer matrices one is computed repeatedly, and its result is used once."""
    its, seen = Turns((4, 1, 4, 7, 4, 1)), []

    def compute(given, before, count):
        seen.append(given["x"].numpy().tolist())
        return given["x"] + before, count + 1

    x = tf.range(6.0)
    for turn, due in ((1, [1, 5, 5]), (4, [0, 2, 4]), (7, [3, 3, 3])):
        before = tf.fill([6], 100.0), tf.zeros([6])
        result = its.refreshed(tf.constant(float(turn)), compute, ({"x": x},), before)
        new = [float(i in due) for i in range(6)]
        assert seen[-1] == due
        assert result[1].numpy().tolist() == new
        assert result[0].numpy().tolist() == [100 + i * n for i, n in enumerate(new)]
    found = [bool(its.due(tf.constant(float(turn)))) for turn in range(9)]
    assert found == [turn in (1, 4, 7) for turn in range(9)]


def test_equal_shapes_are_spread_evenly():
    """Also if they recur with the frequency: each third matrix here takes far longer."""
    shapes = {f"{i}": (8, 8) if i % 3 == 2 else (2, 2) for i in range(18)}
    places = turns.places(shapes, dict.fromkeys(shapes, 1))
    of_large = [places[path][0] % 3 for path, shape in shapes.items() if shape == (8, 8)]
    assert sorted(of_large) == [0, 0, 1, 1, 2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKE)
def test_matrices_alone_take_the_steps_of_a_batch(name, monkeypatch):
    """But for the last bit of products, which differs in a batch of one matrix.

    With SOAP the weights of either lie up to 2e-6 from a float64 computation (on an AMD EPYC).
    """
    together = stepped(*made(name), range(1, 9))
    monkeypatch.setattr(matrix_optimizer, "SMALL", 0)
    alone = stepped(*made(name), range(1, 9))
    for role, value in together.items():
        np.testing.assert_allclose(alone[role], value, rtol=1e-5, atol=4e-6, err_msg=role)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKE)
def test_a_graph_takes_the_steps_of_eager_execution(name):
    eager = stepped(*made(name), range(1, 9))
    samples.assert_same_state(stepped(*made(name), range(1, 9), tf.function), eager)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKE)
def test_xla_is_near(name):
    eager = stepped(*made(name), range(1, 9))
    compiled = stepped(*made(name), range(1, 9), lambda f: tf.function(f, jit_compile=True))
    for i in range(len(SHAPES)):
        np.testing.assert_allclose(compiled[f"model {i}"], eager[f"model {i}"], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKE)
def test_a_resumed_run_keeps_the_turns(name, tmp_path):
    whole = stepped(*made(name), range(1, 9))
    optimizer, variables = made(name)
    stepped(optimizer, variables, range(1, 5))
    saved = tf.train.Checkpoint(optimizer=optimizer, weights=variables).write(str(tmp_path / "x"))
    optimizer, variables = made(name)
    optimizer.build(variables)
    tf.train.Checkpoint(optimizer=optimizer, weights=variables).read(saved).assert_consumed()
    samples.assert_same_state(stepped(optimizer, variables, range(5, 9)), whole)


def four_layers(trainable):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4, use_bias=False, name=f"d{i}") for i in range(4)]
    model = keras.Sequential([keras.Input([4]), *layers], name="model")
    for layer, trains in zip(layers, trainable, strict=False):
        layer.trainable = trains
    return model


def fitted(model, optimizer, epochs):
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    model.compile(optimizer, "mse")
    model.fit(x, x[:, ::-1], batch_size=8, epochs=epochs, verbose=0)
    found = samples.state_of(optimizer, *model.weights)
    return {name.removeprefix("model/"): value for name, value in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKE)
def test_layers_that_are_frozen_change_no_turns(name, tmp_path):
    """Not when they are unfrozen, nor in a run that is resumed then, in the order of the model."""

    def turns_of(optimizer):
        matrices = [path for path, axes in optimizer.axes_by_path.items() if axes]
        return {p.removeprefix("model/"): optimizer.turns_of([p]).each for p in matrices}

    optimizer, _ = made(name)
    model = four_layers([False, True, True])
    fitted(model, optimizer, 4)
    assert turns_of(optimizer) == {"d1/kernel": (1,), "d2/kernel": (2,)}
    model.layers[0].trainable = True
    fitted(model, optimizer, 2)
    model.save(tmp_path / "model.keras")
    expected = fitted(model, optimizer, 4)
    again = keras.saving.load_model(tmp_path / "model.keras")
    every = {f"d{i}/kernel": (i,) for i in range(3)}
    assert turns_of(optimizer) == every
    samples.assert_same_state(fitted(again, again.optimizer, 4), expected)
    assert turns_of(again.optimizer) == every
