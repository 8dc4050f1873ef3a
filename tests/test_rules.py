"""Rules held to recordings of their reference implementations.

`goldens/rules.json` has runs of the programs named there, in float64: a matrix, a vector and a
scalar, whose gradients are all zero at one step.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg

CASES = json.loads((Path(__file__).parent / "goldens" / "rules.json").read_text())
ATOL = {
    "ademamix_apple/warmup_longer": 1e-7,  # theirs adds 1e-8 to the betas of the warm-up
}


def replayed(case, **changed):
    """The largest difference from the recorded weights, after any step."""
    config = case["config"] | changed
    optimizer = getattr(tg, config.pop("optimizer"))(**config)
    weights = {path: tf.Variable(np.array(w), name=path) for path, w in case["initial"].items()}
    worst = 0.0
    for gradients, expected in zip(case["gradients"], case["variables"], strict=True):
        optimizer.apply([tf.constant(np.array(gradients[p])) for p in weights], weights.values())
        for path, w in weights.items():
            worst = max(worst, np.abs(w.numpy() - np.array(expected[path])).max())
    return worst


@pytest.mark.parametrize("name", CASES)
def test_equals_the_recording(name):
    assert replayed(CASES[name]) < ATOL.get(name, 5e-9)  # a rate of 0.01 is 2e-8 off in float32


@pytest.mark.parametrize("name", CASES)
def test_the_comparison_notices_another_beta(name):
    assert replayed(CASES[name], beta_1=0.7) > 1e-4
