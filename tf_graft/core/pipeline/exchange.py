"""Sums gradients over replicas."""

from collections.abc import Sequence

import tensorflow as tf

from tf_graft.core.pipeline.update import Update
from tf_graft.core.places import replicas
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.types import Gradient


class Exchange:
    """Sums gradients over the replicas, so that all replicas make the same update.

    Every method is called in each replica's context, on all replicas.

    Attributes:
        alike: whether all replicas make the same update, so that they can divide its work.
    """

    alike = True

    def begin(self) -> None:
        """Called first, before any gradient is read."""

    def aggregate(
        self, gradients: Sequence[Gradient], parameters: Sequence[Parameter]
    ) -> list[Gradient]:
        """Returns the gradients to use, from those that this replica was given."""
        return replicas.summed(gradients, [p.rows for p in parameters])

    def agreed(self, condition: tf.Tensor) -> tf.Tensor:
        """Returns whether a condition on the gradients holds on all replicas."""
        return condition  # the gradients are the same

    def received(self, update: Update) -> None:
        """Called with each update once it is judged, before accumulation and clipping."""

    def meet(self, update: Update) -> None:
        """Called after each update, whether it was applied or skipped."""
