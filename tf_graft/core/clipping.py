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
        factors = [_factor(numerics.norm([v]), clipnorm) for v in values]
        return [numerics.scaled(g, factor) for g, factor in zip(gradients, factors, strict=True)]
    if global_clipnorm is not None:
        factor = _factor(numerics.norm(values), global_clipnorm)
        return [numerics.scaled(gradient, factor) for gradient in gradients]
    return list(gradients)


def _factor(norm: tf.Tensor, largest: float) -> tf.Tensor:
    return largest / tf.maximum(norm, largest)
