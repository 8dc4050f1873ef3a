"""A loss scale that never changes."""

import keras
import tensorflow as tf

from tf_graft.scaling.scaler import LossScaler, Scale, State


@keras.saving.register_keras_serializable(package="tf_graft")
class FixedScaler(LossScaler):
    """The same scale at every step.

    ```
    scale = loss_scale
    ```

    Differences from OpenSeq2Seq's static scale: it may be an int, and steps with overflowing
    gradients can be skipped as with any other scaler; OpenSeq2Seq applied them to the weights.

    Args:
        loss_scale: the scale, above 0, in [2^-126, 2^126].

    Example:
        >>> scaler = FixedScaler(128)
        >>> float(scaler.scale({})), scaler.update({}, tf.constant(False), tf.constant(0.0))
        (128.0, {})

    Reference:
        Micikevicius et al., 2018, "Mixed precision training", section 3.2; OpenSeq2Seq's
        `loss_scaling` as a number. NVIDIA's apex calls it a static loss scale.
    """

    def __init__(self, loss_scale: Scale = 1.0):
        super().__init__()

    def scale(self, s: State) -> tf.Tensor:
        return tf.constant(self.loss_scale, tf.float32)

    def update(self, s: State, finite: tf.Tensor, amax: tf.Tensor) -> State:
        return {}
