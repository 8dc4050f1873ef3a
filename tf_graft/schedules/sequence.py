"""Schedules one after another."""

import itertools
from collections.abc import Sequence as Listed
from typing import ClassVar

import keras
import tensorflow as tf
from keras.optimizers.schedules import LearningRateSchedule

from tf_graft.core import checks
from tf_graft.core.types import Config, TensorLike
from tf_graft.schedules import composed
from tf_graft.schedules.schedule import as_step, numbers, precise


@keras.saving.register_keras_serializable(package="tf_graft")
class Sequence(composed.Composed):
    """Follows one schedule after another; each counts its steps from its milestone.

        begin = (0, *milestones)
        rate(t) = schedules[i](t - begin[i])      (i: the number of milestones up to step t)

    Args:
        schedules: The schedules, each any `LearningRateSchedule` or a number for a constant rate.
        milestones: The steps at which the second, third, ... schedule begins: increasing, above 0,
            one fewer than schedules.

    Raises:
        TypeError: If an argument is not of its type.
        ValueError: If an argument, or a schedule's rate at step 0, lies outside its range, or the
            numbers of schedules and milestones do not match.

    Example:
        >>> from tf_graft.schedules import PolyDecay
        >>> schedule = Sequence([1.0, PolyDecay(8.0, decay_steps=4)], milestones=[2])
        >>> [float(schedule(step)) for step in range(7)]
        [1.0, 1.0, 8.0, 6.0, 4.0, 2.0, 0.0]
    """

    inner: ClassVar[str] = "schedules"

    def __init__(self, schedules: Listed[LearningRateSchedule | float], milestones: Listed[int]):
        owner = type(self).__name__
        given = checks.listed(
            f"{owner}(schedules={{}}): schedules must be a list of schedules.", schedules
        )
        self.schedules = [
            composed.schedule(owner, f"schedules[{i}]", each) for i, each in enumerate(given)
        ]
        self.milestones = numbers(checks.integer, owner, "milestones", milestones)
        if len(self.schedules) != len(self.milestones) + 1:
            raise ValueError(
                f"{owner}({len(self.schedules)} schedules, milestones={self.milestones}): "
                "milestones must have one entry fewer than schedules."
            )
        if any(b <= a for a, b in itertools.pairwise([0, *self.milestones])):
            raise ValueError(
                f"{owner}(milestones={self.milestones}): milestones must increase from above 0."
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

    def get_config(self) -> Config:
        """Returns the constructor's arguments, the schedules serialized, the milestones copied."""
        return {**super().get_config(), "milestones": list(self.milestones)}
