"""ADOPT: Adam that divides a gradient by the root mean square of the earlier ones."""

from typing import Unpack

import tensorflow as tf

from tf_graft import algorithm as ta


@ta.register
class ADOPT(ta.Optimizer):
    """ADOPT: divides each gradient by the root mean square of the earlier ones, and adds momentum.

    ```
    c  = g / max(sqrt(v), epsilon)                     clips: limited to +-(t - 1)^(1/4)
    m <- m + (1 - beta_1) * (c - m)
    v <- v + (1 - beta_2) * (g^2 - v)
    w <- w - learning_rate * m
    ```

    The first step only sets `v` to `g^2`, and moves no weight. The paper shows that, because `v`
    does not contain `g`, training can converge with any `beta_2`.

    Args:
        learning_rate: number, at least 0, or schedule.
        beta_1: decay of the mean.
        beta_2: decay of the mean square.
        epsilon: the least value of the root.
        clips: whether normalized gradients are clipped, which keeps the first steps short.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: with `sparse="lazy"` the averages of untouched rows stay as they are. The
    mean square of a row that had no gradient at the first step starts at zero, so keep `clips=True`
    for embeddings.

    Example:
        >>> w = tf.Variable([1.0, 1.0])
        >>> optimizer = ADOPT(0.5, beta_1=0.5)
        >>> for _ in range(2):
        ...     optimizer.apply([tf.constant([4.0, -0.1])], [w])
        >>> [round(x, 3) for x in w.numpy().tolist()]  # 0, then 0.5 * 0.5
        [0.75, 1.25]

    Reference:
        Taniguchi et al., 2024, "ADOPT: modified Adam can converge with any beta_2 with the optimal
        rate" (arXiv 2411.02853), algorithm 2 and its clipped form.
    """

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.001,
        beta_1: ta.BelowOneOrSchedule = 0.9,
        beta_2: ta.BelowOne = 0.9999,
        epsilon: ta.AboveZero = 1e-6,
        clips: ta.Flag = True,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        return {"momentum": ta.Slot(), "velocity": ta.Slot(within=ta.NOT_NEGATIVE)}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: ta.Slots, lr: tf.Tensor, t: tf.Tensor) -> ta.Step:
        new_share, new_square_share, largest = _shares(self.beta_1, self.beta_2, t)
        c = g / tf.maximum(tf.sqrt(s["velocity"]), self.epsilon)
        if self.clips:
            c = tf.clip_by_value(c, -largest, largest)
        m = s["momentum"] + new_share * (c - s["momentum"])
        v = s["velocity"] + new_square_share * (g * g - s["velocity"])
        return -lr * m, {"momentum": m, "velocity": v}


@ta.memoized
def _shares(beta_1: ta.NumberLike, beta_2: float, t: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Returns the shares of a new gradient in the averages, and the largest normalized one."""
    first = t <= 1
    zero, one = tf.zeros_like(t), tf.ones_like(t)
    share = tf.where(first, zero, 1 - ta.current(beta_1, t))
    square_share = tf.where(first, one, 1 - ta.current(beta_2, t))
    return share, square_share, tf.sqrt(tf.sqrt(t - 1))
