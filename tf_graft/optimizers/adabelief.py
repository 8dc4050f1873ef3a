"""AdaBelief: Adam divided by how far gradients lie from their mean."""

from typing import Unpack

import tensorflow as tf

from tf_graft.algorithm import (
    NOT_NEGATIVE,
    Checked,
    Common,
    Optimizer,
    RateLike,
    Slot,
    Slots,
    Step,
    number,
    one_minus_power,
    register,
)


@register
class AdaBelief(Optimizer):
    """AdaBelief: long steps where the gradient is as its running mean predicts.

    ```
    m <- m + (1 - beta_1) * (g - m)
    v <- v + (1 - beta_2) * ((g - m)^2 - v) + epsilon_root
    w <- w - learning_rate * m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + epsilon)
    ```

    Args:
        learning_rate: number, at least 0, or schedule. Default 0.001.
        beta_1: decay of the mean, in [0, 1). Default 0.9.
        beta_2: decay of the mean squared difference, in [0, 1). Default 0.999.
        epsilon: above 0, added to the root. Default 1e-8.
        epsilon_root: at least 0, added to the mean square at each step. Default 1e-16.
        **common: see `tf_graft.algorithm.Common`.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; the message names it.

    Row-sparse gradients: with `sparse="lazy"` the averages of untouched rows stay as they are, and
    the bias correction counts the optimizer's steps.

    Example:
        >>> w = tf.Variable([1.0, 1.0])
        >>> AdaBelief(0.25).apply([tf.constant([4.0, -0.1])], [w])  # 0.25 / 0.9: g - m is 0.9 g
        >>> [round(x, 3) for x in w.numpy().tolist()]
        [0.722, 1.278]

    Reference:
        Zhuang et al., 2020, "AdaBelief optimizer: adapting stepsizes by the belief in observed
        gradients" (arXiv 2010.07468), algorithm 2. The paper has one epsilon for both places.
    """

    beta_1 = Checked(number, 0, 1, open_high=True)
    beta_2 = Checked(number, 0, 1, open_high=True)
    epsilon = Checked(number, 0, open_low=True)
    epsilon_root = Checked(number, 0)

    def __init__(
        self,
        learning_rate: RateLike = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        epsilon_root: float = 1e-16,
        **common: Unpack[Common],
    ):
        super().__init__(learning_rate, **common)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.epsilon_root = epsilon_root

    def slots(self) -> dict[str, Slot]:
        return {"momentum": Slot(), "velocity": Slot(within=NOT_NEGATIVE)}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: Slots, lr: tf.Tensor, t: tf.Tensor) -> Step:
        beta_1, beta_2 = tf.constant(self.beta_1, g.dtype), tf.constant(self.beta_2, g.dtype)
        m = s["momentum"] + (1 - beta_1) * (g - s["momentum"])
        error = (g - m) * (g - m)
        v = s["velocity"] + (1 - beta_2) * (error - s["velocity"]) + self.epsilon_root
        root = tf.sqrt(v / one_minus_power(self.beta_2, t)) + self.epsilon
        return -lr / one_minus_power(self.beta_1, t) * m / root, {"momentum": m, "velocity": v}
