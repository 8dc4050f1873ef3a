"""A learning rate that rises and falls in triangles."""

import math
from typing import Annotated

import keras
import tensorflow as tf

from tf_graft.core.arguments.checked import Checked
from tf_graft.core.arguments.declared import AtLeastZero, Count, OptionalCount
from tf_graft.core.checks import choice, number
from tf_graft.schedules.schedule import Factor, Schedule, precise, progress, remaining

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
        base_lr: the lowest learning rate.
        max_lr: the highest learning rate.
        step_size_up: the steps in which the rate rises.
        step_size_down: the steps in which the rate falls; None for as many as `step_size_up`.
        mode: "triangular", "triangular2" or "exp_range".
        gamma: the factor of each step in the mode "exp_range".

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; a `gamma` in another
            mode.

    Example:
        >>> schedule = Cyclical(1.0, 3.0, step_size_up=2, mode="triangular2")
        >>> [float(schedule(step)) for step in range(8)]
        [1.0, 2.0, 3.0, 2.0, 1.0, 1.5, 2.0, 1.5]

    Reference:
        Smith, Cyclical Learning Rates for Training Neural Networks, arXiv:1506.01186, section 3.
    """

    def __init__(
        self,
        base_lr: Annotated[float, Checked(number, 0, "max_lr", float64=True)],
        max_lr: AtLeastZero,
        step_size_up: Count,
        step_size_down: OptionalCount = None,
        mode: Annotated[str, Checked(choice, MODES)] = "triangular",
        gamma: Factor = 1.0,
    ):
        super().__init__()
        if self.gamma != 1 and mode != "exp_range":
            raise ValueError(
                f"{type(self).__name__}(gamma={self.gamma}): gamma acts only in the mode "
                f"'exp_range', and the mode is {mode!r}."
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
