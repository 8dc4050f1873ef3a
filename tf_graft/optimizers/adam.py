"""Adam: momentum, divided by the root of the mean square."""

from typing import Unpack

import tensorflow as tf

from tf_graft import algorithm as ta
from tf_graft.optimizers.kernels import adam_operands


@ta.register
class Adam(ta.Optimizer):
    """Adam: divides a running mean of gradients by the root of a running mean of their squares.

    ```
    m <- m + (1 - beta_1) * (g - m)
    v <- v + (1 - beta_2) * (g^2 - v)
    alpha = learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t)
    w <- w - alpha * m / (sqrt(v) + epsilon)         amsgrad: the largest v so far
    ```

    As in Keras, `epsilon` is the paper's "epsilon hat", and AMSGrad takes the largest `v` as it is.
    optax corrects the bias of `v` before it takes the largest.

    Args:
        learning_rate: number, at least 0, or schedule.
        beta_1: decay of the mean. If it is a schedule, the correction `1 - beta_1^t` takes its
            value at update t for all updates.
        beta_2: decay of the mean square.
        epsilon: a term added to the root.
        amsgrad: whether to divide by the largest mean square so far.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: with `sparse="lazy"` the averages of untouched rows stay as they are, and
    the bias correction counts the optimizer's steps, as in other lazy Adams.

    Example:
        >>> w = tf.Variable([1.0, 1.0])
        >>> Adam(0.25).apply([tf.constant([4.0, -0.1])], [w])  # the first step has length 0.25
        >>> [round(x, 3) for x in w.numpy().tolist()]
        [0.75, 1.25]

    Reference:
        Kingma and Ba, 2015, "Adam: a method for stochastic optimization", algorithm 1 in the form
        of section 2; amsgrad: Reddi et al., 2018, "On the convergence of Adam and beyond",
        algorithm 2.
    """

    namesake = ta.Namesake(("momentum", "velocity"), ("velocity_hat",))

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.001,
        beta_1: ta.BelowOneOrSchedule = 0.9,
        beta_2: ta.BelowOne = 0.999,
        epsilon: ta.AboveZero = 1e-7,
        amsgrad: ta.Flag = False,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        squares = ["velocity"] + ["velocity_hat"] * self.amsgrad
        return {"momentum": ta.Slot()} | {role: ta.Slot(within=ta.NOT_NEGATIVE) for role in squares}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: ta.Slots, lr: tf.Tensor, t: tf.Tensor) -> ta.Step:
        m = ta.running_mean(s["momentum"], g, self.beta_1, t)
        v = ta.running_mean(s["velocity"], g * g, self.beta_2, t)
        new = {"momentum": m, "velocity": v}
        if self.amsgrad:
            v = new["velocity_hat"] = tf.maximum(s["velocity_hat"], v)
        return -_alpha(lr, self.beta_1, self.beta_2, t) * m / (tf.sqrt(v) + self.epsilon), new

    # The maximum in AMSGrad's kernel drops a NaN; that in `step` keeps it.
    @ta.in_place(exact=lambda self: not self.amsgrad, serves=ta.remembers("beta_2"))
    def kernel(
        self, g: tf.Tensor, w: tf.Variable, s: ta.SlotVariables, lr: tf.Tensor, t: tf.Tensor
    ) -> None:
        operands = {
            **adam_operands(g, s, self.beta_1, self.beta_2, t),
            "var": w.handle,
            "lr": _alpha(lr, self.beta_1, self.beta_2, t),
            "epsilon": ta.scalar(self.epsilon, g.dtype),
        }
        if self.amsgrad:
            vhat = s["velocity_hat"].handle
            tf.raw_ops.ResourceApplyAdamWithAmsgrad(**operands, vhat=vhat)
        else:
            tf.raw_ops.ResourceApplyAdam(**operands)


@ta.memoized
def _alpha(lr: tf.Tensor, beta_1: ta.NumberLike, beta_2: float, t: tf.Tensor) -> tf.Tensor:
    return lr * tf.sqrt(ta.one_minus_power(beta_2, t)) / ta.one_minus_power(beta_1, t)
