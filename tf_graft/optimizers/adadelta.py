"""Adadelta: steps measured in the units of the weights."""

from typing import Unpack

import tensorflow as tf

from tf_graft import algorithm as ta


@ta.register
class Adadelta(ta.Optimizer):
    """Adadelta: scales each gradient by the ratio of recent steps to recent gradients.

    ```
    a <- rho * a + (1 - rho) * g^2
    x  = sqrt(b + epsilon) / sqrt(a + epsilon) * g
    b <- rho * b + (1 - rho) * x^2
    w <- w - learning_rate * x
    ```

    The paper has no learning rate; set it to 1 to follow the paper.

    Args:
        learning_rate: number, at least 0, or schedule.
        rho: decay of both averages.
        epsilon: a term inside both roots.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: with `sparse="lazy"` the averages of untouched rows stay as they are.

    Example:
        >>> w = tf.Variable([1.0])
        >>> optimizer = Adadelta(1.0, rho=0.0, epsilon=1.0)
        >>> optimizer.apply([tf.constant([0.75])], [w])  # 1 - 1 / sqrt(0.75^2 + 1) * 0.75
        >>> round(float(w[0]), 3)
        0.4

    Reference:
        Zeiler, 2012, "ADADELTA: an adaptive learning rate method", algorithm 1.
    """

    namesake = ta.Namesake(("accumulated_gradient", "accumulated_delta"))

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.001,
        rho: ta.Fraction = 0.95,
        epsilon: ta.AboveZero = 1e-7,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        squares = ("accumulated_gradient", "accumulated_delta")
        return {role: ta.Slot(within=ta.NOT_NEGATIVE) for role in squares}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: ta.Slots, lr: tf.Tensor, t: tf.Tensor) -> ta.Step:
        b = s["accumulated_delta"]
        a = ta.running_mean(s["accumulated_gradient"], g * g, self.rho, t)
        x = tf.sqrt(b + self.epsilon) * tf.math.rsqrt(a + self.epsilon) * g
        b = ta.running_mean(b, x * x, self.rho, t)
        return -lr * x, {"accumulated_gradient": a, "accumulated_delta": b}

    @ta.in_place()
    def kernel(
        self, g: tf.Tensor, w: tf.Variable, s: ta.SlotVariables, lr: tf.Tensor, t: tf.Tensor
    ) -> None:
        tf.raw_ops.ResourceApplyAdadelta(**self._operands(w, s, lr), grad=g)

    def _operands(self, w: tf.Variable, s: ta.SlotVariables, lr: tf.Tensor) -> dict[str, tf.Tensor]:
        return {
            "var": w.handle,
            "accum": s["accumulated_gradient"].handle,
            "accum_update": s["accumulated_delta"].handle,
            "lr": lr,
            "rho": ta.scalar(self.rho, lr.dtype),
            "epsilon": ta.scalar(self.epsilon, lr.dtype),
        }
