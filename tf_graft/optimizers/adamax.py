"""Adamax: momentum, divided by the largest recent gradient."""

from typing import Unpack

import tensorflow as tf

from tf_graft import algorithm as ta


@ta.register
class Adamax(ta.Optimizer):
    """Adamax: Adam with the infinity norm of past gradients in place of their mean square.

    ```
    m <- m + (1 - beta_1) * (g - m)
    u <- max(beta_2 * u, |g|)
    w <- w - learning_rate / (1 - beta_1^t) * m / (u + epsilon)
    ```

    The paper has no `epsilon`. It is added as in Keras; PyTorch and optax add it to `|g|`.

    Args:
        learning_rate: number, at least 0, or schedule.
        beta_1: decay of the mean.
        beta_2: decay of the norm.
        epsilon: a term added to the norm.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: with `sparse="lazy"` the mean and the norm of untouched rows stay as they
    are, and the bias correction counts the optimizer's steps.

    Example:
        >>> w = tf.Variable([1.0, 1.0])
        >>> Adamax(0.25).apply([tf.constant([4.0, -0.1])], [w])  # the first step has length 0.25
        >>> [round(x, 3) for x in w.numpy().tolist()]
        [0.75, 1.25]

    Reference:
        Kingma and Ba, 2015, "Adam: a method for stochastic optimization", algorithm 2.
    """

    namesake = ta.Namesake(("momentum", "norm"))

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.001,
        beta_1: ta.BelowOneOrSchedule = 0.9,
        beta_2: ta.BelowOne = 0.999,
        epsilon: ta.AboveZero = 1e-7,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        return {"momentum": ta.Slot(), "norm": ta.Slot(within=ta.NOT_NEGATIVE)}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: ta.Slots, lr: tf.Tensor, t: tf.Tensor) -> ta.Step:
        m = ta.running_mean(s["momentum"], g, self.beta_1, t)
        u = tf.maximum(ta.current(self.beta_2, t) * s["norm"], tf.abs(g))
        return -_alpha(lr, self.beta_1, t) * m / (u + self.epsilon), {"momentum": m, "norm": u}

    @ta.in_place()
    def kernel(
        self, g: tf.Tensor, w: tf.Variable, s: ta.SlotVariables, lr: tf.Tensor, t: tf.Tensor
    ) -> None:
        tf.raw_ops.ResourceApplyAdaMax(
            var=w.handle,
            m=s["momentum"].handle,
            v=s["norm"].handle,
            beta1_power=ta.scalar(0.0, g.dtype),  # the rate is corrected already
            lr=_alpha(lr, self.beta_1, t),
            beta1=ta.current(self.beta_1, t),
            beta2=ta.current(self.beta_2, t),
            epsilon=ta.scalar(self.epsilon, g.dtype),
            grad=g,
        )


@ta.memoized
def _alpha(lr: tf.Tensor, beta_1: ta.NumberLike, t: tf.Tensor) -> tf.Tensor:
    return lr / ta.one_minus_power(beta_1, t)
