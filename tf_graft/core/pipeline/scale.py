"""Multiplies a loss by its scale, and divides the gradients by it."""

from collections.abc import Sequence

import tensorflow as tf

from tf_graft.core.pipeline.update import Update
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.types import Gradient, Scalar


class Scaling:
    """A fixed factor.

    Args:
        factor: what the loss is multiplied by; None for nothing.
    """

    def __init__(self, factor: float | None = None):
        self.factor = factor

    def scale(self) -> Scalar | None:
        """What `scale_loss` multiplies by; None for nothing."""
        return self.factor

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        """The loss times the scale."""
        return loss if self.factor is None else loss * self.factor

    def divisor(self) -> Scalar | None:
        """What gradients are divided by; None for nothing."""
        return self.scale()

    def penalized(
        self, gradients: list[Gradient], parameters: Sequence[Parameter], scale: Scalar | None
    ) -> list[Gradient]:
        """The gradients, times `scale`, with those of penalties that the loss leaves out."""
        return gradients

    def judged(self, update: Update) -> None:
        """Called with each update before it is applied or skipped; `finite` says which."""
