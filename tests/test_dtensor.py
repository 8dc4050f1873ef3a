"""Runs `dtensor_cases.py` in a process of its own: see `test_mesh.py`.

By hand: `python -m pytest tests/dtensor_cases.py`.
"""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import tf_graft

TESTS = pathlib.Path(__file__).parent
ROOT = pathlib.Path(tf_graft.__file__).parents[1]


def passed(limit: int) -> int:
    """How many of the cases ran and passed; none may fail."""
    options = ["-p", "no:cacheprovider", "--no-header", "--tb=short", f"--rootdir={TESTS.parent}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(TESTS / "dtensor_cases.py")],
        cwd=TESTS.parent,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=limit,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
    return int(re.search(r"(\d+) passed", done.stdout)[1])


@pytest.mark.slow
def test_models_on_a_mesh():
    assert passed(limit=900) >= 70


LATE = """
import keras
from tensorflow.experimental import dtensor
mesh = dtensor.create_mesh([("batch", 1)], devices=["CPU:0"])
dtensor.call_with_layout(lambda: keras.ops.zeros(()), dtensor.Layout.replicated(mesh, 0))
import tf_graft as tg
import tf_graft.dtensor as td
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
td.distribute(model, td.LayoutMap(mesh))
"""


@pytest.mark.slow
def test_dtensor_used_before_tf_graft_is_imported():
    fresh = {name: value for name, value in os.environ.items() if not name.startswith("DTENSOR_")}
    done = subprocess.run(
        [sys.executable, "-c", LATE],
        cwd=ROOT,
        env=fresh,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "RuntimeError: A mesh needs the environment variable DTENSOR_" in done.stderr
