"""The three ways of clipping, on whole gradients: aggregated, coalesced and unscaled."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_graft.core import numerics


def clipped(
    gradients: Sequence[Any],
    clipvalue: float | None,
    clipnorm: float | None,
    global_clipnorm: float | None,
) -> list[Any]:
    """The gradients, clipped in at most one way; without any, as they are.

    Args:
        gradients: dense or row-sparse, each row once.
        clipvalue: the largest magnitude of an entry.
        clipnorm: the largest L2 norm of a gradient.
        global_clipnorm: the largest L2 norm of all gradients together.
    """
    values = [numerics.values(gradient) for gradient in gradients]
    if clipvalue is not None:
        bounded = [tf.clip_by_value(v, -clipvalue, clipvalue) for v in values]
        return [numerics.like(g, v) for g, v in zip(gradients, bounded, strict=True)]
    if clipnorm is not None:
        return [
            numerics.divided(g, _excess(numerics.norm([v]), clipnorm))
            for g, v in zip(gradients, values, strict=True)
        ]
    if global_clipnorm is not None:
        excess = _excess(numerics.norm(values), global_clipnorm)
        return [numerics.divided(gradient, excess) for gradient in gradients]
    return list(gradients)


def _excess(norm: tf.Tensor, largest: float) -> tf.Tensor:
    """How many times too long a gradient is; 1 where it is not."""
    return tf.maximum(numerics.quotient(norm, largest), 1)
