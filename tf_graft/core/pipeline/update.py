"""The data of one update, on its way from the gradients to the variables."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_graft.core.state.parameters import Parameter
from tf_graft.core.tensors import numerics
from tf_graft.core.types import Gradient, Rates


class Update(NamedTuple):
    """Gradients on their way to the variables.

    Args:
        gradients: the gradients, times `scale`, with each row once.
        parameters: the variables of the gradients.
        scale: the divisor that gradients still need; None for none.
        rates: the learning rates by role.
        finite: whether the update can be applied; None if that is not judged.
        norm: the L2 norm of all gradients together if it was needed; otherwise None.
        times: how often each row of a gradient occurred; None for each for which nobody asks.
    """

    gradients: list[Gradient]
    parameters: list[Parameter]
    scale: tf.Tensor | float | None
    rates: Rates
    finite: tf.Tensor | None = None
    norm: tf.Tensor | None = None
    times: Sequence[tf.Tensor | None] = ()

    def increment(self) -> tf.Tensor:
        """Returns the update's increment of a counter, int64: 1 if it is applied, 0 if skipped."""
        one = tf.constant(1, tf.int64)
        return one if self.finite is None else tf.cast(self.finite, tf.int64)

    def unscaled(self) -> list[Gradient]:
        """Returns the gradients, divided by the scale."""
        return [numerics.divided(gradient, self.scale) for gradient in self.gradients]
