"""Multiplies a loss by its scale, and divides the gradients by it."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_graft.core.pipeline.update import Update
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.types import Gradient, Scalar


class Scaling:
    """A fixed loss scale.

    Args:
        factor: returns the factor on the loss; None for none.
    """

    def __init__(self, factor: Callable[[], float | None] = lambda: None):
        self.factor = factor

    def scale(self) -> Scalar | None:
        """Returns the factor of `scale_loss`; None for none."""
        return self.factor()

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns the loss times the scale."""
        factor = self.factor()
        return loss if factor is None else loss * factor

    def divisor(self) -> Scalar | None:
        """Returns the divisor of gradients; None for none."""
        return self.scale()

    def penalized(
        self, gradients: list[Gradient], parameters: Sequence[Parameter], scale: Scalar | None
    ) -> list[Gradient]:
        """Returns gradients, times `scale`, plus those of penalties that the loss leaves out."""
        return gradients

    def judged(self, update: Update) -> None:
        """Called with each update before it is applied or skipped; its `finite` says which."""
