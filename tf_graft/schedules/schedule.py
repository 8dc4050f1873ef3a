"""The base class of schedules, and the arithmetic on steps that they share."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, TypeAlias, TypeVar

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.core.arguments.checked import Checked
from tf_graft.core.arguments.holder import Holder
from tf_graft.core.places import tpus
from tf_graft.core.types import TensorLike


def as_step(step: TensorLike) -> tf.Tensor:
    """Returns `step` as an int64 tensor, or float64 for a float; exact up to 2^53 steps.

    Raises:
        TypeError: `step` is not a number.
        ValueError: `step` is negative, NaN, or above 2^53. The value of a variable or of a symbolic
            tensor is not checked.
    """
    if not isinstance(step, tf.Variable | keras.Variable):
        _refuse_no_step(step)
    tensor = _tensor(step)
    return tf.cast(tensor, tf.float64 if tensor.dtype.is_floating else tf.int64)


def _tensor(step: TensorLike) -> tf.Tensor:
    """Converts a step; a number of Python's loses no bits."""
    exact = {int: tf.int64, float: tf.float64}
    return tf.convert_to_tensor(step, exact.get(type(step)))


def _refuse_no_step(step: TensorLike) -> None:
    try:
        tensor = _tensor(step)
    except (TypeError, ValueError, OverflowError):
        tensor = None
    if tensor is None or not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        raise TypeError(f"schedule(step={checks.shown(step)}): step must be a number of updates.")
    known = tf.get_static_value(tf.cast(tensor, tf.float64) if tensor.dtype.is_floating else tensor)
    if known is not None and not np.all((known >= 0) & (known <= checks.MOST_WHOLE)):
        raise ValueError(f"schedule(step={checks.shown(step)}): step must lie in [0, 2^53].")


def precise(x: TensorLike) -> tf.Tensor:
    """Casts a number of steps, or a rate, to the dtype in which rates are computed."""
    return tf.cast(x, tf.float32 if tpus.tracing() else tf.float64)


def ratio(t: tf.Tensor, steps: int) -> tf.Tensor:
    """Returns `t / steps`, rounded only once, after the division."""
    whole = t // steps
    return precise(whole) + precise(t - whole * steps) / steps


def ramp(t: tf.Tensor, steps: int) -> tf.Tensor:
    """Rises linearly from 0 at step 0 to 1 at `steps`, then stays; always 1 if `steps` is 0."""
    return precise(tf.minimum(t, steps)) / steps if steps else precise(tf.ones_like(t))


def progress(t: tf.Tensor, begin: int, steps: int) -> tf.Tensor:
    """Returns the completed share, in [0, 1], of a decay over `steps` steps from `begin` on."""
    return precise(tf.clip_by_value(t - begin, 0, steps)) / steps


def remaining(t: tf.Tensor, begin: int, steps: int) -> tf.Tensor:
    """Returns `1 - progress`, computed without the rounding error of that subtraction."""
    return precise(tf.clip_by_value(begin + steps - t, 0, steps)) / steps


Number = TypeVar("Number", int, float)

# Each rises from 0 at x = 0 to 1 at x = 1, and f(x) + f(1 - x) = 1.
CURVES: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "cosine": lambda x: tf.sin(0.5 * math.pi * x) ** 2,  # (1 - cos(pi x)) / 2
    "linear": lambda x: x,
}


def through(
    t: tf.Tensor, steps: Sequence[int], values: Sequence[float], curve: str = "linear"
) -> tf.Tensor:
    """Returns each of `values` at its step, and follows a curve of `CURVES` between two steps."""
    f = CURVES[curve]
    result = values[0] * precise(tf.ones_like(t))
    for i, (begin, end) in enumerate(itertools.pairwise(steps)):
        done, left = progress(t, begin, end - begin), remaining(t, begin, end - begin)
        piece = values[i] * f(left) + values[i + 1] * f(done)  # precise at both ends
        result = tf.where(t > begin, piece, result)
    return result


def numbers(
    owner: str, name: str, values: object, check: Callable[[str, str, object, int], Number]
) -> list[Number]:
    """Returns a list of numbers, each checked by a function of `checks` and at least 0."""
    listed = checks.listed(f"{owner}({name}={{}}): {name} must be a list of numbers.", values)
    return [check(owner, f"{name}[{i}]", value, 0) for i, value in enumerate(listed)]


def milestones(owner: str, name: str, values: object) -> list[int]:
    """Returns a list of steps that increase from above 0."""
    steps = numbers(owner, name, values, checks.integer)
    if any(b <= a for a, b in itertools.pairwise([0, *steps])):
        raise ValueError(f"{owner}({name}={steps}): {name} must increase from above 0.")
    return steps


Steps: TypeAlias = Annotated[int, Checked(checks.integer, 0)]
Milestones: TypeAlias = Annotated[Sequence[int], Checked(milestones)]
Rates: TypeAlias = Annotated[Sequence[float], Checked(numbers, checks.number)]
Factor: TypeAlias = Annotated[float, Checked(checks.number, 0, 1, open_low=True, float64=True)]
Power: TypeAlias = Annotated[float, Checked(checks.number, 0, open_low=True, float64=True)]
AnyPower: TypeAlias = Annotated[float, Checked(checks.number, float64=True)]
UpToRate: TypeAlias = Annotated[float, Checked(checks.number, 0, "learning_rate", float64=True)]
UpperLimit: TypeAlias = Annotated[
    float | None, Checked(checks.number, 0, open_low=True, optional=True)
]
Curve: TypeAlias = Annotated[str, Checked(checks.choice, tuple(CURVES))]


class Schedule(Holder, keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate as a function of the step, returned as float32.

    Steps are compared as integers. The learning rate is computed in float64. A TPU only emulates
    float64, so it computes in float32: a learning rate that fell by four decades has an error of
    1e-6 there.
    """

    def __call__(self, step: TensorLike) -> tf.Tensor:
        """Returns the rate at `step`, in float32 and of the shape of `step`.

        `step` is the number of updates done before this one: an int, a NumPy number or array, a
        tensor, a `tf.Variable` or a `keras.Variable`.
        """
        return tf.cast(self.rate(as_step(step)), tf.float32)

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the rate at step `t`, an int64 tensor, or float64 if the step is a float."""
        raise NotImplementedError(f"{type(self).__name__} must define rate(t).")
