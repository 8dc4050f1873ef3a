"""Inverse polynomial decay of the learning rate."""

import math
from typing import Annotated

import keras
import tensorflow as tf

from tf_graft.core.arguments.checked import Checked
from tf_graft.core.arguments.declared import AboveZero, Count
from tf_graft.core.checks import number
from tf_graft.schedules.schedule import Power, Schedule, Steps, precise, progress, ramp, remaining


@keras.saving.register_keras_serializable(package="tf_graft")
class InvPolyDecay(Schedule):
    """Falls from `learning_rate` to `min_lr`, as the inverse of a power of the step.

        begin = max(begin_decay_at, warmup_steps)
        x = clip((t - begin) / decay_steps, 0, 1)
        s = (learning_rate / min_lr)^(1 / power) - 1
        rate(t) = min(t / warmup_steps, 1) * learning_rate / (1 + s * x)^power

    `decay_steps` counts from `begin`. The warm-up rises from 0: its first update changes nothing.

    Differences from OpenSeq2Seq's `inv_poly_decay`:
        * `begin_decay_at` and `warmup_steps` work as in `PolyDecay`; there they were ignored.
        * The rate stays at `min_lr` after `decay_steps`; there it kept falling.
        * `min_lr=0` is refused; there 1e-8 replaced it, so the rate fell by seven decades in one
          step.
        * `min_lr` above `learning_rate` is refused; there the rate was constant.

    Args:
        learning_rate: the highest learning rate.
        decay_steps: length of the decay in steps.
        min_lr: the rate at the end of the decay.
        power: exponent of the decay.
        begin_decay_at: first step of the decay.
        warmup_steps: length of the linear warm-up in steps; 0 for none.

    Example:
        60 over 1, 2, 3, 4, 5, then constant:

        >>> schedule = InvPolyDecay(60.0, decay_steps=4, min_lr=12.0)
        >>> [round(float(schedule(step)), 4) for step in range(6)]
        [60.0, 30.0, 20.0, 15.0, 12.0, 12.0]

    Reference:
        OpenSeq2Seq, `lr_policies.inv_poly_decay` (arXiv:1805.10387).
    """

    def __init__(
        self,
        learning_rate: AboveZero,
        decay_steps: Count,
        min_lr: Annotated[float, Checked(number, 0, "learning_rate", open_low=True, float64=True)],
        power: Power = 1.0,
        begin_decay_at: Steps = 0,
        warmup_steps: Steps = 0,
    ):
        super().__init__()

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the rate after warm-up and decay."""
        begin = max(self.begin_decay_at, self.warmup_steps)
        done = progress(t, begin, self.decay_steps)
        left = remaining(t, begin, self.decay_steps)
        # Counted from the end, in logarithms, because s itself overflows for small powers.
        fall = math.log(self.min_lr) - math.log(self.learning_rate)
        base = math.exp(fall / self.power)
        if base < 0.5:  # the form that float32 represents precisely, near 0 or near 1
            logarithm = tf.math.log(done + base * left)
        else:
            logarithm = tf.math.log1p(math.expm1(fall / self.power) * left)
        highest = precise(self.learning_rate)
        falling = tf.minimum(self.min_lr * tf.exp(-self.power * logarithm), highest)
        decayed = tf.where(done > 0, falling, highest)
        return ramp(t, self.warmup_steps) * decayed
