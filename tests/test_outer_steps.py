"""Lookahead and DiLoCo, which are settings of AGN, held to recordings of other programs.

`goldens/outer_steps.json` has runs of the programs named there; the weights are the fast ones.
"""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import recordings
from support.replicas import mirrored, per_replica

CASES = json.loads((Path(__file__).parent / "goldens" / "outer_steps.json").read_text())


def tensor(gradient, dtype):
    if not isinstance(gradient, dict):
        return tf.constant(np.array(gradient, dtype))
    values = tf.constant(np.array(gradient["values"], dtype))
    return tf.IndexedSlices(values, tf.constant(gradient["indices"]), gradient["dense_shape"])


def replayed(case, **changed):
    """The largest difference from the recorded weights, after any step that has them."""
    optimizer = getattr(tg, case["make"])(case["inner"], **(case["arguments"] | changed))
    dtype = case.get("dtype", "float64")
    weights = {p: tf.Variable(np.array(w, dtype), name=p) for p, w in case["initial"].items()}
    worst = 0.0
    steps = zip(case["gradients"] * case.get("times", 1), case["variables"], strict=True)
    for gradients, expected in steps:
        given = [tensor(gradients[path], dtype) for path in weights]
        optimizer.apply(given, list(weights.values()))
        for path, values in (expected or {}).items():
            worst = max(worst, np.abs(weights[path].numpy() - np.array(values)).max())
    return worst


def marked(names):
    """The runs of a hundred steps are slow tests."""
    slow = pytest.mark.slow
    return [pytest.param(n, marks=slow if "times" in CASES[n] else ()) for n in names]


@pytest.mark.parametrize("name", marked(CASES))
def test_equals_the_recording(name):
    """A rate of 0.2 is 3e-9 off in float32; the epsilon of another Adam is the paper's."""
    paper = "adam" in name and "tfa" not in name
    bound = 2e-6 if name.startswith("tfa_tests") else 5e-6 if paper else 1e-7  # those: float32
    recordings.check(name, replayed(CASES[name]), bound)


@pytest.mark.parametrize("name", marked(n for n in CASES if len(CASES[n]["variables"]) > 1))
def test_the_comparison_notices_another_period(name):
    period = next(key for key in CASES[name]["arguments"] if key.endswith("period"))
    assert replayed(CASES[name], **{period: 4}) > 1e-4


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_a_skipped_step_does_not_lengthen_the_slow_one(graph):
    """On replicas it counts for the period; the slow weights go half the way to the fast ones."""
    with mirrored().scope():
        w, optimizer = tf.Variable([4.0], name="w"), tg.lookahead(tg.SGD(1.0), 3, 0.5)
        optimizer.build([w])
    run = lambda g: mirrored().run(lambda g: optimizer.apply([g], [w]), args=(g,))  # noqa: E731
    step = tf.function(run, autograph=False) if graph else run
    for g in (1.0, np.nan, 1.0):  # to 3 and to 2
        step(per_replica([[g / 2]] * 2))
    assert w.numpy().tolist() == [3.0]


def test_fit_ends_with_the_slow_weights_and_the_config_is_agns():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    optimizer = tg.lookahead(tg.SGD(0.1), 3, 0.5)
    model.compile(optimizer, "mse")
    x = np.random.default_rng(0).normal(size=(16, 2)).astype("float32")
    model.fit(x, x.sum(1), batch_size=4, epochs=1, shuffle=False, verbose=0)
    centers = optimizer.center_values().values()
    for variable, center in zip(model.trainable_variables, centers, strict=True):
        np.testing.assert_array_equal(variable, center)
    again = tg.deserialize(tg.serialize(optimizer))
    assert isinstance(again, tg.AGN)
    assert repr(again) == repr(optimizer)


def test_diloco_without_a_momentum_warns_of_nothing():
    assert not tg.diloco("sgd", outer_momentum=0.0).center_optimizer.nesterov


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tg.lookahead("sgd", 0), r"lookahead\(sync_period=0\)"),
        (lambda: tg.lookahead("sgd", slow_step_size=0), r"lookahead\(slow_step_size=0\)"),
        (lambda: tg.diloco("sgd", 1.5), r"diloco\(communication_period=1.5\)"),
        (lambda: tg.diloco("sgd", outer_momentum=2), r"diloco\(outer_momentum=2\)"),
        (lambda: tg.diloco("sgd", outer_learning_rate=-1), r"diloco\(outer_learning_rate=-1\)"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
