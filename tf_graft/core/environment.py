"""Checks and prepares the process before this package uses Keras or TensorFlow.

Keras must run on TensorFlow, and DTensor reads an environment variable once, when it starts.
`keras_contract`, through which all private use goes, imports this module first.
"""

import os

import keras

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
