"""Adagrad: a learning rate for each weight, which shrinks with the weight's gradients."""

from typing import Unpack

import numpy as np
import tensorflow as tf

from tf_graft import algorithm as ta


@ta.register
class Adagrad(ta.Optimizer):
    """Adagrad: the learning rate of each weight shrinks with the squares of its gradients.

    ```
    a <- a + g^2
    w <- w - learning_rate * g / sqrt(a)             a_0 = initial_accumulator_value + epsilon
    ```

    Keras adds `epsilon` to `a` under each root. Here the accumulator contains `epsilon` from the
    start, which gives the same sum and saves one pass over the accumulator. PyTorch adds it to the
    root instead.

    Args:
        learning_rate: number, at least 0, or schedule.
        initial_accumulator_value: the first value of the sum of squares.
        epsilon: a term added to that first value.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: the result equals that of the dense gradient, and a step costs only the
    touched rows.

    Example:
        >>> w = tf.Variable([1.0])
        >>> optimizer = Adagrad(0.5, initial_accumulator_value=0.0)
        >>> optimizer.apply([tf.constant([3.0])], [w])  # 1 - 0.5 * 3 / sqrt(9)
        >>> round(float(w[0]), 3)
        0.5

    Reference:
        Duchi et al., 2011, "Adaptive subgradient methods for online learning and stochastic
        optimization", equation 1 with a diagonal matrix.
    """

    idle = True
    namesake = ta.Namesake(
        ("accumulator",),
        converted={"accumulator": lambda self, x: x + np.asarray(self.epsilon, x.dtype)},
        returned={"accumulator": lambda self, x: x - np.asarray(self.epsilon, x.dtype)},
    )

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.001,
        initial_accumulator_value: ta.AtLeastZero = 0.1,
        epsilon: ta.AboveZero = 1e-7,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        start = self.initial_accumulator_value + self.epsilon
        return {"accumulator": ta.Slot(start, within=ta.NOT_NEGATIVE)}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: ta.Slots, lr: tf.Tensor, t: tf.Tensor) -> ta.Step:
        a = s["accumulator"] + g * g
        return ta.quotient(-lr * g, tf.sqrt(a)), {"accumulator": a}

    @ta.in_place(exact=True)
    def kernel(
        self, g: tf.Tensor, w: tf.Variable, s: ta.SlotVariables, lr: tf.Tensor, t: tf.Tensor
    ) -> None:
        tf.raw_ops.ResourceApplyAdagradV2(
            var=w.handle,
            accum=s["accumulator"].handle,
            lr=lr,
            epsilon=ta.scalar(0.0, g.dtype),
            grad=g,
        )
