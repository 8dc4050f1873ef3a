"""A warm-up before any schedule."""

import math
from collections.abc import Callable
from typing import Annotated

import keras
import tensorflow as tf

from tf_graft.core.arguments.checked import Checked
from tf_graft.core.arguments.declared import Flag, Fraction
from tf_graft.core.checks import choice, number
from tf_graft.core.types import TensorLike
from tf_graft.schedules import composed
from tf_graft.schedules.schedule import Steps, as_step, precise, ramp

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
        schedule: any `LearningRateSchedule`, or a number for a constant rate.
        steps: length of the warm-up in steps; 0 for none.
        shape: "linear", "quadratic", "cosine" or "exponential".
        start: the factor at step 0; above 0 for "exponential".
        shift: whether the schedule counts its steps from the end of the warm-up.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; a schedule whose rate
            at step 0 is out of range.

    Example:
        >>> schedule = Warmup(8.0, steps=4)
        >>> [float(schedule(step)) for step in range(6)]
        [0.0, 2.0, 4.0, 6.0, 8.0, 8.0]

    Reference:
        Goyal et al., Accurate, Large Minibatch SGD, arXiv:1706.02677, section 2.2.
    """

    def __init__(
        self,
        schedule: composed.Given,
        steps: Steps,
        shape: Annotated[str, Checked(choice, tuple(SHAPES))] = "linear",
        start: Fraction = 0.0,
        shift: Flag = True,
    ):
        super().__init__()
        number(type(self).__name__, "start", start, 0, 1, open_low=shape == "exponential")

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
