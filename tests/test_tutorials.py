"""TensorFlow's and Keras' tutorials with one import changed: see `tutorials/__init__.py`."""

import pathlib

import numpy as np
import pytest

from support import column_runs
from tutorials import comparison

FOLDER = pathlib.Path(comparison.__file__).parent
BESIDE = {"__init__", "comparison", "datasets", "one_hot", "tolerances"}
ON_A_MESH = "dtensor_keras"
PROGRAMS = sorted({path.stem for path in FOLDER.glob("*.py")} - BESIDE - {ON_A_MESH})
# What the others do is in one of these too.
SOME = ("averages", "custom_training_loop", "distributed_keras", "mixed_precision", "retrieval")
RARE = sorted({*PROGRAMS} - {*SOME})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer:UserWarning")
@pytest.mark.parametrize(
    "name", [*SOME, *(pytest.param(name, marks=pytest.mark.rare) for name in RARE)]
)
def test_losses_are_right(name):
    comparison.assert_right(comparison.compare(name))


@pytest.mark.slow
def test_losses_are_right_on_a_mesh():
    """In a process of its own: see `test_mesh.py`."""
    command = column_runs.program("tutorials.comparison", ON_A_MESH)
    assert ON_A_MESH in column_runs.run_alone(command, 200)


def test_the_comparison_notices():
    right = np.array([2.0, 1.0])
    close = comparison.Comparison(comparison.difference(right + 1e-6, right), 1e-5, None)
    comparison.assert_right(close)
    for found in (
        close._replace(ours=comparison.difference(right + 2e-5, right)),
        close._replace(stock=2e-5),
    ):
        with pytest.raises(AssertionError):
            comparison.assert_right(found)


def test_there_are_enough():
    assert len(PROGRAMS) >= 20
    assert {*SOME} < {*PROGRAMS}
