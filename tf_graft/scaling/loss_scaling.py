"""Loss scaling in the pipeline: multiplies the loss by the scale, and updates the scaler."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_graft.core.arguments.options import OPTIONS
from tf_graft.core.checks import shown
from tf_graft.core.pipeline.scale import Scaling
from tf_graft.core.pipeline.update import Update
from tf_graft.core.places import replicas
from tf_graft.core.state import write
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.slots import Slot
from tf_graft.core.tensors import numerics
from tf_graft.core.types import Gradient, Scalar
from tf_graft.scaling.master_regularizer import MasterRegularizer
from tf_graft.scaling.scaler import LossScaler, State

FACTOR = OPTIONS["loss_scale_factor"]


class LossScaling(Scaling):
    """Multiplies the loss by a scaler's scale, and updates the scaler before gradients are clipped.

    Args:
        scaler: decides on the scale.
        variables: the scaler's state, by role.
    """

    def __init__(self, scaler: LossScaler, variables: Mapping[str, keras.Variable]):
        super().__init__()
        self._scaler, self._variables = scaler, variables

    def scale(self) -> tf.Tensor:
        """Returns the current scale, a float32 scalar."""
        return self._scaler.scale(self._present())

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns the loss times the scale, in float32 at least."""
        loss = tf.convert_to_tensor(loss)
        loss = tf.cast(loss, numerics.compute_dtype(loss.dtype))
        return loss * tf.cast(self.scale(), loss.dtype)

    def divisor(self) -> Scalar | None:
        """Returns the scale; None if it is always 1."""
        scale = self.scale()
        return None if not self._variables and tf.get_static_value(scale) == 1 else scale

    def penalized(
        self, gradients: list[Gradient], parameters: Sequence[Parameter], scale: Scalar | None
    ) -> list[Gradient]:
        """Adds the gradients of the regularizers, computed on float32 masters, to the gradients."""
        both = zip(gradients, parameters, strict=True)
        return [MasterRegularizer.added(g, p, scale) for g, p in both]

    def judged(self, update: Update) -> None:
        """Updates the scaler's state after the gradients have been checked for overflow."""
        amax = tf.zeros([])
        if self._scaler.needs_amax:
            values = map(numerics.values, update.gradients)
            peaks = [tf.cast(numerics.peak(value), tf.float32) for value in values]
            amax = numerics.divided(tf.reduce_max(tf.stack(peaks)), update.scale)
        finite = tf.constant(True) if update.finite is None else update.finite
        for role, value in self._scaler.update(self._present(), finite, amax).items():
            write.put(self._variables[role], value)

    def _present(self) -> State:
        return {
            role: tf.convert_to_tensor(replicas.local(variable))
            for role, variable in self._variables.items()
        }


def variables_of(
    scaler: LossScaler, add_scalar: Callable[[str, Slot], keras.Variable]
) -> dict[str, keras.Variable]:
    """Creates the variables of a scaler's state, by role.

    Args:
        scaler: declares its slots.
        add_scalar: creates a variable of the optimizer.
    """
    return {r: add_scalar(f"loss_scale/{r}", slot) for r, slot in scaler.slots().items()}


class ScaledOnce:
    """The `loss_scale_factor` of an optimizer whose `scaler` may already scale the loss."""

    def __get__(self, optimizer: Any, cls: type | None = None) -> Any:
        if optimizer is None:
            return self
        scaler = vars(optimizer).get("scaler")
        return FACTOR.kept_by(optimizer) if scaler is None else scaler

    def __set__(self, optimizer: Any, value: Any) -> None:
        if vars(optimizer).get("scaler") is None:
            FACTOR.__set__(optimizer, value)
            return
        refuse_factor(type(optimizer).__name__, value)
        raise ValueError(
            f"{type(optimizer).__name__}: it scales the loss itself and must be the outermost "
            "optimizer; do not put it into a LossScaleOptimizer."
        )


def refuse_factor(owner: str, factor: object) -> None:
    """Refuses a `loss_scale_factor` in addition to a scaler.

    Raises:
        ValueError: both are given, so the loss would be scaled twice.
    """
    if factor is not None:
        short = shown(factor, lambda x: f"{x:g}" if isinstance(x, float) else repr(x))
        raise ValueError(
            f"{owner}(loss_scale_factor={short}): the loss would be scaled twice; give loss_scale "
            "only."
        )
