"""Cosine decay with warm restarts."""

import itertools
import math

import keras
import tensorflow as tf

from tf_graft.core.arguments.declared import AtLeastZero, Count
from tf_graft.core.checks import MOST_WHOLE
from tf_graft.schedules.schedule import CURVES, Factor, Schedule, UpToRate, precise


@keras.saving.register_keras_serializable(package="tf_graft")
class CosineRestarts(Schedule):
    """Falls along half a cosine, then starts again (SGDR).

        length_i = first_decay_steps * t_mul^i;  start_i = length_0 + ... + length_(i-1)
        x = (t - start_i) / length_i             (i: the number of restarts up to step t)
        rate(t) = min_lr + (learning_rate - min_lr) * m_mul^i * (1 + cos(pi x)) / 2

    Restarts are counted in whole steps, so the learning rate at a restart is always the highest of
    its period. Keras' `CosineDecayRestarts` uses a logarithm in float32, and for some `t_mul` (6,
    for example) a compiled step rounds it to the wrong side: the learning rate at a restart is then
    0. Keras' `t_mul` may be a fraction; here it may not.

    Args:
        learning_rate: the learning rate at step 0.
        first_decay_steps: the steps up to the first restart.
        t_mul: each period is this many times as long as the one before: a whole number.
        m_mul: each period begins with this share of the height of the one before.
        min_lr: the rate that each period falls to.

    Example:
        >>> schedule = CosineRestarts(8.0, first_decay_steps=2, t_mul=2, m_mul=0.5)
        >>> [round(float(schedule(step)), 3) for step in range(7)]
        [8.0, 4.0, 4.0, 3.414, 2.0, 0.586, 2.0]

    Reference:
        Loshchilov and Hutter, SGDR, arXiv:1608.03983, equation 5.
    """

    def __init__(
        self,
        learning_rate: AtLeastZero,
        first_decay_steps: Count,
        t_mul: Count = 1,
        m_mul: Factor = 1.0,
        min_lr: UpToRate = 0.0,
    ):
        super().__init__()

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the rate in the period that contains `t`."""
        restarts, start, length = self._period(t)
        left = precise(start + length - t) / precise(length)
        height = tf.exp(precise(restarts) * math.log(self.m_mul)) * CURVES["cosine"](left)
        return self.min_lr + (self.learning_rate - self.min_lr) * height

    def _period(self, t: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the number of restarts up to `t`, the first step of the period, its length."""
        first = self.first_decay_steps
        if self.t_mul == 1:
            restarts = t // first
            return restarts, restarts * first, tf.ones_like(t) * first
        powers = (self.t_mul**i for i in itertools.count())
        longest = itertools.takewhile(lambda power: first * power <= MOST_WHOLE, powers)
        lengths = [first * power for power in longest]
        starts = [0, *itertools.accumulate(lengths)][: len(lengths)]
        passed = t[..., tf.newaxis] >= tf.constant(starts[1:], t.dtype)
        restarts = tf.reduce_sum(tf.cast(passed, tf.int32), axis=-1)
        start, length = (tf.gather(tf.constant(x, t.dtype), restarts) for x in (starts, lengths))
        return restarts, start, length
