"""Exponential decay of the learning rate."""

import math

import keras
import tensorflow as tf

from tf_graft.core.arguments.declared import AtLeastZero, Count, Flag
from tf_graft.schedules.schedule import Factor, Schedule, Steps, UpToRate, precise, ratio


@keras.saving.register_keras_serializable(package="tf_graft")
class ExpDecay(Schedule):
    """Decays by a factor of `decay_rate` every `decay_steps` steps, smoothly or in stairs.

        p = max(t - begin_decay_at, 0) / decay_steps      (rounded down if `staircase`)
        rate(t) = max(min_lr, learning_rate * decay_rate^p)

    Differences from OpenSeq2Seq's `exp_decay`:
        * `staircase` is its `use_staircase_decay`, and defaults to False as in Keras.
        * `decay_steps=0` is refused; there the rate fell to `min_lr` at once.
        * `min_lr` above `learning_rate` is refused; there it silently replaced the rate.
        * `decay_rate` above 1 is refused; there the rate grew without bound.

    Args:
        learning_rate: the learning rate before the decay.
        decay_steps: steps for one factor of `decay_rate`.
        decay_rate: the factor.
        staircase: whether the rate drops only once every `decay_steps` steps.
        begin_decay_at: steps before the decay starts.
        min_lr: the rate never falls below this.

    Example:
        Halved every 10 steps:

        >>> schedule = ExpDecay(8.0, decay_steps=10, decay_rate=0.5, staircase=True)
        >>> [float(schedule(step)) for step in (0, 9, 10, 20)]
        [8.0, 8.0, 4.0, 2.0]

    Reference:
        OpenSeq2Seq, `lr_policies.exp_decay` (arXiv:1805.10387).
    """

    def __init__(
        self,
        learning_rate: AtLeastZero,
        decay_steps: Count,
        decay_rate: Factor,
        staircase: Flag = False,
        begin_decay_at: Steps = 0,
        min_lr: UpToRate = 0.0,
    ):
        super().__init__()

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the decayed rate."""
        steps = tf.maximum(t - self.begin_decay_at, 0)
        p = precise(steps // self.decay_steps) if self.staircase else ratio(steps, self.decay_steps)
        # By the logarithm, because float32 would round decay_rate before raising it to a power.
        decayed = self.learning_rate * tf.exp(p * math.log(self.decay_rate))
        return tf.maximum(decayed, self.min_lr)
