"""Checks and prepares the process before this package uses Keras or TensorFlow.

Both must be new enough, Keras must run on TensorFlow, and DTensor reads an environment variable
once, when it starts. `keras_contract`, through which all private use goes, imports this module
first.
"""

import os

import keras
import tensorflow as tf

OLDEST = {"TensorFlow": (2, 19), "Keras": (3, 10)}  # as in setup.cfg


def require(name: str, installed: str) -> None:
    """Refuses a version that is older than the oldest one that this package works with.

    Raises:
        ImportError: it is older.
    """
    if tuple(map(int, installed.split(".")[:2])) < OLDEST[name]:
        oldest = ".".join(map(str, OLDEST[name]))
        raise ImportError(
            f"tf_graft needs {name} {oldest} or later, and {name} {installed} is installed: "
            f"pip install --upgrade {name.lower()}"
        )


require("TensorFlow", tf.__version__)
require("Keras", keras.__version__)
if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"tf_graft needs Keras on the TensorFlow backend, and Keras runs on "
        f"'{keras.backend.backend()}': set the environment variable KERAS_BACKEND=tensorflow "
        "before Keras is imported."
    )

# TensorFlow groups the all-reduces of a function, together with the assignments that wait for them,
# but not the reads after such assignments: a read of a metric, an average or a clipped weight would
# return its value from before the step. "0" turns the grouping off.
COMBINING = "DTENSOR_ENABLE_COMBINE_ALL_REDUCES_OPTIMIZATION"
IN_ORDER = os.environ.get(COMBINING) == "0"  # whether it was off before this package was imported
os.environ.setdefault(COMBINING, "0")
