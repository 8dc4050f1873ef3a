"""A warm-up, a constant learning rate, and a short decay."""

from collections.abc import Callable
from typing import Annotated

import keras
import tensorflow as tf

from tf_graft.core.arguments.checked import Checked
from tf_graft.core.arguments.declared import AtLeastZero, Count
from tf_graft.core.checks import choice
from tf_graft.schedules.schedule import CURVES, Schedule, Steps, UpToRate, progress, ramp, remaining

# Each maps the done and the remaining share of the decay to the share of the height that is left.
SHAPES: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "linear": lambda done, left: left,
    "cosine": lambda done, left: CURVES["cosine"](left),
    "sqrt": lambda done, left: left / (1.0 + tf.sqrt(done)),  # 1 - sqrt(done)
}


@keras.saving.register_keras_serializable(package="tf_graft")
class WarmupStableDecay(Schedule):
    """Rises, stays at `learning_rate`, and falls to `min_lr` only in the last steps (WSD).

        begin = total_steps - decay_steps;  x = clip((t - begin) / decay_steps, 0, 1)
        rate(t) = min(t / warmup_steps, 1) * (min_lr + (learning_rate - min_lr) * shape(x))

    shape(x) is 1 - x, (1 + cos(pi x)) / 2 or 1 - sqrt(x). Before the decay, the learning rate does
    not depend on the length of the run. From a checkpoint of that time you can train on at the
    constant rate, or start the decay. The warm-up rises from 0, so its first update changes
    nothing.

    Args:
        learning_rate: the learning rate between warm-up and decay.
        total_steps: the step at which the decay ends; warm-up and decay are included.
        decay_steps: length of the decay in steps.
        warmup_steps: length of the linear warm-up in steps; 0 for none.
        min_lr: the rate at the end of the decay.
        shape: "linear", "cosine" or "sqrt".

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; a warm-up and a decay
            that are together longer than `total_steps`.

    Example:
        >>> schedule = WarmupStableDecay(4.0, total_steps=8, decay_steps=4, warmup_steps=2)
        >>> [float(schedule(step)) for step in range(9)]
        [0.0, 2.0, 4.0, 4.0, 4.0, 3.0, 2.0, 1.0, 0.0]

    Reference:
        Hu et al., MiniCPM, arXiv:2404.06395, section 4; the shape "sqrt": Hägele et al., Scaling
        Laws and Compute-Optimal Training Beyond Fixed Training Durations, arXiv:2405.18392.
    """

    def __init__(
        self,
        learning_rate: AtLeastZero,
        total_steps: Count,
        decay_steps: Count,
        warmup_steps: Steps = 0,
        min_lr: UpToRate = 0.0,
        shape: Annotated[str, Checked(choice, tuple(SHAPES))] = "linear",
    ):
        super().__init__()
        if self.warmup_steps + self.decay_steps > self.total_steps:
            raise ValueError(
                f"{type(self).__name__}(total_steps={self.total_steps}, "
                f"warmup_steps={self.warmup_steps}, decay_steps={self.decay_steps}): total_steps "
                "must be at least warmup_steps + decay_steps."
            )

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the rate after warm-up and decay."""
        begin = self.total_steps - self.decay_steps
        done, left = (share(t, begin, self.decay_steps) for share in (progress, remaining))
        height = SHAPES[self.shape](done, left)
        decayed = self.min_lr + (self.learning_rate - self.min_lr) * height
        return ramp(t, self.warmup_steps) * decayed
