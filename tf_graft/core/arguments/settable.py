"""Settable: an argument whose value can be changed between steps."""

import math
from typing import Any

import keras
import tensorflow as tf

from tf_graft.core.places import replicas
from tf_graft.core.types import Config


@keras.saving.register_keras_serializable(package="tf_graft")
class Settable(keras.optimizers.schedules.LearningRateSchedule):
    """A value of `momentum`, `beta_1` or `weight_decay` that you can set between steps.

    `EMANesterov` takes one for `ahead`, too. Without a `Settable`, these arguments are constants of
    the compiled step, and setting them once the optimizer is built is an error. The optimizer keeps
    the value among its variables, so it is saved, restored, and seen by steps that are compiled
    already.

    Args:
        value: the first value, in the range of the argument.

    Example:
        >>> from tf_graft.optimizers import SGD
        >>> w, optimizer = tf.Variable(1.0), SGD(0.5, momentum=Settable(0.0))
        >>> optimizer.apply([tf.constant(1.0)], [w])
        >>> optimizer.momentum = 0.5
        >>> optimizer.apply([tf.constant(0.0)], [w])  # half of the first step again
        >>> float(w)
        0.25
    """

    variable: keras.Variable | None = None  # the optimizer makes it
    within: tuple[float, float] = (-math.inf, math.inf)  # the range of the argument

    def __init__(self, value: float):
        self.value = value

    def __call__(self, step: Any) -> tf.Tensor:
        """Returns the present value, whatever the step."""
        if self.variable is None:
            return tf.constant(self.value, tf.float32)
        return tf.convert_to_tensor(replicas.local(self.variable))

    def __float__(self) -> float:
        with tf.init_scope():  # a step may be traced
            return float(self.value if self.variable is None else self.variable)

    def get_config(self) -> Config:
        """Returns the present value."""
        return {"value": float(self)}

    def __repr__(self) -> str:
        return f"Settable({float(self):g})"


def refuse(where: str, given: object) -> None:
    """Refuses a `Settable` as an argument that can be set anyway, or cannot be set at all.

    Raises:
        TypeError: the argument is a `Settable`.
    """
    if isinstance(given, Settable):
        raise TypeError(
            f"{where}: a Settable is for momentum, beta_1 and weight_decay; give a number here."
        )
