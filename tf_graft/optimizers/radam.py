"""RAdam: Adam whose first steps are momentum, until the mean square can be trusted."""

from typing import Annotated, Unpack

import tensorflow as tf

from tf_graft import algorithm as ta
from tf_graft.optimizers.kernels import adam_operands

# Beside it the root of any mean square is less than half of the last digit, as gradients are
# shorter than 2^51 and 2^485. Steps of up to 2^52 and 2^486 are still finite, multiplied by it.
LARGE = {tf.float32: 2.0**76, tf.float64: 2.0**538}


@ta.register
class RAdam(ta.Optimizer):
    """RAdam: Adam with a rectified step, which needs no warm-up.

    ```
    m <- m + (1 - beta_1) * (g - m)
    v <- v + (1 - beta_2) * (g^2 - v)
    n = 2 / (1 - beta_2) - 1,  r = n - 2 * t * beta_2^t / (1 - beta_2^t)
    u = m / (1 - beta_1^t)
    if r > threshold:
        u = u * sqrt((r - 4) * (r - 2) * n / ((n - 4) * (n - 2) * r))
              * sqrt(1 - beta_2^t) / (sqrt(v) + epsilon)
    w <- w - learning_rate * u
    ```

    `r` is how many gradients the mean square averages. With the default `beta_2` and `threshold`,
    the first five steps are plain momentum, whose length follows that of the gradients.

    Args:
        learning_rate: number, at least 0, or schedule.
        beta_1: decay of the mean.
        beta_2: decay of the mean square.
        epsilon: a term added as in `Adam`.
        threshold: the rectification begins where `r` is larger. The paper has 4, other programs 5.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: with `sparse="lazy"` the averages of untouched rows stay as they are, and
    `t` counts the optimizer's steps. (In TensorFlow Addons they decay while the rows stay.)

    Example:
        >>> w = tf.Variable([1.0, 1.0])
        >>> RAdam(0.25).apply([tf.constant([4.0, -0.1])], [w])  # the first step is the gradient's
        >>> [round(x, 3) for x in w.numpy().tolist()]
        [0.0, 1.025]

    Reference:
        Liu et al., 2020, "On the variance of the adaptive learning rate and beyond" (arXiv
        1908.03265), algorithm 2; the place of `epsilon` and the threshold of 5 are those of
        PyTorch.
    """

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.001,
        beta_1: ta.BelowOneOrSchedule = 0.9,
        beta_2: ta.BelowOne = 0.999,
        epsilon: ta.AboveZero = 1e-7,
        threshold: Annotated[float, ta.Checked(ta.number, 4)] = 5.0,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        return {"momentum": ta.Slot(), "velocity": ta.Slot(within=ta.NOT_NEGATIVE)}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: ta.Slots, lr: tf.Tensor, t: tf.Tensor) -> ta.Step:
        m = ta.running_mean(s["momentum"], g, self.beta_1, t)
        v = ta.running_mean(s["velocity"], g * g, self.beta_2, t)
        alpha, epsilon = _scaled(lr, self.beta_1, self.beta_2, self.epsilon, self.threshold, t)
        return -alpha * m / (tf.sqrt(v) + epsilon), {"momentum": m, "velocity": v}

    @ta.in_place(exact=True, serves=ta.remembers("beta_2"))
    def kernel(
        self, g: tf.Tensor, w: tf.Variable, s: ta.SlotVariables, lr: tf.Tensor, t: tf.Tensor
    ) -> None:
        alpha, epsilon = _scaled(lr, self.beta_1, self.beta_2, self.epsilon, self.threshold, t)
        operands = adam_operands(g, s, self.beta_1, self.beta_2, t)
        tf.raw_ops.ResourceApplyAdam(var=w.handle, lr=alpha, epsilon=epsilon, **operands)


@ta.memoized
def _scaled(
    lr: tf.Tensor,
    beta_1: ta.NumberLike,
    beta_2: float,
    epsilon: float,
    threshold: float,
    t: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the learning rate and epsilon with which the step is that of Adam.

    A step of momentum has both so large that the sum of epsilon and any root is epsilon: it is a
    power of two, by which the learning rate is multiplied and the step divided without rounding.
    """
    alpha = lr / ta.one_minus_power(beta_1, t)
    rectified, ratio = ta.rectification(beta_2, threshold, t)
    adaptive = alpha * tf.sqrt(ratio * ta.one_minus_power(beta_2, t))
    large, small = ta.scalar(LARGE[t.dtype], t.dtype), ta.scalar(epsilon, t.dtype)
    return tf.where(rectified, adaptive, alpha * large), tf.where(rectified, small, large)
