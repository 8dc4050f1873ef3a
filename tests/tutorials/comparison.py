"""The losses of a program with tf_graft's optimizers, held against stock Keras'.

By hand, in the folder `tests`: `python -m tutorials.comparison quickstart gan`; without names, all.
"""

import importlib
import pathlib
import sys
import time
from typing import NamedTuple

import keras
import numpy as np

import tf_graft


class Comparison(NamedTuple):
    """The largest relative difference of a program's losses from what is right.

    Attributes:
        ours: of tf_graft's.
        tolerance: what is allowed.
        stock: of stock Keras', where they are not what is right; infinite where it raises.
    """

    ours: float
    tolerance: float
    stock: float | None


def compare(name):
    """Runs a program with both."""
    program = importlib.import_module(f"tutorials.{name}")
    ours = losses(program.run, tf_graft)
    if not hasattr(program, "right"):
        right, stock = losses(program.run, keras.optimizers), None
    elif hasattr(program, "STOCK_RAISES"):
        right, stock = losses(program.right, keras.optimizers), np.inf
    else:
        right = losses(program.right, keras.optimizers)
        stock = difference(losses(program.run, keras.optimizers), right)
    return Comparison(difference(ours, right), program.TOLERANCE, stock)


def losses(run, optimizers):
    """What a program returns, always from the same start."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    return np.array(run(optimizers))


def difference(found, right):
    """The largest relative one."""
    assert np.isfinite(right).all()
    assert (right != 0).all()
    return float(np.abs(found / right - 1).max())


def assert_right(found):
    """Ours are within the tolerance; stock Keras', where the program calls them wrong, far off."""
    assert found.ours <= found.tolerance, found
    assert found.stock is None or found.stock > 10 * found.tolerance, found


if __name__ == "__main__":
    tf_graft.dtensor.logical_cpus(4)
    texts = {path.stem: path.read_text() for path in pathlib.Path(__file__).parent.glob("*.py")}
    for name in sys.argv[1:] or sorted(n for n, text in texts.items() if "\nTOLERANCE =" in text):
        began = time.monotonic()
        found = compare(name)
        print(name, found, f"{time.monotonic() - began:.1f} s", flush=True)
        assert_right(found)
