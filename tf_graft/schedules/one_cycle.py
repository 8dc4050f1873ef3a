"""The one-cycle learning rate."""

import keras
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.schedules.schedule import CURVES, Schedule, through


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
        max_lr: The highest learning rate, above 0.
        total_steps: The number of updates of the cycle, at least 3.
        pct_start: The share of the updates in which the rate rises, in (0, 1); below 0.5 with
            `three_phase`. Default: 0.3.
        anneal: "cosine" or "linear". Default: "cosine".
        div_factor: `max_lr` divided by the first rate, at least 1. Default: 25.
        final_div_factor: The first rate divided by the last, at least 1. Default: 1e4.
        three_phase: Whether the rate returns to the first rate before it falls to the last.
            Default: False.

    Raises:
        TypeError: If an argument is not of its type.
        ValueError: If an argument lies outside its range, or a phase has no steps.

    Example:
        >>> schedule = OneCycle(8.0, 6, pct_start=0.5, anneal="linear", div_factor=2)
        >>> [round(float(schedule(step)), 3) for step in range(6)]
        [4.0, 6.0, 8.0, 5.333, 2.667, 0.0]

    Reference:
        Smith and Topin, Super-Convergence, arXiv:1708.07120.
    """

    def __init__(
        self,
        max_lr: float,
        total_steps: int,
        pct_start: float = 0.3,
        anneal: str = "cosine",
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
    ):
        owner = type(self).__name__
        self.max_lr = checks.number(owner, "max_lr", max_lr, low=0, open_low=True)
        self.total_steps = checks.integer(owner, "total_steps", total_steps, low=3)
        self.pct_start = checks.number(
            owner, "pct_start", pct_start, low=0, high=1, open_low=True, open_high=True
        )
        self.anneal = checks.choice(owner, "anneal", anneal, list(CURVES))
        self.div_factor = checks.number(owner, "div_factor", div_factor, low=1)
        self.final_div_factor = checks.number(owner, "final_div_factor", final_div_factor, low=1)
        self.three_phase = checks.boolean(owner, "three_phase", three_phase)
        steps = self._turns()
        if steps != sorted(set(steps)):
            raise ValueError(
                f"{owner}(pct_start={self.pct_start}, total_steps={self.total_steps}): each phase "
                f"must have at least one step, but pct_start makes them begin and end at {steps}."
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
