"""A constant learning rate."""

import keras
import tensorflow as tf

from tf_graft.core.arguments.declared import AtLeastZero
from tf_graft.schedules.schedule import Schedule, precise


@keras.saving.register_keras_serializable(package="tf_graft")
class FixedLR(Schedule):
    """The same rate at every step.

        rate(t) = learning_rate

    This schedule returns a float32 tensor; OpenSeq2Seq's `fixed_lr` returns the Python float.

    Args:
        learning_rate: the learning rate.

    Example:
        >>> float(FixedLR(0.5)(1000))
        0.5

    Reference:
        OpenSeq2Seq, `lr_policies.fixed_lr` (arXiv:1805.10387).
    """

    def __init__(self, learning_rate: AtLeastZero):
        super().__init__()

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the constant rate."""
        return self.learning_rate * precise(tf.ones_like(t))
