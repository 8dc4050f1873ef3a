"""OpenSeq2Seq's learning-rate policies: same names, arguments, defaults, values and traps.

Use these functions for models that were tuned with them. For new models use the classes of
`tf_graft.schedules`, which have none of the traps.

`global_step` is the number of updates done before this one: an int, a NumPy number, a tensor or a
variable, in eager mode and in `tf.function`. Rates are float32 and are computed in float32. An
argument is checked only if OpenSeq2Seq checked it.

Reference: OpenSeq2Seq (arXiv:1805.10387), `optimizers/lr_policies.py` at commit 8681d381.
"""

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_graft.core.types import Scalar, TensorLike
from tf_graft.schedules.schedule import as_step, precise

__all__ = [
    "cosine_decay",
    "exp_decay",
    "fixed_lr",
    "inv_poly_decay",
    "piecewise_constant",
    "poly_decay",
    "transformer_policy",
]


def fixed_lr(global_step: TensorLike, learning_rate: Scalar) -> Scalar:
    """Returns `learning_rate` itself at every step.

    Trap: a Python float is returned unchanged, not as a tensor.

    Args:
        global_step: Ignored.
        learning_rate: The rate.

    Example:
        >>> fixed_lr(1000, 0.5)
        0.5
    """
    return learning_rate


def piecewise_constant(
    global_step: TensorLike,
    learning_rate: float,
    boundaries: Sequence[float],
    decay_rates: Sequence[float],
    steps_per_epoch: float | None = None,
) -> tf.Tensor:
    """Returns `learning_rate`, and `learning_rate * decay_rates[i]` after step `boundaries[i]`.

    Trap: at a boundary the rate is still that of the piece before it.
    Trap: fractions of epochs make float boundaries, which are refused with an integer step.
    Trap: without boundaries it raises an IndexError.
    Difference: unsorted boundaries are refused at every step; in OpenSeq2Seq at some steps only.

    Args:
        global_step: The step.
        learning_rate: The rate up to the first boundary.
        boundaries: Increasing steps, or epochs if `steps_per_epoch` is given.
        decay_rates: One multiple of `learning_rate` for each boundary.
        steps_per_epoch: Steps in an epoch. Default: None, `boundaries` are steps.

    Raises:
        ValueError: If the lists differ in length, or only one of step and boundaries is float.
        IndexError: If there are no boundaries.
        tf.errors.InvalidArgumentError: If the boundaries are not sorted.

    Example:
        >>> [float(piecewise_constant(step, 1.0, [3], [0.5])) for step in (3, 4)]
        [1.0, 0.5]
    """
    step = as_step(global_step)
    if steps_per_epoch is not None:
        boundaries = [steps_per_epoch * epoch for epoch in boundaries]
    _check_boundaries(boundaries, decay_rates, step)
    rates = [learning_rate * factor for factor in (1.0, *decay_rates)]
    passed = step[..., tf.newaxis] > tf.constant(boundaries, step.dtype)
    return tf.gather(tf.constant(rates, tf.float32), tf.math.count_nonzero(passed, axis=-1))


def exp_decay(
    global_step: TensorLike,
    learning_rate: Scalar,
    decay_steps: Scalar,
    decay_rate: Scalar,
    use_staircase_decay: bool,
    begin_decay_at: Scalar = 0,
    min_lr: Scalar = 0.0,
) -> tf.Tensor:
    """Returns `max(min_lr, learning_rate * decay_rate^p)`.

    p is `(step - begin_decay_at) / decay_steps`. Before `begin_decay_at` the rate is
    `max(min_lr, learning_rate)`.

    Trap: `min_lr` above `learning_rate` replaces it from step 0 on.
    Trap: `decay_steps=0` makes p infinite (NaN at `begin_decay_at`): with `decay_rate` below 1 the
    result is `min_lr`.

    Args:
        global_step: The step.
        learning_rate: The rate before the decay.
        decay_steps: Steps for one factor of `decay_rate`.
        decay_rate: The factor.
        use_staircase_decay: Whether p is rounded down.
        begin_decay_at: First step of the decay. Default: 0.
        min_lr: The lowest rate. Default: 0.

    Example:
        >>> float(exp_decay(4, 1.0, 2, 0.5, use_staircase_decay=False))
        0.25
    """
    step = as_step(global_step)
    learning_rate = tf.cast(learning_rate, tf.float32)
    min_lr = tf.cast(min_lr, tf.float32)
    since = _since(step, begin_decay_at)
    p = since / tf.cast(decay_steps, tf.float32)
    if use_staircase_decay:
        p = tf.floor(p)
    decayed = learning_rate * tf.pow(tf.cast(decay_rate, tf.float32), p)
    rate = tf.where(since < 0, learning_rate, decayed)
    # The result of tf.maximum for NaN depends on the order of the arguments and on the device.
    return tf.where(rate > min_lr, rate, min_lr)


def poly_decay(
    global_step: TensorLike,
    learning_rate: Scalar,
    decay_steps: Scalar,
    power: Scalar = 1.0,
    begin_decay_at: Scalar = 0,
    min_lr: Scalar = 0.0,
    warmup_steps: float = 0,
) -> tf.Tensor:
    """Returns `(warm - min_lr) * (1 - x)^power + min_lr`.

    x is `(step - begin_decay_at) / decay_steps`, at most 1; `warm` is `learning_rate`, times
    `step / warmup_steps` before `warmup_steps`. Before `begin_decay_at` the rate is `warm`.

    Trap: unless `begin_decay_at >= warmup_steps`, warm-up and decay run at the same time.
    Trap: `decay_steps=0` gives NaN; `min_lr` above `learning_rate` makes the rate rise.

    Args:
        global_step: The step.
        learning_rate: The highest rate.
        decay_steps: Length of the decay, counted from `begin_decay_at`.
        power: Exponent of the decay. Default: 1.
        begin_decay_at: First step of the decay. Default: 0.
        min_lr: The rate at the end of the decay. Default: 0.
        warmup_steps: Length of the linear warm-up. Default: 0, none.

    Example:
        >>> float(poly_decay(3, 1.0, 4))
        0.25
    """
    step = as_step(global_step)
    warm = _warmed_up(step, learning_rate, warmup_steps)
    min_lr = tf.cast(min_lr, tf.float32)
    since = _since(step, begin_decay_at)
    left = 1.0 - _progress(since, decay_steps)
    decayed = (warm - min_lr) * tf.pow(left, tf.cast(power, tf.float32)) + min_lr
    return tf.where(since < 0, warm, decayed)


def cosine_decay(
    global_step: TensorLike,
    learning_rate: Scalar,
    decay_steps: Scalar,
    power: Scalar = 1.0,
    begin_decay_at: Scalar = 0,
    min_lr: Scalar = 0.0,
    warmup_steps: float = 0,
) -> tf.Tensor:
    """Returns `warm * ((1 - min_lr) * (1 + cos(pi x)) / 2 + min_lr)`.

    `warm` and x are those of `poly_decay`.

    Trap: `min_lr` is a fraction of `learning_rate`, not a rate.
    Trap: `power` is ignored.
    Trap: unless `begin_decay_at >= warmup_steps`, warm-up and decay run at the same time.
    Trap: `decay_steps=0` gives NaN.

    Args:
        global_step: The step.
        learning_rate: The highest rate.
        decay_steps: Length of the decay, counted from `begin_decay_at`.
        power: Ignored.
        begin_decay_at: First step of the decay. Default: 0.
        min_lr: The rate at the end, as a fraction of `learning_rate`. Default: 0.
        warmup_steps: Length of the linear warm-up. Default: 0, none.

    Example:
        >>> [float(cosine_decay(step, 1.0, 4)) for step in (0, 4)]
        [1.0, 0.0]
    """
    step = as_step(global_step)
    warm = _warmed_up(step, learning_rate, warmup_steps)
    min_lr = tf.cast(min_lr, tf.float32)
    since = _since(step, begin_decay_at)
    wave = 0.5 * (1.0 + tf.cos(math.pi * _progress(since, decay_steps)))
    return tf.where(since < 0, warm, warm * ((1.0 - min_lr) * wave + min_lr))


def transformer_policy(
    global_step: TensorLike,
    learning_rate: Scalar,
    d_model: float,
    warmup_steps: Scalar,
    max_lr: Scalar | None = None,
    coefficient: Scalar = 1.0,
    dtype: tf.DType = tf.float32,
) -> tf.Tensor:
    """Returns `coefficient * learning_rate * d_model^-0.5 * min(n * warmup_steps^-1.5, n^-0.5)`.

    n is `global_step + 1`.

    Trap: `dtype=tf.float16` overflows and gives 0 from step 65520 on.
    Trap: `warmup_steps=0` leads to an infinity, and means no warm-up.

    Args:
        global_step: The step.
        learning_rate: A factor.
        d_model: Width of the model.
        warmup_steps: Length of the warm-up.
        max_lr: The upper limit of the rate. Default: None, no limit.
        coefficient: Another factor; OpenSeq2Seq advises 0.002 for Adam. Default: 1.
        dtype: The dtype of the arithmetic and of the rate. Default: float32.

    Example:
        >>> float(transformer_policy(3, 1.0, d_model=4, warmup_steps=4))
        0.25
    """
    n = tf.cast(as_step(global_step), dtype) + 1
    warmup_steps = tf.cast(warmup_steps, dtype)
    scale = coefficient * d_model**-0.5
    rate = scale * tf.minimum(n * warmup_steps**-1.5, n**-0.5) * learning_rate
    return rate if max_lr is None else tf.minimum(tf.cast(max_lr, dtype), rate)


def inv_poly_decay(
    global_step: TensorLike,
    learning_rate: float,
    decay_steps: float,
    min_lr: float,
    power: float = 1.0,
    begin_decay_at: float = 0,
    warmup_steps: float = 0,
) -> tf.Tensor:
    """Returns `learning_rate / (1 + s * step)^power`.

    s is chosen so that the rate is `min_lr` at step `decay_steps`.

    Trap: `begin_decay_at` and `warmup_steps` are ignored.
    Trap: the rate keeps falling below `min_lr` after `decay_steps`.
    Trap: `min_lr` is silently raised to 1e-8, or lowered to `learning_rate`.

    Args:
        global_step: The step.
        learning_rate: The rate at step 0.
        decay_steps: The step at which the rate is `min_lr`.
        min_lr: The rate at that step.
        power: Exponent of the decay, above 0. Default: 1.
        begin_decay_at: Ignored.
        warmup_steps: Ignored.

    Raises:
        ValueError: If `power` is not above 0.

    Example:
        >>> [round(float(inv_poly_decay(step, 1.0, 4, min_lr=0.2)), 4) for step in (1, 4, 9)]
        [0.5, 0.2, 0.1]
    """
    if power <= 0:
        raise ValueError(f"inv_poly_decay(power={power}): power must be above 0.")
    end = min(max(min_lr, 1e-8), learning_rate)
    s = ((learning_rate / end) ** (1.0 / power) - 1.0) / decay_steps
    step = tf.cast(as_step(global_step), tf.float32)
    return learning_rate / tf.pow(1.0 + s * step, power)


def _check_boundaries(
    boundaries: Sequence[float], decay_rates: Sequence[float], step: tf.Tensor
) -> None:
    where = f"piecewise_constant(boundaries={boundaries}, decay_rates={decay_rates})"
    if len(boundaries) != len(decay_rates):
        raise ValueError(f"{where}: there must be one decay rate for each boundary.")
    if not boundaries:
        raise IndexError(f"{where}: there must be at least one boundary.")
    if (np.asarray(boundaries).dtype.kind == "f") != step.dtype.is_floating:
        kind = "floats" if step.dtype.is_floating else "whole numbers"
        raise ValueError(f"{where}: boundaries in steps must be {kind}, as the step is.")
    if list(boundaries) != sorted(boundaries):
        raise tf.errors.InvalidArgumentError(None, None, f"{where}: boundaries must increase.")


def _warmed_up(step: tf.Tensor, learning_rate: Scalar, warmup_steps: float) -> tf.Tensor:
    learning_rate = tf.cast(learning_rate, tf.float32)
    if warmup_steps <= 0:
        return learning_rate
    rising = learning_rate * tf.cast(step, tf.float32) / tf.cast(warmup_steps, tf.float32)
    return tf.where(_since(step, warmup_steps) < 0, rising, learning_rate)


def _progress(since: tf.Tensor, decay_steps: Scalar) -> tf.Tensor:
    decay_steps = tf.cast(decay_steps, tf.float32)
    return tf.minimum(since, decay_steps) / decay_steps


def _since(step: tf.Tensor, begin: Scalar) -> tf.Tensor:
    """Returns the steps since one that need not be whole."""
    whole = not isinstance(begin, float) and not (tf.is_tensor(begin) and begin.dtype.is_floating)
    return tf.cast((step if whole else precise(step)) - begin, tf.float32)
