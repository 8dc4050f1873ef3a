"""A learning rate that rises and falls in triangles."""

import math

import keras
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.schedules.schedule import Schedule, precise, progress, remaining

MODES = ("triangular", "triangular2", "exp_range")


@keras.saving.register_keras_serializable(package="tf_graft")
class Cyclical(Schedule):
    """Rises from `base_lr` to `max_lr` and falls back, in a straight line, again and again.

        length = step_size_up + step_size_down
        cycle = floor(t / length);  s = t - cycle * length
        height = min(s / step_size_up, (length - s) / step_size_down, 1)
        rate(t) = base_lr + (max_lr - base_lr) * height * scale

    `scale` is 1 in the mode "triangular", 2^-cycle in "triangular2" (each triangle is half as high
    as the one before), and gamma^t in "exp_range". Override `scale` for another scale.

    Args:
        base_lr: The lowest learning rate, in [0, max_lr].
        max_lr: The highest learning rate, at least 0.
        step_size_up: The steps in which the rate rises, at least 1.
        step_size_down: The steps in which the rate falls, at least 1. Default: None, the same as
            `step_size_up`.
        mode: "triangular", "triangular2" or "exp_range". Default: "triangular".
        gamma: The factor of each step in the mode "exp_range", in (0, 1]. Default: 1.

    Raises:
        TypeError: If an argument is not of its type.
        ValueError: If an argument lies outside its range, or `gamma` is given in another mode.

    Example:
        >>> schedule = Cyclical(1.0, 3.0, step_size_up=2, mode="triangular2")
        >>> [float(schedule(step)) for step in range(8)]
        [1.0, 2.0, 3.0, 2.0, 1.0, 1.5, 2.0, 1.5]

    Reference:
        Smith, Cyclical Learning Rates for Training Neural Networks, arXiv:1506.01186, section 3.
    """

    def __init__(
        self,
        base_lr: float,
        max_lr: float,
        step_size_up: int,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
    ):
        owner = type(self).__name__
        self.max_lr = checks.number(owner, "max_lr", max_lr, low=0)
        self.base_lr = checks.number(
            owner, "base_lr", base_lr, low=0, high=self.max_lr, float64=True
        )
        self.step_size_up = checks.integer(owner, "step_size_up", step_size_up, low=1)
        self.step_size_down = checks.integer(
            owner, "step_size_down", step_size_down, low=1, optional=True
        )
        self.mode = checks.choice(owner, "mode", mode, MODES)
        self.gamma = checks.number(
            owner, "gamma", gamma, low=0, high=1, open_low=True, float64=True
        )
        if self.gamma != 1 and mode != "exp_range":
            raise ValueError(
                f"{owner}(gamma={self.gamma}): gamma acts only in the mode 'exp_range', and the "
                f"mode is {mode!r}."
            )

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the rate on the triangle that contains `t`."""
        return self.base_lr + (self.max_lr - self.base_lr) * self.height(t)

    def height(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the height in the triangle times its scale: 0 at `base_lr`, 1 at `max_lr`."""
        up, down = self.step_size_up, self.step_size_down or self.step_size_up
        cycle = t // (up + down)
        s = t - cycle * (up + down)
        return tf.minimum(progress(s, 0, up), remaining(s, up, down)) * self.scale(t, cycle)

    def scale(self, t: tf.Tensor, cycle: tf.Tensor) -> tf.Tensor:
        """Returns the factor on the height at step `t`; the first cycle is 0."""
        if self.mode == "triangular2":
            return 2.0 ** -precise(cycle)
        # By the logarithm, because float32 would round gamma before raising it to a power.
        return tf.exp(precise(t) * math.log(self.gamma))
