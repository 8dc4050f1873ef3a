"""Cosine decays from value to value."""

import keras
import tensorflow as tf

from tf_graft.schedules.schedule import Milestones, Rates, Schedule, Steps, through


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
        boundaries: the steps at which the pieces end: increasing, above 0.
        values: the learning rate at the beginning of each piece, at least 0; as many as boundaries.
        offset: the steps before the first piece.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; lists that differ in
            length, or are empty.

    Example:
        >>> schedule = StepCosine([2, 6], [8.0, 4.0])
        >>> [round(float(schedule(step)), 3) for step in range(7)]
        [8.0, 6.0, 4.0, 3.414, 2.0, 0.586, 0.0]

    Reference:
        TensorFlow Model Garden, `official/modeling/optimization/lr_schedule.py`.
    """

    def __init__(self, boundaries: Milestones, values: Rates, offset: Steps = 0):
        super().__init__()
        if not self.boundaries or len(self.boundaries) != len(self.values):
            raise ValueError(
                f"{type(self).__name__}(boundaries={self.boundaries}, values={self.values}): "
                "values must have as many entries as boundaries, and at least one."
            )

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the rate on the piece that contains `t`."""
        steps = [self.offset + boundary for boundary in (0, *self.boundaries)]
        return through(t, steps, [*self.values, 0.0], "cosine")
