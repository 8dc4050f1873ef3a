"""Clips the gradient of each row: whole gradients, aggregated, coalesced and unscaled."""

from collections.abc import Sequence

import tensorflow as tf

from tf_graft.core.arguments import multipliers
from tf_graft.core.arguments.row_clips import CowClip, Limits
from tf_graft.core.pipeline.update import Update
from tf_graft.core.state import write
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.tensors import numerics, rows
from tf_graft.core.types import Gradient


def counts_ids(limits: Limits | None, path: str) -> bool:
    """Returns whether the limit of a variable's rows needs to know how often a batch has them."""
    return isinstance(multipliers.of(limits, path), CowClip)


def occurrences(
    limits: Limits | None,
    given: Sequence[Gradient],
    once: Sequence[Gradient],
    parameters: Sequence[Parameter],
) -> list[tf.Tensor | None]:
    """Returns how often each row occurs, of the variables for which that counts; otherwise None.

    Args:
        limits: the limits by pattern.
        given: gradients with repeated rows.
        once: the same gradients with each row once, or dense.
        parameters: the variables.
    """
    if not limits:
        return [None] * len(parameters)
    each = zip(given, once, parameters, strict=True)
    return [
        rows.occurrences(p.path, g, p.rows, u, p.layout) if counts_ids(limits, p.path) else None
        for g, u, p in each
    ]


def clipped(update: Update, limits: Limits) -> Update:
    """Clips each row of the gradients of the variables that have a limit."""
    gradients = update.unscaled()
    each = zip(gradients, update.parameters, update.times, strict=True)
    clipped = [_clipped(g, p, n, limits) for g, p, n in each]
    return update._replace(gradients=clipped, scale=None, norm=None)


def _clipped(
    gradient: Gradient, parameter: Parameter, times: tf.Tensor | None, limits: Limits
) -> Gradient:
    limit = multipliers.of(limits, parameter.path)
    if limit is None:
        return gradient
    g = numerics.values(gradient)
    norms, largest = _norms(g), limit
    if isinstance(limit, CowClip):
        of_weights = _norms(parameter.read(write.part_of(gradient, parameter.rows)))
        times = tf.cast(numerics.of_rows(times, g), g.dtype)
        times = tf.maximum(times, 1)  # a MasterRegularizer moves rows of no batch, too
        largest = limit.largest(of_weights, times)
    return numerics.like(gradient, numerics.limited(g, norms, largest))


def _norms(x: tf.Tensor) -> tf.Tensor:
    """Returns the length of each row, of shape [k, 1, ...], though its square overflows."""
    within_row = list(range(1, x.shape.rank))
    norms = numerics.norms(x, within_row)
    peaks = tf.reduce_max(tf.abs(x), within_row, keepdims=True)
    of_large = peaks * numerics.norms(tf.math.divide_no_nan(x, peaks), within_row)
    return tf.where(tf.math.is_finite(norms), norms, of_large)
