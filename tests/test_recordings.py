"""Further recorded runs of other programs, and the list of all of them.

`goldens/recordings.json` has the problems, and the weights after each step. The list, which
`python tests/recordings.py` writes, is `docs/data/recordings.json`: how far ours is from each run
that was recorded, or why none of ours is compared with it.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import recordings

FILE = json.loads((Path(__file__).parent / "goldens" / "recordings.json").read_text())
CASES, PROBLEMS = FILE["cases"], FILE["problems"]
ALL = Path(__file__).parents[1] / "docs" / "data" / "recordings.json"
# Relative to the largest movement; a learning rate of float32 is 2e-8 off.
RTOL = {"float64": 1e-6, "float32": 3e-5}
FARTHEST = {
    # Their epsilon is added to the corrected root, as in the paper; ours as in Keras.
    "adam_torch/adam_amsgrad": 3e-5,
    "adam_torch/adamw": 3e-5,
    "optax_transforms/multi_steps_3_adam": 3e-5,
    # An ulp of weights near 4, which these few steps hardly move.
    **dict.fromkeys((name for name in CASES if "rectified_adam" in name), 3e-3),
}


def tensor(gradient, dtype):
    if "dense" in gradient:
        return tf.constant(np.array(gradient["dense"], dtype))
    sparse = gradient["sparse"]
    values = tf.constant(np.array(sparse["values"], dtype))
    return tf.IndexedSlices(values, tf.constant(sparse["indices"]), sparse["dense_shape"])


def replayed(name, **changed):
    """The largest difference from the recorded weights, relative to the largest movement."""
    case = CASES[name]
    problem, dtype = PROBLEMS[case["problem"]], case["dtype"]
    optimizer = tg.get(case["config"] | changed)
    weights = {p: tf.Variable(np.array(w, dtype), name=p) for p, w in problem["initial"].items()}
    optimizer.build(list(weights.values()))
    worst = moved = 0.0
    for gradients, expected in zip(problem["gradients"], case["variables"], strict=True):
        optimizer.apply([tensor(g, dtype) for g in gradients], list(weights.values()))
        for path, values in expected.items():
            worst = max(worst, np.abs(weights[path].numpy() - np.array(values)).max())
            start = np.array(problem["initial"][path])
            moved = max(moved, np.abs(start - np.array(values)).max())
    return worst / moved


def allowed(name):
    return FARTHEST.get(name, RTOL[CASES[name]["dtype"]])


@pytest.mark.parametrize("name", CASES)
def test_equals_the_recording(name):
    recordings.check(name, replayed(name), allowed(name))


@pytest.mark.parametrize("name", CASES)
def test_the_comparison_notices_another_rate(name):
    rate = 1.1 * CASES[name]["config"]["learning_rate"]
    assert replayed(name, learning_rate=rate) > 0.03


def test_every_recording_is_equal_or_has_its_reason():
    listed = json.loads(ALL.read_text())
    assert len(listed) == 341
    for name, row in listed.items():
        if "off" in row:
            assert row["off"] < row["allowed"], name
        else:
            assert (row["kind"], row["reason"]) == recordings.reason(name)
