"""A power of the step, alone or with a straight line to zero at the end."""

import keras
import tensorflow as tf

from tf_graft.core.arguments.declared import AtLeastZero, Count, Fraction
from tf_graft.schedules.schedule import AnyPower, Schedule, Steps, UpperLimit, precise, remaining


@keras.saving.register_keras_serializable(package="tf_graft")
class PowerDecay(Schedule):
    """Follows a power of the step: with the default `power=-0.5`, the inverse square root.

        n = max(t - offset, 1)
        rate(t) = min(learning_rate * n^power, max_lr)         (max_lr while t <= offset)

    Without `max_lr` the rate is `learning_rate` up to step `offset + 1`. This class is both
    `DirectPowerDecay` and `PowerDecayWithOffset` of the Model Garden; `max_lr` is the latter's
    `pre_offset_learning_rate`, whose default gave a learning rate of 1e6 at step 0.

    Args:
        learning_rate: the learning rate at n = 1.
        power: the exponent; the rate falls if it is below 0.
        offset: the steps before the power begins.
        max_lr: the rate up to `offset`, and an upper limit after it; None for neither.

    Example:
        >>> schedule = PowerDecay(8.0, power=-1, offset=2, max_lr=4.0)
        >>> [float(schedule(step)) for step in (0, 2, 3, 4, 6, 10)]
        [4.0, 4.0, 4.0, 4.0, 2.0, 1.0]

    Reference:
        TensorFlow Model Garden, `official/modeling/optimization/lr_schedule.py`.
    """

    def __init__(
        self,
        learning_rate: AtLeastZero,
        power: AnyPower = -0.5,
        offset: Steps = 0,
        max_lr: UpperLimit = None,
    ):
        super().__init__()

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the power of the step, limited to `max_lr`."""
        rate = powered(self.learning_rate, t, self.offset, self.power)
        if self.max_lr is None:
            return rate
        return tf.where(t > self.offset, tf.minimum(rate, self.max_lr), precise(self.max_lr))


@keras.saving.register_keras_serializable(package="tf_graft")
class PowerLinearDecay(Schedule):
    """Follows a power of the step, multiplied by a straight line to 0 at the end.

        n = t - offset;  line = linear_fraction * decay_steps
        rate(t) = learning_rate * max(n, 1)^power * clip((decay_steps - n) / line, 0, 1)

    `line` is rounded to whole steps. This class is `PowerAndLinearDecay` of the Model Garden;
    `decay_steps` is its `total_decay_steps`.

    Args:
        learning_rate: the learning rate at n = 1.
        decay_steps: the steps from `offset` until the rate is 0.
        power: the exponent; the rate falls if it is below 0.
        linear_fraction: the share of `decay_steps` in which the line falls; 0 for no line.
        offset: the steps before the power begins.

    Example:
        >>> schedule = PowerLinearDecay(8.0, decay_steps=8, power=-1, linear_fraction=0.5)
        >>> [round(float(schedule(step)), 3) for step in (0, 1, 2, 4, 6, 8, 9)]
        [8.0, 8.0, 4.0, 2.0, 0.667, 0.0, 0.0]

    Reference:
        TensorFlow Model Garden, `official/modeling/optimization/lr_schedule.py`.
    """

    def __init__(
        self,
        learning_rate: AtLeastZero,
        decay_steps: Count,
        power: AnyPower = -0.5,
        linear_fraction: Fraction = 0.1,
        offset: Steps = 0,
    ):
        super().__init__()

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the power of the step times the line."""
        rate = powered(self.learning_rate, t, self.offset, self.power)
        line = round(self.linear_fraction * self.decay_steps)
        if not line:
            return rate
        return rate * remaining(t, self.offset + self.decay_steps - line, line)


def powered(rate: float, t: tf.Tensor, offset: int, power: float) -> tf.Tensor:
    """Returns `rate * max(t - offset, 1)^power`."""
    return rate * precise(tf.maximum(t - offset, 1)) ** power
