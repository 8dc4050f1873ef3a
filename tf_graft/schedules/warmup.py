"""A warm-up before any schedule."""

import math
from collections.abc import Callable

import keras
import tensorflow as tf
from keras.optimizers.schedules import LearningRateSchedule

from tf_graft.core import checks
from tf_graft.core.types import TensorLike
from tf_graft.schedules import composed
from tf_graft.schedules.schedule import as_step, precise, ramp

# Each maps the time x, in [0, 1], and the factor at x = 0 to the factor at x.
SHAPES: dict[str, Callable[[tf.Tensor, float], tf.Tensor]] = {
    "linear": lambda x, start: start + (1.0 - start) * x,
    "quadratic": lambda x, start: start + (1.0 - start) * x**2,
    "cosine": lambda x, start: start + (1.0 - start) * 0.5 * (1.0 - tf.cos(math.pi * x)),
    "exponential": lambda x, start: start ** (1.0 - x),
}


@keras.saving.register_keras_serializable(package="tf_graft")
class Warmup(composed.Composed):
    """Rises to the first rate of another schedule, then follows that schedule.

        x = min(t / steps, 1);  f = start + (1 - start) * shape(x)
        rate(t) = f * schedule(max(t - steps, 0))        if `shift`
        rate(t) = f * schedule(max(t, steps))            otherwise

    shape(x) is x, x^2 or (1 - cos(pi x)) / 2; "exponential" is f = start^(1 - x), which grows by
    the same factor at every step. The rate is continuous at the end of the warm-up, and a decay
    starts only then. With `shift`, as in Keras' `CosineDecay`, the schedule begins at its step 0
    after the warm-up and keeps its full length. Without `shift`, its first `steps` steps are
    skipped, and it ends at its own last step. With `start=0` the first update changes nothing.

    Args:
        schedule: Any `LearningRateSchedule`, or a number for a constant rate.
        steps: Length of the warm-up in steps, at least 0; 0 for no warm-up.
        shape: "linear", "quadratic", "cosine" or "exponential". Default: "linear".
        start: The factor at step 0, in [0, 1]; above 0 for "exponential". Default: 0.
        shift: Whether the schedule counts its steps from the end of the warm-up. Default: True.

    Raises:
        TypeError: If an argument is not of its type.
        ValueError: If an argument, or the schedule's rate at step 0, lies outside its range.

    Example:
        >>> schedule = Warmup(8.0, steps=4)
        >>> [float(schedule(step)) for step in range(6)]
        [0.0, 2.0, 4.0, 6.0, 8.0, 8.0]

    Reference:
        Goyal et al., Accurate, Large Minibatch SGD, arXiv:1706.02677, section 2.2.
    """

    def __init__(
        self,
        schedule: LearningRateSchedule | float,
        steps: int,
        shape: str = "linear",
        start: float = 0.0,
        shift: bool = True,
    ):
        owner = type(self).__name__
        self.schedule = composed.schedule(owner, "schedule", schedule)
        self.steps = checks.integer(owner, "steps", steps, low=0)
        self.shape = checks.choice(owner, "shape", shape, list(SHAPES))
        self.start = checks.number(
            owner, "start", start, low=0, high=1, open_low=shape == "exponential"
        )
        self.shift = checks.boolean(owner, "shift", shift)

    def __call__(self, step: TensorLike) -> tf.Tensor:
        """Returns the rate at `step`: float32, of the shape of `step`.

        The schedule is called with an int64 step, or a float64 one if `step` is a float.
        """
        step = as_step(step)
        inner = tf.maximum(step, self.steps) - (self.steps if self.shift else 0)
        return tf.cast(self.factor(step) * precise(self.schedule(inner)), tf.float32)

    def factor(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the factor on the schedule's rate at step `t`: 1 from `steps` on."""
        return SHAPES[self.shape](ramp(t, self.steps), self.start)
