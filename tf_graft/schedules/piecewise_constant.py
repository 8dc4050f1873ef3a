"""A learning rate that changes at given steps or epochs."""

import itertools
from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.core.arguments.declared import AtLeastZero, OptionalCount
from tf_graft.schedules.schedule import Rates, Schedule, numbers


@keras.saving.register_keras_serializable(package="tf_graft")
class PiecewiseConstant(Schedule):
    """Multiplies `learning_rate` by `decay_rates[i]` after step `boundaries[i]`.

        i = number of boundaries (times `steps_per_epoch` if given) below t
        rate(t) = learning_rate * (1, *decay_rates)[i]

    At a boundary the rate is still that of the piece before it, as in OpenSeq2Seq and
    `PiecewiseConstantDecay` of Keras. The rates are multiples of `learning_rate`, not of each
    other.

    Differences from OpenSeq2Seq's `piecewise_constant`:
        * Fractions of epochs are accepted and rounded to the nearest step; there they were refused.
        * Unsorted boundaries are refused; there they failed during training.
        * Without boundaries the rate is constant; there that raised an IndexError.

    Args:
        learning_rate: the learning rate before the first boundary.
        boundaries: increasing steps, each at least 0; epochs if `steps_per_epoch` is given.
        decay_rates: one factor for each boundary, at least 0.
        steps_per_epoch: updates in an epoch; None if `boundaries` are steps.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; lists that differ in
            length.

    Example:
        >>> schedule = PiecewiseConstant(1.0, [1, 2.5], [0.5, 0.25], steps_per_epoch=10)
        >>> [float(schedule(step)) for step in (10, 11, 25, 26)]
        [1.0, 0.5, 0.5, 0.25]

    Reference:
        OpenSeq2Seq, `lr_policies.piecewise_constant` (arXiv:1805.10387).
    """

    def __init__(
        self,
        learning_rate: AtLeastZero,
        boundaries: Sequence[float],
        decay_rates: Rates,
        steps_per_epoch: OptionalCount = None,
    ):
        super().__init__()
        owner = type(self).__name__
        check = checks.integer if steps_per_epoch is None else checks.number
        self.boundaries = numbers(owner, "boundaries", boundaries, check)
        if len(self.boundaries) != len(self.decay_rates):
            raise ValueError(
                f"{owner}(boundaries={self.boundaries}, decay_rates={self.decay_rates}): "
                "decay_rates must have as many entries as boundaries."
            )
        if any(b <= a for a, b in itertools.pairwise(self.boundaries)):
            raise ValueError(f"{owner}(boundaries={self.boundaries}): boundaries must increase.")
        for i, factor in enumerate(self.decay_rates):
            name = f"learning_rate * decay_rates[{i}]"
            checks.number(owner, name, self.learning_rate * factor)
        for step in self._steps()[-1:]:
            checks.integer(owner, "boundaries[-1] * steps_per_epoch", step)

    def _steps(self) -> list[int]:
        return [round(boundary * (self.steps_per_epoch or 1)) for boundary in self.boundaries]

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the rate of the piece that contains `t`."""
        passed = t[..., tf.newaxis] > tf.constant(self._steps(), t.dtype)
        rates = [self.learning_rate * factor for factor in (1.0, *self.decay_rates)]
        piece = tf.reduce_sum(tf.cast(passed, tf.int32), axis=-1)
        return tf.gather(tf.constant(rates, tf.float32), piece)
