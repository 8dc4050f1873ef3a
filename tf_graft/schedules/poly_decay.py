"""Polynomial decay of the learning rate."""

import keras
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.schedules.schedule import Schedule, ramp, remaining


@keras.saving.register_keras_serializable(package="tf_graft")
class PolyDecay(Schedule):
    """Falls from `learning_rate` to `min_lr` as a power of the remaining time.

        begin = max(begin_decay_at, warmup_steps)
        x = clip((t - begin) / decay_steps, 0, 1)
        rate(t) = min(t / warmup_steps, 1) * (min_lr + (learning_rate - min_lr) * (1 - x)^power)

    `decay_steps` counts from `begin`, so the rate reaches `min_lr` at step `begin + decay_steps`.
    The warm-up rises from 0, so its first update changes nothing.

    Differences from OpenSeq2Seq's `poly_decay`:
        * The decay starts after the warm-up; there both ran at the same time unless
          `begin_decay_at` was given too.
        * `decay_steps=0` is refused; there every rate was NaN.
        * `min_lr` above `learning_rate` is refused; there the rate rose.
        * `power=0` is refused; there the rate never fell.

    Args:
        learning_rate: The highest learning rate, at least 0.
        decay_steps: Length of the decay in steps, at least 1.
        power: Exponent of the decay, above 0; 1 is a straight line. Default: 1.
        begin_decay_at: First step of the decay, at least 0. Default: 0.
        min_lr: The rate at the end of the decay, in [0, learning_rate]. Default: 0.
        warmup_steps: Length of the linear warm-up in steps, at least 0. Default: 0, none.

    Raises:
        TypeError: If an argument is not of its type.
        ValueError: If an argument lies outside its range.

    Example:
        Two steps up, four steps down:

        >>> schedule = PolyDecay(1.0, decay_steps=4, warmup_steps=2)
        >>> [float(schedule(step)) for step in range(7)]
        [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0]

    Reference:
        OpenSeq2Seq, `lr_policies.poly_decay` (arXiv:1805.10387).
    """

    def __init__(
        self,
        learning_rate: float,
        decay_steps: int,
        power: float = 1.0,
        begin_decay_at: int = 0,
        min_lr: float = 0.0,
        warmup_steps: int = 0,
    ):
        owner = type(self).__name__
        rate = checks.number(owner, "learning_rate", learning_rate, low=0)
        self.learning_rate = rate
        self.decay_steps = checks.integer(owner, "decay_steps", decay_steps, low=1)
        self.power = checks.number(owner, "power", power, low=0, open_low=True, float64=True)
        self.begin_decay_at = checks.integer(owner, "begin_decay_at", begin_decay_at, low=0)
        self.min_lr = checks.number(owner, "min_lr", min_lr, low=0, high=rate, float64=True)
        self.warmup_steps = checks.integer(owner, "warmup_steps", warmup_steps, low=0)

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the rate after warm-up and decay."""
        left = remaining(t, max(self.begin_decay_at, self.warmup_steps), self.decay_steps)
        decayed = self.min_lr + (self.learning_rate - self.min_lr) * left**self.power
        return ramp(t, self.warmup_steps) * decayed
