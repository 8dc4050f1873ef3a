"""Runs `mesh_cases.py`, and others like it, in a process of its own.

The collectives of a mesh and of `MirroredStrategy` on the same devices abort each other in one
process. By hand: `python -m pytest tests/programs/mesh_cases.py`.
"""

import pytest

from support.column_runs import passed


@pytest.mark.slow
def test_mesh():
    assert passed("programs/mesh_cases.py", marked="not slow") >= 35


@pytest.mark.rare
def test_mesh_in_every_case():
    """With `MixedPrecision`: row-sparse gradients, and an infinity on each device in turn."""
    cases = "programs/mesh_cases.py", "programs/mesh_precision_cases.py"
    assert passed(*cases, marked="slow", seconds=800) >= 25
