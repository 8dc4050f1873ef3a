"""The base class of loss scalers, and the checks of their arguments."""

from typing import Annotated, Self, TypeAlias

import tensorflow as tf

from tf_graft.core import checks
from tf_graft.core.arguments.checked import Checked
from tf_graft.core.arguments.holder import Holder
from tf_graft.core.state.slots import Slot
from tf_graft.core.types import Config

State: TypeAlias = dict[str, tf.Tensor]  # scalars by role

# Within these bounds a scale and its reciprocal are both normal numbers in float32.
SCALES = SMALLEST, LARGEST = 2.0**-126, 2.0**126


def factor(owner: str, name: str, value: object) -> float:
    """Checks a scale: it and its reciprocal must lie in float32's normal range. Returns it."""
    result = checks.number(owner, name, value, 0, open_low=True)
    if not SMALLEST <= result <= LARGEST:
        raise ValueError(f"{owner}({name}={value}): {name} must lie in [2^-126, 2^126].")
    return result


Scale: TypeAlias = Annotated[float, Checked(factor)]


class LossScaler(Holder):
    """The base class of loss scalers, which choose the factor on the loss; it holds no variable.

    A scaler declares its state in `slots`, computes the scale from a state in `scale`, and the next
    state in `update`. The caller stores the state.
    """

    needs_amax = False  # whether `update` uses `amax`, which costs a pass over all gradients

    def slots(self) -> dict[str, Slot]:
        """Returns the slots of the state, scalars by role; a scale that changes is `"scale"`."""
        return {}

    def scale(self, s: State) -> tf.Tensor:
        """Returns the current scale, a float32 scalar."""
        return s["scale"]

    def update(self, s: State, finite: tf.Tensor, amax: tf.Tensor) -> State:
        """Returns the state after an update, whether it was applied or skipped. Reads no variable.

        Args:
            s: the state, scalars by role.
            finite: whether all gradients were finite, a boolean scalar.
            amax: the largest magnitude in the unscaled gradients, a float32 scalar. It is arbitrary
                if `finite` or `needs_amax` is False.
        """
        raise NotImplementedError(f"{type(self).__name__} must define update(s, finite, amax).")

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Makes a scaler from the result of `get_config`."""
        return cls(**config)


def refuse_crossed(owner: str, scale_min: float, scale_max: float) -> None:
    """Refuses a least scale above the largest."""
    if scale_min > scale_max:
        raise ValueError(
            f"{owner}(scale_min={scale_min}, scale_max={scale_max}): scale_min must not be above "
            "scale_max."
        )
