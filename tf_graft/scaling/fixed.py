"""A loss scale that never changes."""

import keras
import tensorflow as tf

from tf_graft.scaling.scaler import LossScaler, State, factor


@keras.saving.register_keras_serializable(package="tf_graft")
class FixedScaler(LossScaler):
    """The same scale at every step.

    ```
    scale = loss_scale
    ```

    Differs from OpenSeq2Seq's static scale: an int is a number too, and steps whose gradients
    overflow can be skipped as with any other scaler, while there they reached the weights.

    Args:
        loss_scale: the scale, above 0, in [2^-126, 2^126]. Default 1.0.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range, named.

    Example:
        >>> scaler = FixedScaler(128)
        >>> float(scaler.scale({})), scaler.update({}, tf.constant(False), tf.constant(0.0))
        (128.0, {})

    Reference:
        Micikevicius et al., 2018, "Mixed precision training", section 3.2; OpenSeq2Seq's
        `loss_scaling` as a number. NVIDIA's apex calls it a static loss scale.
    """

    def __init__(self, loss_scale: float = 1.0):
        self.loss_scale = factor(type(self).__name__, "loss_scale", loss_scale)

    def scale(self, s: State) -> tf.Tensor:
        return tf.constant(self.loss_scale, tf.float32)

    def update(self, s: State, finite: tf.Tensor, amax: tf.Tensor) -> State:
        return {}
