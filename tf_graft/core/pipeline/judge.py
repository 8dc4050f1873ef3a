"""Decides whether an update can be made; no other module judges gradients and learning rates."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_graft.core import keras_contract
from tf_graft.core.arguments.options import Options
from tf_graft.core.pipeline.update import Update
from tf_graft.core.tensors import numerics
from tf_graft.core.types import Scalar


class Clips(NamedTuple):
    """How gradients of any size will be clipped.

    Args:
        by_value: the largest magnitude of an entry.
        by_norm: the largest norm of a gradient.
        by_global_norm: the largest norm of all gradients together.
        room: so many times what they are clipped by is finite, too, as their sums must be.
    """

    by_value: float | None
    by_norm: float | None
    by_global_norm: float | None
    room: float = 1.0


def judged(update: Update, options: Options, where: str) -> tuple[Update, list[tf.Operation]]:
    """Returns the update with a verdict, by which it may be skipped, or assertions that may raise.

    Args:
        update: the update as received.
        options: say whether to skip, raise or apply, and how gradients will be clipped.
        where: class and method, for the message of an assertion.
    """
    if applies(options.nonfinite):
        return update, []
    values = [numerics.values(gradient) for gradient in update.gradients]
    clips = _clips(options)
    if clips and options.global_clipnorm is not None and update.scale is None:
        norm = numerics.norm(values)
        update = update._replace(norm=norm)  # which clipping needs, too
        gradients_serve = tf.math.is_finite(norm * clips.room)
    else:
        gradients_serve = in_range(values, update.scale, clips)
    rates_serve = tf.reduce_all([_serves(rate) for rate in update.rates.values()])
    if skips(options.nonfinite):
        return update._replace(finite=gradients_serve & rates_serve), []
    if keras_contract.in_xla():
        raise ValueError(
            f"{where.partition('.')[0]}(nonfinite='raise'): compiled by XLA nothing can be raised; "
            "use 'skip'."
        )
    messages = {
        "a gradient is not finite, or too large to be squared": gradients_serve,
        "a learning rate, or another value in time, is negative or not finite": rates_serve,
    }
    said = {f"{where}: {what}; nothing was changed.": ok for what, ok in messages.items()}
    return update, _assertions(said)


def obstacle(update: Update, options: Options) -> str:
    """Returns why an update was skipped, as a clause; it names the first variable if it can."""
    for gradient, parameter in zip(update.gradients, update.parameters, strict=True):
        if not in_range([numerics.values(gradient)], update.scale, _clips(options)):
            return f"the gradient of '{parameter.path}' is not finite, or too large"
    if not all(_serves(rate) for rate in update.rates.values()):
        return "a learning rate is negative or not finite"
    return "the gradients are not finite, or too large"


def _clips(options: Options) -> Clips | None:
    """Returns how gradients will be clipped, if then their size does not matter."""
    if not any(clip is not None and clip <= LARGEST_CLIP for clip in options.clips):
        return None
    steps = options.gradient_accumulation_steps
    return Clips(*options.clips, room=2.0 * steps if steps else 1.0)


def _assertions(messages: dict[str, tf.Tensor]) -> list[tf.Operation]:
    """Returns operations that raise a message unless its condition holds; eagerly, raises it."""
    if not tf.executing_eagerly():
        return [tf.debugging.Assert(holds, [message]) for message, holds in messages.items()]
    for message, holds in messages.items():
        if not holds:
            raise tf.errors.InvalidArgumentError(None, None, message)
    return []


def skips(nonfinite: str) -> bool:
    """Returns whether an update that cannot be made is skipped."""
    return nonfinite == "skip"


def applies(nonfinite: str) -> bool:
    """Returns whether such an update is applied, so that state may contain infinities and NaN."""
    return nonfinite == "apply"


def in_range(
    tensors: Sequence[tf.Tensor],
    divisor: Scalar | None = None,
    clips: Clips | None = None,
) -> tf.Tensor:
    """Returns whether gradients can be applied, a boolean scalar: their sum of squares is in range.

    The check costs one pass over the gradients. The sum of the squares of all entries, each divided
    by `divisor`, must be at most `_largest_square`. An infinite or NaN entry makes the sum infinite
    or NaN, which is out of range. Of gradients that will be clipped, only what they are clipped by
    must be finite: each entry, or a norm.

    Args:
        tensors: the values of the gradients.
        divisor: the loss scale, by which the gradients will be divided; None for none.
        clips: how the gradients will be clipped; None if their size matters.
    """
    fits = numerics.divided(numerics.divided(_share(tensors), divisor), divisor) <= 1
    if divisor is None and clips is None:
        return fits

    def exactly() -> tf.Tensor:
        quotients = [numerics.divided(x, divisor) for x in tensors]
        return _share(quotients) <= 1 if clips is None else _can_be_clipped(quotients, clips)

    return tf.cond(fits, lambda: tf.constant(True), exactly)


def _can_be_clipped(tensors: Sequence[tf.Tensor], clips: Clips) -> tf.Tensor:
    """Returns whether what gradients are clipped by is finite, of such as overflow when squared."""
    if clips.by_value is not None:
        found = [tf.reduce_all(tf.math.is_finite(x * clips.room)) for x in tensors]
    else:
        groups = [[x] for x in tensors] if clips.by_global_norm is None else [tensors]
        norms = [numerics.norm_of_large(group) for group in groups]
        found = [tf.math.is_finite(norm * clips.room) for norm in norms]
    return tf.reduce_all(found)


def _share(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the sum of squares as a share of the largest allowed, a float32 scalar."""
    shares = []
    for dtype in dict.fromkeys(x.dtype for x in tensors):
        total = numerics.square([x for x in tensors if x.dtype == dtype])
        shares.append(tf.cast(total * (1 / _largest_square(dtype)), tf.float32))
    return tf.add_n(shares)


def _largest_square(dtype: tf.DType) -> float:
    """Returns 2^102 in float32, 2^969 in float64: sums of such numbers never overflow.

    A sum stops growing when it is 2^(digits + 1) times the number that is added, and that multiple
    is finite.
    """
    info = np.finfo(dtype.as_numpy_dtype)
    return 2.0 ** (int(info.maxexp) - int(info.nmant) - 3)


# 2^30 entries that are clipped to this or less, each or by their norm, together stay in range.
LARGEST_CLIP = 2.0**36


def _serves(rate: Scalar) -> tf.Tensor:
    rate = tf.cast(tf.convert_to_tensor(rate), tf.float32)
    return (rate >= 0) & (rate < math.inf)
