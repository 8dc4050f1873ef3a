"""A warm-up, a constant learning rate, and a short decay."""

from collections.abc import Callable

import keras
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.schedules.schedule import CURVES, Schedule, progress, ramp, remaining

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
        learning_rate: The learning rate between warm-up and decay, at least 0.
        total_steps: The step at which the decay ends; warm-up and decay are included.
        decay_steps: Length of the decay in steps, at least 1.
        warmup_steps: Length of the linear warm-up in steps, at least 0. Default: 0, none.
        min_lr: The rate at the end of the decay, in [0, learning_rate]. Default: 0.
        shape: "linear", "cosine" or "sqrt". Default: "linear".

    Raises:
        TypeError: If an argument is not of its type.
        ValueError: If an argument lies outside its range, or warm-up and decay are longer than
            `total_steps`.

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
        learning_rate: float,
        total_steps: int,
        decay_steps: int,
        warmup_steps: int = 0,
        min_lr: float = 0.0,
        shape: str = "linear",
    ):
        owner = type(self).__name__
        rate = checks.number(owner, "learning_rate", learning_rate, low=0)
        self.learning_rate = rate
        self.total_steps = checks.integer(owner, "total_steps", total_steps, low=1)
        self.decay_steps = checks.integer(owner, "decay_steps", decay_steps, low=1)
        self.warmup_steps = checks.integer(owner, "warmup_steps", warmup_steps, low=0)
        self.min_lr = checks.number(owner, "min_lr", min_lr, low=0, high=rate, float64=True)
        self.shape = checks.choice(owner, "shape", shape, list(SHAPES))
        if self.warmup_steps + self.decay_steps > self.total_steps:
            raise ValueError(
                f"{owner}(total_steps={self.total_steps}, warmup_steps={self.warmup_steps}, "
                f"decay_steps={self.decay_steps}): total_steps must be at least "
                "warmup_steps + decay_steps."
            )

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the rate after warm-up and decay."""
        begin = self.total_steps - self.decay_steps
        done, left = (share(t, begin, self.decay_steps) for share in (progress, remaining))
        height = SHAPES[self.shape](done, left)
        decayed = self.min_lr + (self.learning_rate - self.min_lr) * height
        return ramp(t, self.warmup_steps) * decayed
