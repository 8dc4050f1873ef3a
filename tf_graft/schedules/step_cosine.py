"""Cosine decays from value to value."""

import itertools
from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.core.types import Config
from tf_graft.schedules.schedule import Schedule, numbers, through


@keras.saving.register_keras_serializable(package="tf_graft")
class StepCosine(Schedule):
    """Goes from each value to the next along half a cosine, and from the last one to 0.

        b = (0, *boundaries);  v = (*values, 0)
        x = (t - offset - b[i]) / (b[i+1] - b[i])        (i: the piece that contains t - offset)
        rate(t) = v[i+1] + (v[i] - v[i+1]) * (1 + cos(pi x)) / 2

    The rate is the first value up to step `offset`, and 0 after the last boundary.

    This class follows the documentation of the Model Garden's `StepCosineDecayWithOffset`. The code
    of that schedule differs: it takes the boundaries as the beginnings of the pieces, so its last
    piece has no steps, and its rate is NaN there.

    Args:
        boundaries: The steps at which the pieces end: increasing, above 0.
        values: The learning rate at the beginning of each piece, at least 0; as many as boundaries.
        offset: The steps before the first piece, at least 0. Default: 0.

    Raises:
        TypeError: If an argument is not of its type.
        ValueError: If an argument lies outside its range, or the two lists differ in length.

    Example:
        >>> schedule = StepCosine([2, 6], [8.0, 4.0])
        >>> [round(float(schedule(step)), 3) for step in range(7)]
        [8.0, 6.0, 4.0, 3.414, 2.0, 0.586, 0.0]

    Reference:
        TensorFlow Model Garden, `official/modeling/optimization/lr_schedule.py`.
    """

    def __init__(self, boundaries: Sequence[int], values: Sequence[float], offset: int = 0):
        owner = type(self).__name__
        self.boundaries = numbers(checks.integer, owner, "boundaries", boundaries)
        self.values = numbers(checks.number, owner, "values", values)
        self.offset = checks.integer(owner, "offset", offset, low=0)
        if not self.boundaries or len(self.boundaries) != len(self.values):
            raise ValueError(
                f"{owner}(boundaries={self.boundaries}, values={self.values}): values must have as "
                "many entries as boundaries, and at least one."
            )
        if any(b <= a for a, b in itertools.pairwise([0, *self.boundaries])):
            raise ValueError(
                f"{owner}(boundaries={self.boundaries}): boundaries must increase from above 0."
            )

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the rate on the piece that contains `t`."""
        steps = [self.offset + boundary for boundary in (0, *self.boundaries)]
        return through(t, steps, [*self.values, 0.0], "cosine")

    def get_config(self) -> Config:
        """Returns the constructor's arguments, the lists copied."""
        lists = {"boundaries": list(self.boundaries), "values": list(self.values)}
        return {**super().get_config(), **lists}
