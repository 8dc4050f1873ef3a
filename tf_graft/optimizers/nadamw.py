"""NAdamW: AdamW with the momentum of Nesterov, in the form of AlgoPerf."""

from typing import Unpack

import tensorflow as tf

from tf_graft import algorithm as ta
from tf_graft.optimizers.kernels import adam_operands


@ta.register
class NAdamW(ta.Optimizer):
    """NAdamW: AdamW whose momentum contains the present gradient twice, as Nesterov's does.

    ```
    m <- m + (1 - beta_1) * (g - m)
    v <- v + (1 - beta_2) * (g^2 - v)
    u  = (beta_1 * m + (1 - beta_1) * g) / (1 - beta_1^t)
    w <- w - learning_rate * weight_decay * w
           - learning_rate * u / (sqrt(v / (1 - beta_2^t)) + epsilon)
    ```

    This is the rule of AlgoPerf's baselines. In optax's `nadamw` each of the two terms of `u` has
    its own correction, as in `NAdam(momentum_decay=None, weight_decay=...)`.

    Args:
        learning_rate: number, at least 0, or schedule.
        weight_decay: decoupled weight decay; not None.
        beta_1: decay of the mean.
        beta_2: decay of the mean square.
        epsilon: a term added to the corrected root.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: with `sparse="lazy"` untouched rows neither move nor decay.

    Example:
        >>> w = tf.Variable([2.0])
        >>> NAdamW(0.25, weight_decay=0.5).apply([tf.constant([3.0])], [w])  # 2 - 0.25 - 0.25 * 1.9
        >>> round(float(w[0]), 3)
        1.275

    Reference:
        Dahl et al., 2023, "Benchmarking neural network training algorithms" (arXiv 2306.07179),
        algorithm 2; momentum: Dozat, 2016, "Incorporating Nesterov momentum into Adam".
    """

    def __init__(  # type: ignore[misc]  # a common argument with a default of its own
        self,
        learning_rate: ta.RateLike = 0.001,
        weight_decay: ta.AtLeastZeroOrSchedule = 0.004,
        beta_1: ta.BelowOneOrSchedule = 0.9,
        beta_2: ta.BelowOne = 0.999,
        epsilon: ta.AboveZero = 1e-8,
        **common: Unpack[ta.Common],
    ):
        if weight_decay is None:
            raise ValueError("NAdamW(weight_decay=None): weight_decay must be a number.")
        super().__init__(learning_rate, weight_decay=weight_decay, **common)

    def slots(self) -> dict[str, ta.Slot]:
        return {"momentum": ta.Slot(), "velocity": ta.Slot(within=ta.NOT_NEGATIVE)}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: ta.Slots, lr: tf.Tensor, t: tf.Tensor) -> ta.Step:
        beta_1 = ta.current(self.beta_1, t)
        m = ta.running_mean(s["momentum"], g, self.beta_1, t)
        v = ta.running_mean(s["velocity"], g * g, self.beta_2, t)
        alpha, epsilon = _scaled(lr, self.beta_1, self.beta_2, self.epsilon, t)
        u = beta_1 * m + (1 - beta_1) * g
        return -alpha * u / (tf.sqrt(v) + epsilon), {"momentum": m, "velocity": v}

    @ta.in_place(serves=ta.remembers("beta_2"))
    def kernel(
        self, g: tf.Tensor, w: tf.Variable, s: ta.SlotVariables, lr: tf.Tensor, t: tf.Tensor
    ) -> None:
        alpha, epsilon = _scaled(lr, self.beta_1, self.beta_2, self.epsilon, t)
        operands = adam_operands(g, s, self.beta_1, self.beta_2, t)
        tf.raw_ops.ResourceApplyAdam(
            var=w.handle, lr=alpha, epsilon=epsilon, use_nesterov=True, **operands
        )


@ta.memoized
def _scaled(
    lr: tf.Tensor, beta_1: ta.NumberLike, beta_2: float, epsilon: float, t: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the learning rate and epsilon, with the bias corrections of both averages."""
    root = tf.sqrt(ta.one_minus_power(beta_2, t))
    return lr * root / ta.one_minus_power(beta_1, t), epsilon * root
