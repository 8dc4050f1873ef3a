"""Exponential decay of the learning rate."""

import math

import keras
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.schedules.schedule import Schedule, precise, ratio


@keras.saving.register_keras_serializable(package="tf_graft")
class ExpDecay(Schedule):
    """Decays by a factor of `decay_rate` every `decay_steps` steps, smoothly or in stairs.

        p = max(t - begin_decay_at, 0) / decay_steps      (rounded down if `staircase`)
        rate(t) = max(min_lr, learning_rate * decay_rate^p)

    Differences from OpenSeq2Seq's `exp_decay`:
        * `staircase` is its `use_staircase_decay`, and defaults to False as in Keras.
        * `decay_steps=0` is refused; there it gave NaN, which `min_lr` replaced.
        * `min_lr` above `learning_rate` is refused; there it silently replaced the rate.
        * `decay_rate` above 1 is refused; there the rate grew without bound.

    Args:
        learning_rate: The learning rate before the decay, at least 0.
        decay_steps: Steps for one factor of `decay_rate`, at least 1.
        decay_rate: The factor, in (0, 1].
        staircase: Whether the rate drops only once every `decay_steps` steps. Default: False.
        begin_decay_at: Steps before the decay starts, at least 0. Default: 0.
        min_lr: The rate never falls below this, in [0, learning_rate]. Default: 0.

    Raises:
        TypeError: If an argument is not of its type.
        ValueError: If an argument lies outside its range.

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
        learning_rate: float,
        decay_steps: int,
        decay_rate: float,
        staircase: bool = False,
        begin_decay_at: int = 0,
        min_lr: float = 0.0,
    ):
        owner = type(self).__name__
        rate = checks.number(owner, "learning_rate", learning_rate, low=0)
        self.learning_rate = rate
        self.decay_steps = checks.integer(owner, "decay_steps", decay_steps, low=1)
        self.decay_rate = checks.number(
            owner, "decay_rate", decay_rate, low=0, high=1, open_low=True, float64=True
        )
        self.staircase = checks.boolean(owner, "staircase", staircase)
        self.begin_decay_at = checks.integer(owner, "begin_decay_at", begin_decay_at, low=0)
        self.min_lr = checks.number(owner, "min_lr", min_lr, low=0, high=rate, float64=True)

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the decayed rate."""
        steps = tf.maximum(t - self.begin_decay_at, 0)
        p = precise(steps // self.decay_steps) if self.staircase else ratio(steps, self.decay_steps)
        # By the logarithm, because float32 would round decay_rate before raising it to a power.
        decayed = self.learning_rate * tf.exp(p * math.log(self.decay_rate))
        return tf.maximum(decayed, self.min_lr)
