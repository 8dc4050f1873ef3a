"""Further recorded runs of other programs, and the list of all of them.

`goldens/recordings.json` has the problems, and the weights after each step. The list, which
`python tests/recordings.py` writes, is `docs/data/recordings.json`: how far ours is from each run
that was recorded, or why none of ours is compared with it.
"""

import functools
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
# Keras' own test of SGD asks for Nesterov momentum without a momentum.
pytestmark = pytest.mark.filterwarnings("ignore:.*nesterov=True.*does nothing")
# Relative to the largest movement; a learning rate of float32 is 2e-8 off.
RTOL = {"float64": 1e-6, "float32": 3e-5}
FARTHEST = {
    # Their epsilon is added to the corrected root, as in the paper; ours as in Keras.
    "adam_torch/adam_amsgrad": 3e-5,
    "adam_torch/adamw": 3e-5,
    "shampoo_facebook/only_sgd_adam_precond": 3e-5,
    "optax_transforms/multi_steps_3_adam": 3e-5,
    # An ulp of weights near 4, which these few steps hardly move.
    **dict.fromkeys((name for name in CASES if "rectified_adam" in name), 3e-3),
    # So near that the sign in the mean square shows, which is 1e-5; in float16 no weight moves.
    **dict.fromkeys((name for name in CASES if "yogi" in name), 1e-6),
}


def tensor(gradient, dtype):
    if "dense" in gradient:
        return tf.constant(np.array(gradient["dense"], dtype))
    sparse = gradient["sparse"]
    values = tf.constant(np.array(sparse["values"], dtype))
    shape = tf.constant(sparse["dense_shape"], tf.int64)
    return tf.IndexedSlices(values, tf.constant(sparse["indices"]), shape)


def runs(name):
    """A recording of a test with several optimizers has one run for each of them.

    In a run of `times` steps the gradients stay the same, and some weights were not recorded.
    """
    return CASES[name].get("runs", [CASES[name]])


def replayed(name, through=lambda step: step, **changed):
    """The largest difference from the recorded weights, relative to the largest movement.

    Args:
        name: the recording.
        through: compiles the step.
        **changed: arguments of the optimizer that differ from the recorded run's.
    """
    worst = moved = 0.0
    for run in runs(name):
        problem, dtype = PROBLEMS[run["problem"]], run["dtype"]
        initial = problem["initial"]
        optimizer = tg.get(run["config"] | changed)
        weights = {p: tf.Variable(np.array(w, dtype), name=p) for p, w in initial.items()}
        optimizer.build(list(weights.values()))
        every = problem["gradients"] * run.get("times", 1)

        trained = list(weights.values())
        apply = through(functools.partial(_apply, optimizer, trained))
        for gradients, expected in zip(every, run["variables"], strict=True):
            apply(*(tensor(g, dtype) for g in gradients))
            for path, values in (expected or {}).items():
                worst = max(worst, np.abs(weights[path].numpy() - np.array(values)).max())
                moved = max(moved, np.abs(np.array(initial[path]) - np.array(values)).max())
    return worst / moved


def _apply(optimizer, variables, *gradients):
    optimizer.apply(gradients, variables)


def allowed(name):
    return FARTHEST.get(name) or max(RTOL[run["dtype"]] for run in runs(name))


@pytest.mark.parametrize("name", CASES)
def test_equals_the_recording(name):
    recordings.check(name, replayed(name), allowed(name))


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [None, True], ids=["function", "XLA"])
@pytest.mark.parametrize("name", CASES)
def test_a_compiled_step_equals_the_recording(name, compiled):
    through = functools.partial(tf.function, jit_compile=compiled)
    recordings.check(name, replayed(name, through), allowed(name))


@pytest.mark.parametrize("name", CASES)
def test_the_comparison_notices_another_rate(name):
    rate = runs(name)[0]["config"]["learning_rate"]
    changed = 1e-4 if isinstance(rate, dict) else 1.1 * rate
    assert replayed(name, learning_rate=changed) > 0.03


def test_every_recording_is_listed():
    listed = json.loads(ALL.read_text())
    assert len(listed) == 341
    for name, row in listed.items():
        if "off" in row:
            assert row["off"] < row["allowed"], name
        else:
            assert (row["kind"], row["reason"]) == recordings.reason(name)
