"""Runs `mesh_cases.py`, and others like it, in a process of its own.

The collectives of a mesh and of `MirroredStrategy` on the same devices abort each other in one
process. By hand: `python -m pytest tests/mesh_cases.py`.
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


def passed(*cases: str, marked: str = "slow or not slow", limit: float = 900) -> int:
    """How many of the cases in these files ran and passed; none may fail."""
    options = ["-p", "no:cacheprovider", "--no-header", "--tb=short", f"--rootdir={TESTS.parent}"]
    files = [str(TESTS / name) for name in cases]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", *options, "-m", marked, *files],
        cwd=TESTS.parent,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=limit,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
    return int(re.search(r"(\d+) passed", done.stdout)[1])


def test_mesh():
    assert passed("mesh_cases.py", marked="not slow") >= 25


@pytest.mark.slow
def test_mesh_in_every_case():
    """With `MixedPrecision`: row-sparse gradients, and an infinity on each device in turn."""
    assert passed("mesh_cases.py", "mesh_precision_cases.py", marked="slow") >= 25
