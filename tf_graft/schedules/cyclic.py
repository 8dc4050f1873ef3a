"""Cyclical learning rates: up and down again, many times."""

import keras
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.schedules.schedule import Schedule, precise

MODES = ("triangular", "triangular2", "exp_range")


@keras.saving.register_keras_serializable(package="tf_graft")
class Cyclic(Schedule):
    """Rises from `learning_rate` to `max_learning_rate` and falls back, in straight lines, forever.

        rate(t) = learning_rate + (max_learning_rate - learning_rate) * height(t) * factor(t)

        triangular:    factor = 1
        triangular2:   factor = 1/2 in the second cycle, 1/4 in the third, ...
        exp_range:     factor = gamma^t

    `height` rises from 0 to 1 in `step_size_up` steps and falls to 0 in `step_size_down`.

    Args:
        learning_rate: The lowest rate, at least 0.
        max_learning_rate: The highest rate, at least `learning_rate`.
        step_size_up: Steps from the lowest to the highest rate, at least 1. Default: 2000.
        step_size_down: Steps back, at least 1. Default: None, as many as up.
        mode: `"triangular"`, `"triangular2"` or `"exp_range"`. Default: `"triangular"`.
        gamma: The factor from step to step of `exp_range`, in (0, 1]. Default: 1.

    Raises:
        TypeError: If an argument is not of its type.
        ValueError: If an argument lies outside its range.

    Example:
        >>> schedule = Cyclic(0.0, 1.0, step_size_up=2, mode="triangular2")
        >>> [float(schedule(step)) for step in range(8)]
        [0.0, 0.5, 1.0, 0.5, 0.0, 0.25, 0.5, 0.25]

    Reference:
        Smith, 2017, "Cyclical learning rates for training neural networks" (arXiv:1506.01186).
    """

    def __init__(
        self,
        learning_rate: float,
        max_learning_rate: float,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
    ):
        owner = type(self).__name__
        low = checks.number(owner, "learning_rate", learning_rate, low=0)
        self.learning_rate = low
        self.max_learning_rate = checks.number(
            owner, "max_learning_rate", max_learning_rate, low=low
        )
        self.step_size_up = checks.integer(owner, "step_size_up", step_size_up, low=1)
        self.step_size_down = checks.integer(
            owner, "step_size_down", step_size_down, low=1, optional=True
        )
        self.mode = checks.choice(owner, "mode", mode, MODES)
        self.gamma = checks.number(
            owner, "gamma", gamma, low=0, high=1, open_low=True, float64=True
        )

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the rate at this step of its cycle."""
        up = self.step_size_up
        down = up if self.step_size_down is None else self.step_size_down
        step, length = precise(t), up + down
        cycle = tf.floor(step / length)
        place = step - cycle * length
        height = tf.where(place <= up, place / up, (length - place) / down)
        if self.mode == "triangular2":
            height *= tf.pow(tf.constant(0.5, step.dtype), cycle)
        elif self.mode == "exp_range":
            height *= tf.pow(tf.constant(self.gamma, step.dtype), step)
        return self.learning_rate + (self.max_learning_rate - self.learning_rate) * height
