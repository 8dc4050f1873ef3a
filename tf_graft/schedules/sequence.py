"""Schedules one after another."""

from collections.abc import Callable
from typing import ClassVar

import keras
import tensorflow as tf
from keras.optimizers.schedules import LearningRateSchedule

from tf_graft.core.types import TensorLike
from tf_graft.schedules import composed
from tf_graft.schedules.schedule import Milestones, as_step, precise


@keras.saving.register_keras_serializable(package="tf_graft")
class Sequence(composed.Composed):
    """Follows one schedule after another; each counts its steps from its milestone.

        begin = (0, *milestones)
        rate(t) = schedules[i](t - begin[i])      (i: the number of milestones up to step t)

    Args:
        schedules: the schedules, each any `LearningRateSchedule` or a number for a constant rate.
        milestones: the steps at which the second, third, ... schedule begins: increasing, above 0,
            one fewer than schedules.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; a schedule whose rate
            at step 0 is out of range; numbers of schedules and milestones that do not match.

    Example:
        >>> from tf_graft.schedules import PolyDecay
        >>> schedule = Sequence([1.0, PolyDecay(8.0, decay_steps=4)], milestones=[2])
        >>> [float(schedule(step)) for step in range(7)]
        [1.0, 1.0, 8.0, 6.0, 4.0, 2.0, 0.0]
    """

    inner: ClassVar[str] = "schedules"

    @classmethod
    def made(cls, given: object, get: Callable[[object], LearningRateSchedule]) -> object:
        """Returns the inner schedules, each made by `get`; what is no list is left as it is."""
        return [get(each) for each in given] if isinstance(given, list | tuple) else given

    def __init__(self, schedules: composed.GivenList, milestones: Milestones):
        super().__init__()
        if len(self.schedules) != len(self.milestones) + 1:
            raise ValueError(
                f"{type(self).__name__}({len(self.schedules)} schedules, "
                f"milestones={self.milestones}): milestones must have one entry fewer than "
                "schedules."
            )

    def __call__(self, step: TensorLike) -> tf.Tensor:
        """Returns the rate at `step`: float32, of the shape of `step`.

        The schedules are called with an int64 step, or a float64 one if `step` is a float.
        """
        t = as_step(step)
        rate = precise(self.schedules[0](t))
        for begin, schedule in zip(self.milestones, self.schedules[1:], strict=True):
            rate = tf.where(t >= begin, precise(schedule(tf.maximum(t - begin, 0))), rate)
        return tf.cast(rate, tf.float32)
