"""COCOB: needs no learning rate, and bets on the sign of the next gradient."""

from typing import Unpack

import tensorflow as tf

from tf_graft import algorithm as ta


@ta.register
class COCOB(ta.Optimizer):
    """COCOB-Backprop: continuous coin betting, which needs no learning rate.

    ```
    L <- max(L, |g|)
    G <- G + |g|
    R <- max(R - g * x, 0)
    z <- z - g
    x' = z / (L * max(G + L, alpha * L)) * (L + R)
    w <- w + learning_rate * (x' - x),  x <- x'
    ```

    `x` is how far an entry has moved from its first value; it is kept as a slot, so that weight
    decay and constraints do not count as bets. Five numbers are kept for each weight.

    Difference from Optax': Optax multiplies the gradients by the learning rate, which changes only
    the first bets, and starts `L` at 1e-8.

    Args:
        learning_rate: number, at least 0, or schedule: multiplies the bets. The paper has none;
            leave it at 1.
        alpha: limits the first steps: the first bet of an entry is `1 / alpha`, however large its
            gradient is (1/2 if `alpha` is below 2).
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: the result equals that of the dense gradient, because a gradient of zero
    changes nothing.

    Example:
        >>> w = tf.Variable([1.0, 1.0])
        >>> COCOB(alpha=4.0).apply([tf.constant([3.0, -0.1])], [w])  # the same bet of either size
        >>> w.numpy().tolist()
        [0.75, 1.25]

    Reference:
        Orabona and Tommasi, 2017, "Training deep networks without learning rates through coin
        betting" (arXiv 1705.07795), algorithm 2.
    """

    finds_rate = True
    idle = True

    def __init__(
        self,
        learning_rate: ta.RateLike = 1.0,
        alpha: ta.AboveZero = 100.0,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        positive = ta.Slot(within=ta.NOT_NEGATIVE)
        sums = {"largest_gradient": positive, "gradient_magnitudes": positive, "reward": positive}
        return {**sums, "gradient_sum": ta.Slot(), "bet": ta.Slot(rounds=False)}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: ta.Slots, lr: tf.Tensor, t: tf.Tensor) -> ta.Step:
        magnitude = tf.abs(g)
        largest = tf.maximum(s["largest_gradient"], magnitude)
        total = s["gradient_magnitudes"] + magnitude
        reward = tf.maximum(s["reward"] - g * s["bet"], 0.0)
        z = s["gradient_sum"] - g
        below = tf.maximum(total + largest, self.alpha * largest)
        bet = ta.quotient(z, below) * (1.0 + ta.quotient(reward, largest))
        return lr * (bet - s["bet"]), {
            "largest_gradient": largest,
            "gradient_magnitudes": total,
            "reward": reward,
            "gradient_sum": z,
            "bet": bet,
        }
