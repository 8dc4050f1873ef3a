"""The data of one update, on its way from the gradients to the variables."""

from typing import NamedTuple

import tensorflow as tf

from tf_graft.core.state.parameters import Parameter
from tf_graft.core.tensors import numerics
from tf_graft.core.types import Gradient, Rates


class Update(NamedTuple):
    """Gradients on their way to the variables.

    Args:
        gradients: times `scale`; each row once.
        parameters: the variables that they are for.
        scale: what the gradients are still to be divided by; None for nothing.
        rates: the learning rates by role.
        finite: whether it can be applied; None where that is not judged.
        square: the sum of the squares of its gradients, where that was needed; otherwise None.
    """

    gradients: list[Gradient]
    parameters: list[Parameter]
    scale: tf.Tensor | float | None
    rates: Rates
    finite: tf.Tensor | None = None
    square: tf.Tensor | None = None

    def increment(self) -> tf.Tensor:
        """By how much the update moves a counter: 1 if it is applied, 0 if it is skipped, int64."""
        one = tf.constant(1, tf.int64)
        return one if self.finite is None else tf.cast(self.finite, tf.int64)

    def unscaled(self) -> list[Gradient]:
        """The gradients, divided by the scale."""
        return [numerics.divided(gradient, self.scale) for gradient in self.gradients]
