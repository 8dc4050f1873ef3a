"""A regularizer of half-precision weights that is computed on their float32 masters."""

from collections.abc import Callable

import keras
import tensorflow as tf

from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.write import Whole
from tf_graft.core.tensors import numerics, rows
from tf_graft.core.types import Config, Gradient, Scalar


@keras.saving.register_keras_serializable(package="tf_graft")
class MasterRegularizer(keras.regularizers.Regularizer):
    """A regularizer that `MixedPrecision` computes in float32, for half-precision weights.

    The model's loss does not contain the penalty of half-precision weights: the optimizer computes
    the penalty's gradient in float32, at the master if there is one (see `master_weights`), and
    adds it to the gradient of the loss. Under any other optimizer these weights have no penalty.
    For weights of other dtypes it works like the given regularizer.

    Args:
        regularizer: a Keras regularizer, its name or its config.

    Raises:
        ValueError: Keras does not know the regularizer.

    Example:
        >>> layer = keras.layers.Dense(1, kernel_regularizer=MasterRegularizer("l2"))

    Reference:
        NVIDIA's OpenSeq2Seq, `mp_regularizer_wrapper`.
    """

    def __init__(self, regularizer: Callable[[tf.Tensor], tf.Tensor] | str | Config):
        self.regularizer = keras.regularizers.get(regularizer)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the penalty of weights of any shape, a scalar: zero for half precision."""
        if tf.as_dtype(x.dtype) in numerics.HALF:
            return tf.zeros([])
        return self.regularizer(x)

    def get_config(self) -> Config:
        """Returns the regularizer, serialized."""
        return {"regularizer": keras.regularizers.serialize(self.regularizer)}

    @classmethod
    def added(cls, gradient: Gradient, parameter: Parameter, scale: Scalar | None) -> Gradient:
        """Adds the gradient of the penalty, times `scale`, if the loss does not contain it."""
        regularizer = getattr(parameter.variable, "regularizer", None)
        half = parameter.has_master or parameter.rounds
        if not isinstance(regularizer, cls) or not half:
            return gradient
        weights = parameter.read(Whole())
        with tf.GradientTape() as tape:
            tape.watch(weights)
            penalty = regularizer.regularizer(weights)
        if numerics.row_sparse(gradient):  # every row is penalized
            gradient = rows.densify(gradient, parameter.rows)
        added = tape.gradient(penalty, weights)
        return gradient + (added if scale is None else tf.cast(scale, added.dtype) * added)
