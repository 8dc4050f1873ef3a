"""Calls code of rare branches as functions, which are traced once for all variables of a shape.

The first call of an optimizer takes as long as its graph has nodes. A branch that hardly ever runs
has one node for each variable in this way, and its functions are made ready when it first runs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import keras_contract
from tf_graft.core.tensors.memo import memoized


def call(run: Callable[..., None], variables: Sequence[tf.Variable], values: tf.Tensor) -> None:
    """Calls `run(*variables, values)`, which writes the variables; it has no result.

    In a graph of one replica, not in XLA, it is called as a function that is not inlined.
    """
    elsewhere = tf.executing_eagerly() or keras_contract.in_xla() or tf.distribute.has_strategy()
    if not elsewhere and not any(isinstance(v, dtensor.DVariable) for v in variables):
        run = _traced(run, values.shape, values.dtype)
    run(*variables, values)


@memoized
def _traced(run: Callable[..., None], shape: tf.TensorShape, dtype: tf.DType) -> Any:
    """Returns `run` for a shape and dtype: each has its own, as retracing causes warnings."""
    attributes = {"_noinline": True}
    return tf.function(run, autograph=False, experimental_attributes=attributes)
