"""What all loss scalers share: pure functions from one state to the next, and bounds of a scale."""

import inspect
from typing import Any, Self

import tensorflow as tf

from tf_graft.core import checks
from tf_graft.core.slots import Slot

State = dict[str, tf.Tensor]  # by role, a scalar each

# Between these, in float32, a scale and its reciprocal are both normal numbers.
SCALES = SMALLEST, LARGEST = 2.0**-126, 2.0**126


class LossScaler:
    """When to change the factor that the loss is multiplied by. It holds no variable.

    A scaler says what is to be remembered (`slots`), which scale a state means (`scale`) and which
    state comes after an update (`update`); whoever uses it keeps the state. Subclasses keep each
    constructor argument in an attribute of the same name; what such an attribute is set to later
    is checked as the constructor does.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, checks.as_constructed(self, name, value))

    needs_amax = False  # whether `update` looks at `amax`, which costs a pass over all gradients

    def slots(self) -> dict[str, Slot]:
        """What is remembered: scalars, by role; `"scale"` where the scale moves."""
        return {}

    def scale(self, s: State) -> tf.Tensor:
        """The scale in use now, a float32 scalar."""
        return s["scale"]

    def update(self, s: State, finite: tf.Tensor, amax: tf.Tensor) -> State:
        """The state after an update of the weights, made or skipped. Pure: reads no variable.

        Args:
            s: the state by role, a scalar each.
            finite: whether all gradients were finite, a boolean scalar.
            amax: the largest magnitude in the unscaled gradients, a float32 scalar. It does not
                matter where `finite` is False, or where `needs_amax` is.
        """
        raise NotImplementedError(f"{type(self).__name__} must define update(s, finite, amax).")

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments as plain Python values."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The scaler whose `get_config` this is."""
        return cls(**config)


def bounds(owner: str, scale_min: Any, scale_max: Any) -> tuple[float, float]:
    """`scale_min` and `scale_max`, checked."""
    low, high = factor(owner, "scale_min", scale_min), factor(owner, "scale_max", scale_max)
    if low > high:
        raise ValueError(
            f"{owner}(scale_min={scale_min}, scale_max={scale_max}): scale_min must not be above "
            "scale_max."
        )
    return low, high


def factor(owner: str, name: str, value: Any) -> float:
    """A scale: above zero, and neither it nor its reciprocal out of float32's normal range."""
    result = checks.number(owner, name, value, 0, open_low=True)
    if not SMALLEST <= result <= LARGEST:
        raise ValueError(f"{owner}({name}={value}): {name} must lie in [2^-126, 2^126].")
    return result
