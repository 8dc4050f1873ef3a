"""How the averages of the weights are made; `use_ema` takes one of these in place of True."""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.core.arguments.plain import Plain, configured
from tf_graft.core.checks import shown

ALWAYS = checks.MOST_WHOLE  # more updates than any training makes


class Averages(Plain):
    """Says which share of an average an update keeps; the new weights make up the rest.

    Averages of rows that no gradient touches are brought up to date only when they are needed. So
    `kept` says what several updates together keep of an average while the weights stay the same.
    """

    def kept(self, last: tf.Tensor, now: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Returns what is kept, at update `now`, of the average as of update `last`.

        Args:
            last: numbers of updates, from 1, int64; of any shape.
            now: the number of a later update, int64.
            dtype: the dtype of the result, which has the shape of `last`.
        """
        raise NotImplementedError

    def kept_at(self, update: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Returns what an update keeps of the average of the update before it."""
        return self.kept(update - 1, update, dtype)


@keras.saving.register_keras_serializable(package="tf_graft")
class EMA(Averages):
    """An exponential moving average of the weights.

        a <- m * a + (1 - m) * w                  a = w up to update max(start, 1)
        m = momentum                              warm_up=False
        m = min(momentum, (1 + k) / (10 + k))     warm_up=True, k updates after the first average

    With `warm_up`, the average forgets the first weights sooner, and is of use in short trainings.

    Args:
        momentum: how much of the average is kept at each update, in [0, 1); with `warm_up` also 1.
            Default 0.99.
        start: the number of updates before averaging begins, at least 0. Default 0.
        warm_up: whether the momentum grows to its value. Default False.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range.

    Example:
        >>> from tf_graft.optimizers import SGD
        >>> optimizer = SGD(1.0, use_ema=EMA(momentum=0.5, start=2))

    Reference:
        TensorFlow Model Garden, `optimization/ema_optimizer.py`, whose `start_step` is one more
        than `start`; `tf.train.ExponentialMovingAverage`, argument `num_updates`.
    """

    def __init__(self, momentum: float = 0.99, start: int = 0, warm_up: bool = False):
        warm_up = checks.boolean("EMA", "warm_up", warm_up)
        # An average with a momentum of 1 would stay the first weights.
        self.momentum = checks.number("EMA", "momentum", momentum, 0, 1, open_high=not warm_up)
        self.start = checks.integer("EMA", "start", start, 0)
        self.warm_up = warm_up

    def kept(self, last: tf.Tensor, now: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Returns the product of `m` over the updates after `last` up to `now`."""
        grows = self._in_warm_up if self.warm_up else self._constant
        return self._from_start(last, grows(last, now, dtype))

    def kept_at(self, update: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Returns `m`."""
        if self.warm_up:
            return super().kept_at(update, dtype)
        return self._from_start(update - 1, tf.constant(self.momentum, dtype))

    def _from_start(self, last: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
        """Returns zero before averaging begins; the first average is never of update 0."""
        return kept if self.start <= 1 else tf.where(last < self.start, tf.zeros_like(kept), kept)

    def _constant(self, last: tf.Tensor, now: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        return self._power(now - last, dtype)

    def _power(self, count: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        return tf.pow(tf.constant(self.momentum, dtype), tf.cast(count, dtype))

    def _in_warm_up(self, last: tf.Tensor, now: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Returns the product of `m`, whose factors cancel but for nine while it grows."""
        grown = ALWAYS
        if self.momentum < 1:
            grown = max(math.floor((10 * self.momentum - 1) / (1 - self.momentum)), 0)
        before, after = last - self.start - 1, now - self.start - 1
        first, end = tf.minimum(before, grown), tf.minimum(after, grown)
        kept = self._power(after - before - (end - first), dtype)
        for i in range(2, 11):
            kept *= tf.cast(first + i, dtype) / tf.cast(end + i, dtype)
        return kept


@keras.saving.register_keras_serializable(package="tf_graft")
class SWA(Averages):
    """Stochastic weight averaging: the mean of the weights after every `period`-th update.

        a <- (n * a + w) / (n + 1)                at update start + 1 + n * period

    Up to update `start + 1` the average is the weights. It goes with a learning rate that stays
    high, or is cyclical with the same period. After training, `recompute_batch_normalization`
    adapts the statistics of batch normalization to the averages.

    Args:
        start: the number of updates before averaging begins, at least 0. Default 0.
        period: the number of updates between two averages, at least 1: often those of an epoch.
            Default 1.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range.

    Example:
        >>> from tf_graft.optimizers import SGD
        >>> w, optimizer = tf.Variable(3.0), SGD(1.0, use_ema=SWA(start=1))
        >>> for _ in range(3):  # to 2, 1 and 0; the mean is of the last two
        ...     optimizer.apply([tf.constant(1.0)], [w])
        >>> optimizer.finalize_variable_values([w])
        >>> float(w)
        0.5

    Reference:
        Izmailov et al., 2018, "Averaging weights leads to wider optima and better generalization"
        (arXiv 1803.05407), algorithm 1.
    """

    def __init__(self, start: int = 0, period: int = 1):
        self.start = checks.integer("SWA", "start", start, 0)
        self.period = checks.integer("SWA", "period", period, 1)

    def kept(self, last: tf.Tensor, now: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Returns the share of the weights that were averaged up to update `last`."""
        before, after = tf.cast(self._count(last), dtype), tf.cast(self._count(now), dtype)
        return before / tf.maximum(after, 1)

    def _count(self, update: tf.Tensor) -> tf.Tensor:
        """Returns the number of weights in the average as of an update."""
        return tf.maximum((update - 1 - self.start) // self.period + 1, 0)


def checked(owner: str, name: str, given: Any) -> bool | Averages:
    """Returns the argument `use_ema`: True, False or how the averages are made.

    Args:
        owner: the optimizer's class.
        name: the argument.
        given: the argument; also a config of Keras, or a flat one such as `{"name": "swa"}`.

    Raises:
        TypeError: the argument is something else.
        ValueError: a config describes no averages, or an argument is out of range.
    """
    if isinstance(given, Averages):
        return given
    if isinstance(given, dict):
        where = f"{owner}({name}={shown(given)})"
        return configured(where, given, Averages, "averages", {"ema": EMA, "swa": SWA})
    if not isinstance(given, bool | np.bool_):
        raise TypeError(
            f"{owner}({name}={shown(given)}): {name} must be True or False, or averages such as "
            "tf_graft.averages.SWA()."
        )
    return bool(given)
