"""The one-cycle learning rate."""

from typing import Annotated, TypeAlias

import keras
import tensorflow as tf

from tf_graft.core.arguments.checked import Checked
from tf_graft.core.arguments.declared import AboveZero, BetweenZeroAndOne, Flag
from tf_graft.core.checks import integer, number
from tf_graft.schedules.schedule import Curve, Schedule, through

AtLeastOne: TypeAlias = Annotated[float, Checked(number, 1)]


@keras.saving.register_keras_serializable(package="tf_graft")
class OneCycle(Schedule):
    """Rises to `max_lr`, then falls far below its start, once in the whole run.

        first = max_lr / div_factor;  last = first / final_div_factor
        peak = round(pct_start * total_steps) - 1;  end = total_steps - 1
        rate: first at 0, max_lr at peak, last at end                      (two phases)
        rate: first at 0, max_lr at peak, first at 2 * peak, last at end   (`three_phase`)

    Between these steps the rate follows half a cosine or a straight line. It stays at `last` after
    `end`. Use `CyclicalMomentum` for a momentum that falls while the learning rate rises.

    Differences from PyTorch's `OneCycleLR`:
        * The peak is at a whole step; there it may lie between two steps.
        * The rate is constant after the end; there it raises an error.
        * A phase without steps is refused; there it divides by zero.

    Args:
        max_lr: the highest learning rate.
        total_steps: the number of updates of the cycle.
        pct_start: the share of the updates in which the rate rises; below 0.5 with `three_phase`.
        anneal: "cosine" or "linear".
        div_factor: `max_lr` divided by the first rate.
        final_div_factor: the first rate divided by the last.
        three_phase: whether the rate returns to the first rate before it falls to the last.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; a phase without steps.

    Example:
        >>> schedule = OneCycle(8.0, 6, pct_start=0.5, anneal="linear", div_factor=2)
        >>> [round(float(schedule(step)), 3) for step in range(6)]
        [4.0, 6.0, 8.0, 5.333, 2.667, 0.0]

    Reference:
        Smith and Topin, Super-Convergence, arXiv:1708.07120.
    """

    def __init__(
        self,
        max_lr: AboveZero,
        total_steps: Annotated[int, Checked(integer, 3)],
        pct_start: BetweenZeroAndOne = 0.3,
        anneal: Curve = "cosine",
        div_factor: AtLeastOne = 25.0,
        final_div_factor: AtLeastOne = 1e4,
        three_phase: Flag = False,
    ):
        super().__init__()
        steps = self._turns()
        if steps != sorted(set(steps)):
            raise ValueError(
                f"{type(self).__name__}(pct_start={self.pct_start}, "
                f"total_steps={self.total_steps}): each phase must have at least one step, but "
                f"pct_start makes them begin and end at {steps}."
            )

    def _turns(self) -> list[int]:
        """Returns the steps between which the rate rises or falls."""
        peak = round(self.pct_start * self.total_steps) - 1
        back = [2 * peak] if self.three_phase else []
        return [0, peak, *back, self.total_steps - 1]

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the rate of the phase that contains `t`."""
        first = self.max_lr / self.div_factor
        back = [first] if self.three_phase else []
        values = [first, self.max_lr, *back, first / self.final_div_factor]
        return through(t, self._turns(), values, self.anneal)

    def height(self, t: tf.Tensor) -> tf.Tensor:
        """Returns 1 at the peak and 0 at the other ends of the phases."""
        turns = self._turns()
        return through(t, turns, [0.0, 1.0, *[0.0] * (len(turns) - 2)], self.anneal)
