"""Adan: Nesterov's momentum from the differences of successive gradients."""

from typing import Unpack

import tensorflow as tf

from tf_graft import algorithm as ta


@ta.register
class Adan(ta.Optimizer):
    """Adan: adds means of gradients and of their differences, divided by the root of a mean square.

    ```
    c  = g - (the gradient of the step before)         0 at the first step
    m <- m + (1 - beta_1) * (g - m)
    d <- d + (1 - beta_2) * (c - d)
    n <- n + (1 - beta_3) * ((g + beta_2 * c)^2 - n)
    u  = m / (1 - beta_1^t) + beta_2 * d / (1 - beta_2^t)
    w <- (w - learning_rate * u / (sqrt(n / (1 - beta_3^t)) + epsilon))
         / (1 + learning_rate * weight_decay)
    ```

    Each beta is one minus that of the paper, as in the authors' program. Weight decay divides the
    weights after the step; with `no_prox` it acts as in `AdamW`. The authors' `max_grad_norm` is
    called `global_clipnorm` here. Use a learning rate five to ten times that of Adam.

    Difference from optax's `adan`: optax has `1 - beta_2` in place of the factor `beta_2` in `n`
    and `u`, so the differences hardly matter there.

    Args:
        learning_rate: number, at least 0, or schedule.
        beta_1: decay of the mean of gradients.
        beta_2: decay of the mean of differences, and their weight.
        beta_3: decay of the mean square.
        epsilon: a term added to the corrected root.
        no_prox: whether weight decay acts before the step, as in `AdamW`, and not after it.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: with `sparse="lazy"` untouched rows and their slots stay as they are. The
    difference of a row is taken from its last gradient. A row whose first gradient comes after the
    first step takes it from zero.

    Example:
        >>> w = tf.Variable([1.0, 1.0])
        >>> Adan(0.25).apply([tf.constant([4.0, -0.1])], [w])  # the first step has length 0.25
        >>> [round(x, 3) for x in w.numpy().tolist()]
        [0.75, 1.25]

    Reference:
        Xie et al., 2022, "Adan: adaptive Nesterov momentum algorithm for faster optimizing deep
        models" (arXiv 2208.06677), algorithm 1.
    """

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.001,
        beta_1: ta.BelowOne = 0.98,
        beta_2: ta.BelowOne = 0.92,
        beta_3: ta.BelowOne = 0.99,
        epsilon: ta.AboveZero = 1e-8,
        no_prox: ta.Flag = False,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        own = ("momentum", "difference", "previous_gradient")
        return {role: ta.Slot() for role in own} | {"velocity": ta.Slot(within=ta.NOT_NEGATIVE)}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: ta.Slots, lr: tf.Tensor, t: tf.Tensor) -> ta.Step:
        c = _after_first(t) * (g - s["previous_gradient"])
        m = ta.running_mean(s["momentum"], g, self.beta_1, t)
        d = ta.running_mean(s["difference"], c, self.beta_2, t)
        both = g + ta.current(self.beta_2, t) * c
        n = ta.running_mean(s["velocity"], both * both, self.beta_3, t)
        of_m, of_d, root = _shares(lr, self.beta_1, self.beta_2, self.beta_3, t)
        step = -(of_m * m + of_d * d) / (tf.sqrt(n) + self.epsilon * root)
        new = {"momentum": m, "difference": d, "previous_gradient": g, "velocity": n}
        return step, new

    def decayed(self, p: ta.Point, d: tf.Tensor) -> tf.Tensor:
        moved = super().decayed(p, d)
        if self.no_prox or not self.rule.decays(p.path):
            return moved
        with self.rule.at(p.rates):
            share = self.rule.decay(tf.ones_like(p.lr), p.lr, p.t)
        return moved / (1 + share)  # (w + d) / (1 + ...) - w


@ta.memoized
def _after_first(t: tf.Tensor) -> tf.Tensor:
    """Returns 0 at the first step, then 1."""
    return tf.cast(t > 1, t.dtype)


@ta.memoized
def _shares(
    lr: tf.Tensor, beta_1: float, beta_2: float, beta_3: float, t: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the shares of both means in the step, and the root of the square's correction."""
    root = tf.sqrt(ta.one_minus_power(beta_3, t))
    alpha = lr * root
    of_d = alpha * ta.current(beta_2, t) / ta.one_minus_power(beta_2, t)
    return alpha / ta.one_minus_power(beta_1, t), of_d, root
