"""The 1cycle policy: one rise of the learning rate, then one long fall."""

from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.schedules.schedule import Schedule, precise


@keras.saving.register_keras_serializable(package="tf_graft")
class OneCycle(Schedule):
    """Rises to `learning_rate` once, then falls far below the rate that it started with.

        start = learning_rate / div_factor
        end = start / final_div_factor
        up = pct_start * total_steps - 1

        steps 0 to up:                  from start to learning_rate
        steps up to total_steps - 1:    from learning_rate to end

    With `three_phase` the rate falls as long as it rose, back to `start`, and from there to `end`.
    Each part is half a period of a cosine, or a straight line. After the last step the rate stays.

    Args:
        learning_rate: The highest rate, at least 0.
        total_steps: The number of updates of the training, at least 2.
        pct_start: The share of the steps in which the rate rises, in (0, 1); with `three_phase`
            below 1/2. The rise must take at least one step. Default: 0.3.
        anneal_strategy: `"cos"` or `"linear"`. Default: `"cos"`.
        div_factor: The highest rate over the first, above 0. Default: 25.
        final_div_factor: The first rate over the last, above 0. Default: 10,000.
        three_phase: Whether a third part follows. Default: False.

    Raises:
        TypeError: If an argument is not of its type.
        ValueError: If an argument lies outside its range.

    Example:
        >>> schedule = OneCycle(1.0, 10, pct_start=0.5, anneal_strategy="linear", div_factor=5.0)
        >>> [round(float(schedule(step)), 2) for step in range(10)]
        [0.2, 0.4, 0.6, 0.8, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0]

    Reference:
        Smith and Topin, 2018, "Super-convergence" (arXiv:1708.07120); the arguments and the steps
        are those of PyTorch's `OneCycleLR`.
    """

    def __init__(
        self,
        learning_rate: float,
        total_steps: int,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
    ):
        owner = type(self).__name__
        self.learning_rate = checks.number(owner, "learning_rate", learning_rate, low=0)
        self.total_steps = checks.integer(owner, "total_steps", total_steps, low=2)
        self.three_phase = checks.boolean(owner, "three_phase", three_phase)
        most = 0.5 if self.three_phase else 1
        self.pct_start = checks.number(
            owner, "pct_start", pct_start, 0, most, open_low=True, open_high=True, float64=True
        )
        strategies = ("cos", "linear")
        self.anneal_strategy = checks.choice(owner, "anneal_strategy", anneal_strategy, strategies)
        self.div_factor = checks.number(owner, "div_factor", div_factor, 0, open_low=True)
        self.final_div_factor = checks.number(
            owner, "final_div_factor", final_div_factor, 0, open_low=True
        )
        if self.pct_start * self.total_steps < 2:
            raise ValueError(
                f"{owner}(total_steps={total_steps}, pct_start={pct_start}): the rise must take at "
                "least one step, so pct_start * total_steps must be at least 2."
            )

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the rate in the part of the cycle that the step is in."""
        step = precise(t)
        parts = list(self._parts())
        result = precise(tf.fill(tf.shape(t), np.float64(parts[-1][3])))
        for begin, end, first, last in reversed(parts):
            share = tf.clip_by_value((step - begin) / (end - begin), 0, 1)
            if self.anneal_strategy == "cos":
                share = (1 - tf.cos(np.pi * share)) / 2
            result = tf.where(step <= end, first + (last - first) * share, result)
        return result

    def _parts(self) -> Iterator[tuple[float, float, float, float]]:
        """Yields the first and last step of each part, and the rates there."""
        start = self.learning_rate / self.div_factor
        up, stop = self.pct_start * self.total_steps - 1, self.total_steps - 1
        end = start / self.final_div_factor
        yield 0.0, up, start, self.learning_rate
        if self.three_phase:
            yield up, 2 * up, self.learning_rate, start
            yield 2 * up, stop, start, end
        else:
            yield up, stop, self.learning_rate, end
