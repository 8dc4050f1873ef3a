"""Polynomial decay of the learning rate."""

import keras
import tensorflow as tf

from tf_graft.core.arguments.declared import AtLeastZero, Count
from tf_graft.schedules.schedule import Power, Schedule, Steps, UpToRate, ramp, remaining


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
        learning_rate: the highest learning rate.
        decay_steps: length of the decay in steps.
        power: exponent of the decay; 1 is a straight line.
        begin_decay_at: first step of the decay.
        min_lr: the rate at the end of the decay.
        warmup_steps: length of the linear warm-up in steps; 0 for none.

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
        learning_rate: AtLeastZero,
        decay_steps: Count,
        power: Power = 1.0,
        begin_decay_at: Steps = 0,
        min_lr: UpToRate = 0.0,
        warmup_steps: Steps = 0,
    ):
        super().__init__()

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the rate after warm-up and decay."""
        left = remaining(t, max(self.begin_decay_at, self.warmup_steps), self.decay_steps)
        decayed = self.min_lr + (self.learning_rate - self.min_lr) * left**self.power
        return ramp(t, self.warmup_steps) * decayed
