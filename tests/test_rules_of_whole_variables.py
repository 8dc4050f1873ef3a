"""Adafactor, Prodigy, MARS, COCOB: held to recordings of their reference implementations.

`goldens/rules_of_whole_variables.json` has runs of the programs named there: the problems, and the
weights after each step. Most are in float64; gradients are all zero at one step.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import recordings

GOLDENS = json.loads(
    (Path(__file__).parent / "goldens" / "rules_of_whole_variables.json").read_text()
)
CASES = GOLDENS["cases"]
ATOL = {  # where it is above 5e-11
    **dict.fromkeys((name for name in CASES if "adafactor" in name), 2e-9),  # 0.01 in float32
    "keras_tests/adafactor__single_step_1d": 5e-7,  # a run in float32, as the two of TFA
    "tfa_tests/cocob__dense_sample_with_custom_int_alpha": 5e-7,
    "tfa_tests/cocob__dense_sample_with_default_alpha": 5e-7,
    "mars/adamw_default": 2e-10,  # 0.003 in float32
    "mars/adamw_exact": 2e-9,
    "mars/lion_optimize_1d": 1e-9,
}


def replayed(case, **changed):
    """The largest difference from the recorded weights, after any step."""
    config = case["config"] | changed
    optimizer = getattr(tg, config.pop("optimizer"))(**config)
    problem = GOLDENS["problems"][case["problem"]]
    dtype = case["dtype"]
    weights = {p: tf.Variable(np.array(w, dtype), name=p) for p, w in problem["initial"].items()}
    optimizer.build([*weights.values()])
    worst = 0.0
    for i, expected in enumerate(case["variables"]):
        if i and "last_gradients" in case:  # of the exact MARS, which computes them
            for p in optimizer.state.parameters:
                p.slots["last_gradient"].assign(np.array(case["last_gradients"][i][p.path]))
        gradients = [tf.constant(np.array(problem["gradients"][i][p], dtype)) for p in weights]
        optimizer.apply(gradients, weights.values())
        for path, w in weights.items():
            worst = max(worst, np.abs(w.numpy() - np.array(expected[path])).max())
    return worst


@pytest.mark.parametrize("name", CASES)
def test_equals_the_recording(name):
    recordings.check(name, replayed(CASES[name]), ATOL.get(name, 5e-11))


@pytest.mark.parametrize("name", CASES)
def test_the_comparison_notices_another_argument(name):
    tolerance = ATOL.get(name, 5e-11)
    assert replayed(CASES[name], **CASES[name]["wrong"]) > 100 * tolerance


@pytest.mark.parametrize(
    ("options", "shape", "numbers"),
    [
        ({}, (512, 256), 512 + 256),
        ({}, (512, 8, 64), 512 * (8 + 64)),
        ({"factored_axes": "largest"}, (512, 8, 64), 8 * (512 + 64)),
        ({"factored_axes": "largest"}, (3, 3, 64, 128), 9 * (64 + 128)),
        ({"min_dim_size_to_factor": 128}, (512, 64), 512 * 64),
        ({"beta_1": 0.9}, (512, 256), 512 * 256 + 512 + 256),
        ({}, (512,), 512),
    ],
)
def test_adafactor_keeps_few_numbers(options, shape, numbers):
    optimizer = tg.Adafactor(**options)
    optimizer.build([tf.Variable(tf.zeros(shape), name="kernel")])
    (parameter,) = optimizer.state.parameters
    assert sum(np.prod(slot.shape) for slot in parameter.slots.values()) == numbers


def test_prodigy_counts_untouched_rows_in_its_norm():
    """The norm of the sums that row-sparse steps keep is that of all rows."""
    table = tf.Variable(tf.ones([6, 2]), name="table")
    optimizer = tg.Prodigy(d0=0.01)
    optimizer.build([table])
    for rows in ([0, 3], [1], [3, 5], [0, 2]):
        values = tf.fill([len(rows), 2], 0.5 + len(rows))
        optimizer.apply([tf.IndexedSlices(values, tf.constant(rows), [6, 2])], [table])
    (parameter,) = optimizer.state.parameters
    norm = np.abs(parameter.slots["gradient_sum"].numpy()).sum()
    np.testing.assert_allclose(parameter.slots["gradient_norm"].numpy(), norm, rtol=1e-6)


def test_sgdsai_measures_the_first_gradient_that_is_not_zero():
    w = tf.Variable([1.0, 1.0, 1.0])
    optimizer = tg.SGDSaI(1.0, momentum=0.0)
    for g in ([0.0, 0.0, 0.0], [1.0, 2.0, 3.0], [1.0, 1.0, 1.0]):
        before = w.numpy()
        optimizer.apply([tf.constant(g)], [w])
        ratio = np.sqrt(14.0)  # the norm of (1, 2, 3), whose deviation is 1
        np.testing.assert_allclose(w.numpy() - before, -ratio * np.array(g), rtol=1e-6)
