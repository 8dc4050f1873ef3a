"""The momentum that goes with a cyclical learning rate."""

from typing import Annotated

import keras
import tensorflow as tf

from tf_graft.core.arguments.checked import Checked
from tf_graft.core.arguments.declared import Fraction
from tf_graft.core.checks import instance, number
from tf_graft.schedules.composed import Composed
from tf_graft.schedules.cyclical import Cyclical
from tf_graft.schedules.one_cycle import OneCycle


@keras.saving.register_keras_serializable(package="tf_graft")
class CyclicalMomentum(Composed):
    """A momentum that falls while the learning rate rises, and rises while it falls.

        momentum(t) = max_momentum - (max_momentum - base_momentum) * height(t)

    `height` is 1 at the peak of the learning rate, and 0 at the other ends of its phases. In
    `Cyclical` it is the height in the triangle times the scale; in `OneCycle` with `three_phase` it
    stays 0 in the last phase, so the momentum stays at `max_momentum` there.

    Args:
        schedule: the schedule of the learning rate, a `OneCycle` or a `Cyclical`.
        base_momentum: the momentum at the peak of the learning rate.
        max_momentum: the highest momentum.

    Example:
        >>> rate = Cyclical(1.0, 3.0, step_size_up=2)
        >>> momentum = CyclicalMomentum(rate, base_momentum=0.5, max_momentum=0.75)
        >>> [float(momentum(step)) for step in range(5)]
        [0.75, 0.625, 0.5, 0.625, 0.75]

    Reference:
        Smith, A Disciplined Approach to Neural Network Hyper-Parameters, arXiv:1803.09820,
        section 4.3.
    """

    def __init__(
        self,
        schedule: Annotated[OneCycle | Cyclical, Checked(instance, OneCycle, Cyclical)],
        base_momentum: Annotated[float, Checked(number, 0, "max_momentum")] = 0.85,
        max_momentum: Fraction = 0.95,
    ):
        super().__init__()

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the momentum at step `t`."""
        fall = (self.max_momentum - self.base_momentum) * self.schedule.height(t)
        return self.max_momentum - fall
