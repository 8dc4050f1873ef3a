"""Regularization of half-precision weights, computed on their float32 masters."""

from typing import Any

import keras
import tensorflow as tf

from tf_graft.core import numerics, rows
from tf_graft.core.parameters import Parameter
from tf_graft.core.write import Whole


@keras.saving.register_keras_serializable(package="tf_graft")
class MasterRegularizer(keras.regularizers.Regularizer):
    """A regularizer that `MixedPrecision` computes in float32, where half precision would lose it.

    For half-precision weights the model's loss does not contain it: the optimizer adds its
    gradient, taken at the float32 master, to the loss's. For other weights it is the
    regularizer given.

    Args:
        regularizer: a Keras regularizer, its name or its config.

    Raises:
        ValueError: Keras does not know it.

    Example:
        >>> layer = keras.layers.Dense(1, kernel_regularizer=MasterRegularizer("l2"))

    Reference:
        NVIDIA's OpenSeq2Seq, `mp_regularizer_wrapper`.
    """

    def __init__(self, regularizer: Any):
        self.regularizer = keras.regularizers.get(regularizer)

    def __call__(self, x: Any) -> Any:
        """The penalty of weights of any shape, a scalar: zero for half precision."""
        if tf.as_dtype(x.dtype) in numerics.HALF:
            return tf.zeros([])
        return self.regularizer(x)

    def get_config(self) -> dict[str, Any]:
        """The regularizer, serialized."""
        return {"regularizer": keras.regularizers.serialize(self.regularizer)}

    @classmethod
    def added(cls, gradient: Any, parameter: Parameter, scale: Any) -> Any:
        """The gradient, with that of the penalty times `scale` where the loss left it out."""
        regularizer = getattr(parameter.variable, "regularizer", None)
        if not isinstance(regularizer, cls) or "master" not in parameter.state:
            return gradient
        weights = parameter.read(Whole())
        with tf.GradientTape() as tape:
            tape.watch(weights)
            penalty = regularizer.regularizer(weights)
        if numerics.row_sparse(gradient):  # every row is penalized
            gradient = rows.densify(gradient, parameter.rows)
        added = tape.gradient(penalty, weights)
        return gradient + (added if scale is None else tf.cast(scale, added.dtype) * added)
