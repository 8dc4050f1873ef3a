"""The three ways of clipping, on whole gradients: aggregated, coalesced and unscaled."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_graft.core import checks, keras_contract
from tf_graft.core.pipeline import matching
from tf_graft.core.pipeline.update import Update
from tf_graft.core.tensors import numerics, rows


def clipped(
    update: Update,
    clipvalue: float | None,
    clipnorm: float | None,
    global_clipnorm: float | None,
) -> Update:
    """Clips an update's gradients in at most one way; to a global norm only when they are used.

    Args:
        update: the update; its gradients are dense, or row-sparse with each row once.
        clipvalue: the largest magnitude of an entry.
        clipnorm: the largest L2 norm of a gradient.
        global_clipnorm: the largest L2 norm of all gradients together.
    """
    gradients = update.unscaled()
    values = [numerics.values(gradient) for gradient in gradients]
    excess = None
    if global_clipnorm is not None:
        norm = numerics.norm(values) if update.norm is None else update.norm
        excess = _excess(norm, global_clipnorm)
    else:
        values = [clipped_alone(v, clipvalue, clipnorm) for v in values]
        gradients = [numerics.like(g, v) for g, v in zip(gradients, values, strict=True)]
    return update._replace(gradients=gradients, scale=excess)


def clipped_alone(g: tf.Tensor, clipvalue: float | None, clipnorm: float | None) -> tf.Tensor:
    """Clips one gradient by its entries or its norm; at most one of the limits is not None."""
    if clipvalue is not None:
        return tf.clip_by_value(g, -clipvalue, clipvalue)
    return g if clipnorm is None else g / _excess(numerics.norm([g]), clipnorm)


def clip_by_global_norm(
    gradients: Sequence[Any], clip_norm: float
) -> tuple[list[Any], tf.Tensor | None]:
    """Clips gradients to an L2 norm over all entries together, and returns them and their norm.

    ```
    g <- g * clip_norm * min(1 / norm, 1 / clip_norm)
    ```

    Computation is in float32 at least; results have the dtype of each gradient. Differences from
    OpenSeq2Seq's: repeated rows are summed first, scalars stay scalars, None stays None. If the
    norm is infinite or NaN, every entry becomes NaN, as in TensorFlow.

    Args:
        gradients: a list of floating point tensors of any shape, `tf.IndexedSlices` or None.
        clip_norm: the largest norm, above 0.

    Returns:
        The clipped gradients, row-sparse ones with each row once and None for None, and their norm
        before clipping: a float32 scalar (float64 if a gradient is), or None if there is no
        gradient.

    Raises:
        TypeError: `gradients` is no list; a gradient is not floating point; `clip_norm` is no
            number.
        ValueError: `clip_norm` is not above 0; XLA compiles a row-sparse gradient without a
            constant `dense_shape`.

    Example:
        >>> (g, missing), norm = clip_by_global_norm([tf.constant([3.0, 4.0]), None], 2.5)
        >>> g.numpy().tolist(), missing, float(norm)
        ([1.5, 2.0], None, 5.0)
    """
    largest = checks.number("clip_by_global_norm", "clip_norm", clip_norm, 0, open_low=True)
    assert largest is not None  # for the type checker: the argument is not optional here
    given = _listed(gradients)
    dtypes = [None if g is None else numerics.values(g).dtype for g in given]
    precise = [
        None if g is None else _once(numerics.cast(g, numerics.compute_dtype(dtype)), _rows_of(raw))
        for g, raw, dtype in zip(given, gradients, dtypes, strict=True)
    ]
    present = [numerics.values(g) for g in precise if g is not None]
    if not present:
        return precise, None
    norm = numerics.norm(present)
    excess = _excess(norm, largest)
    return [
        None if g is None else numerics.cast(numerics.divided(g, excess), dtype)
        for g, dtype in zip(precise, dtypes, strict=True)
    ], norm


def _listed(gradients: Any) -> list[Any]:
    """Returns the gradients as tensors.

    Raises:
        TypeError: the argument is no list, or a gradient is not floating point.
    """
    given = checks.listed(
        "clip_by_global_norm(gradients={}): gradients must be a list of gradients; put a single "
        "one in a list.",
        gradients,
    )
    return [
        None if g is None else matching.as_gradient(f"clip_by_global_norm: gradient {number}", g)
        for number, g in enumerate(given)
    ]


def _once(gradient: Any, count: int) -> Any:
    return rows.as_slices(rows.coalesced(gradient, count, masked=False))


def _rows_of(gradient: Any) -> int:
    """Returns the number of rows of a row-sparse gradient's variable; needed in XLA only."""
    if not isinstance(gradient, tf.IndexedSlices) or not keras_contract.in_xla():
        return 0
    shape = gradient.dense_shape
    known = None if shape is None else tf.get_static_value(shape)
    if known is None:
        raise ValueError(
            "clip_by_global_norm: compiled by XLA, a row-sparse gradient must have a constant "
            "dense_shape; give it one: tf.IndexedSlices(values, indices, dense_shape)."
        )
    return int(known[0])


def _excess(norm: tf.Tensor, largest: float) -> tf.Tensor:
    """Returns the factor by which a gradient is too long: 1 if it is not, NaN if it is unknown."""
    excess = tf.maximum(numerics.quotient(norm, largest), 1)
    return tf.where(tf.math.is_finite(norm), excess, math.nan)
