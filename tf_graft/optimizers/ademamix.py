"""AdEMAMix: Adam with a second, much slower momentum."""

import math
from typing import Unpack

import tensorflow as tf

from tf_graft import algorithm as ta
from tf_graft.optimizers.kernels import adam_operands, descend_by_root


@ta.register
class AdEMAMix(ta.Optimizer):
    """AdEMAMix: the step of Adam plus that of a momentum over ten thousand steps.

    ```
    m <- m + (1 - beta_1) * (g - m)
    l <- l + (1 - b) * (g - l)
    v <- v + (1 - beta_2) * (g^2 - v)
    w <- w - learning_rate * (m / (1 - beta_1^t) + a * l) / (sqrt(v / (1 - beta_2^t)) + epsilon)
    ```

    `a` rises from 0 to `alpha` over `alpha_warmup` updates, and `b` from `beta_1` to `beta_3` over
    `beta_3_warmup` updates, so that its half-life rises linearly. In optax you give schedules for
    both instead.

    Args:
        learning_rate: number, at least 0, or schedule.
        beta_1: decay of the fast mean.
        beta_2: decay of the mean square.
        beta_3: decay of the slow mean.
        alpha: the weight of the slow mean.
        beta_3_warmup: the updates until `b` is `beta_3`; the paper takes all updates of the
            training. None: `b` is `beta_3` from the first update, with which training can diverge.
        alpha_warmup: likewise for `a`.
        epsilon: a term added to the root.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: with `sparse="lazy"` the averages of untouched rows stay as they are, and
    the bias correction and the warm-up count the optimizer's steps.

    Example:
        >>> w = tf.Variable([1.0, 1.0])
        >>> AdEMAMix(0.25).apply([tf.constant([4.0, -0.1])], [w])  # the first step is nearly Adam's
        >>> [round(x, 3) for x in w.numpy().tolist()]
        [0.75, 1.25]

    Reference:
        Pagliardini et al., 2024, "The AdEMAMix optimizer: better, faster, older" (arXiv
        2409.03137), algorithm 1.
    """

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.001,
        beta_1: ta.BetweenZeroAndOne = 0.9,
        beta_2: ta.BelowOne = 0.999,
        beta_3: ta.BetweenZeroAndOne = 0.9999,
        alpha: ta.AtLeastZero = 5.0,
        beta_3_warmup: ta.OptionalCount = None,
        alpha_warmup: ta.OptionalCount = None,
        epsilon: ta.AboveZero = 1e-8,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        square = {"velocity": ta.Slot(within=ta.NOT_NEGATIVE)}
        return {"momentum": ta.Slot(), "slow_momentum": ta.Slot(), **square}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: ta.Slots, lr: tf.Tensor, t: tf.Tensor) -> ta.Step:
        new = _new_share(self.beta_1, self.beta_3, self.beta_3_warmup, t)
        m = ta.running_mean(s["momentum"], g, self.beta_1, t)
        slow = s["slow_momentum"] + new * (g - s["slow_momentum"])
        v = ta.running_mean(s["velocity"], g * g, self.beta_2, t)
        alpha, weight, epsilon = self._scaled(lr, t)
        d = -(alpha * m + weight * slow) / (tf.sqrt(v) + epsilon)
        return d, {"momentum": m, "slow_momentum": slow, "velocity": v}

    @ta.in_place(serves=ta.remembers("beta_2"))
    def kernel(
        self, g: tf.Tensor, w: tf.Variable, s: ta.SlotVariables, lr: tf.Tensor, t: tf.Tensor
    ) -> None:
        alpha, weight, epsilon = self._scaled(lr, t)
        operands = adam_operands(g, s, self.beta_1, self.beta_2, t)
        tf.raw_ops.ResourceApplyAdam(var=w.handle, lr=alpha, epsilon=epsilon, **operands)
        slow = s["slow_momentum"]
        new = _new_share(self.beta_1, self.beta_3, self.beta_3_warmup, t)
        tf.raw_ops.ResourceApplyGradientDescent(var=slow.handle, alpha=new, delta=slow.value() - g)
        descend_by_root(w, slow.value(), s["velocity"], weight, epsilon)

    def _scaled(self, lr: tf.Tensor, t: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return _scaled(lr, self.beta_1, self.beta_2, self.epsilon, self.alpha, self.alpha_warmup, t)


@ta.memoized
def _scaled(
    lr: tf.Tensor,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    alpha: float,
    warmup: int | None,
    t: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the factors of both means in the step, and epsilon.

    All contain the bias correction of the mean square.
    """
    root = tf.sqrt(ta.one_minus_power(beta_2, t))
    rate = lr * root
    slow = rate * alpha * _share(warmup, t)
    return rate / ta.one_minus_power(beta_1, t), slow, epsilon * root


@ta.memoized
def _new_share(beta_1: float, beta_3: float, warmup: int | None, t: tf.Tensor) -> tf.Tensor:
    """Returns the share of the gradient in the slow mean, 1 minus its decay, at a step."""
    fast, slow = math.log(beta_1), math.log(beta_3)
    share = _share(warmup, t)
    return -tf.math.expm1(fast * slow / ((1 - share) * slow + share * fast))


def _share(warmup: int | None, t: tf.Tensor) -> tf.Tensor:
    """Returns how much of a warm-up is over, in [0, 1]."""
    return tf.ones_like(t) if warmup is None else tf.minimum(ta.quotient(t, warmup), 1.0)
