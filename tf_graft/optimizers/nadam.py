"""NAdam: Adam with the momentum of Nesterov, which grows during the first steps."""

from typing import Annotated, Unpack

import tensorflow as tf

from tf_graft import algorithm as ta
from tf_graft.optimizers.kernels import adam_operands, descend_by_root

DECAY = 0.96  # of the part of the momentum that is left out at first


@ta.register
class NAdam(ta.Optimizer):
    """NAdam: Adam that looks ahead by the next step's momentum, as Nesterov's method does.

    ```
    mu_t = beta_1 * (1 - 0.5 * 0.96^(t * momentum_decay)),  p_t = mu_1 * mu_2 * ... * mu_t
    m <- m + (1 - beta_1) * (g - m)
    v <- v + (1 - beta_2) * (g^2 - v)
    u  = mu_(t+1) * m / (1 - p_(t+1)) + (1 - mu_t) * g / (1 - p_t)
    w <- w - learning_rate * u / (sqrt(v / (1 - beta_2^t)) + epsilon)
    ```

    The default of `momentum_decay` is that of Keras' Nadam, whose files this class can load. The
    paper and PyTorch have 0.004, with which the momentum grows for thousands of steps. With None
    `mu_t` is `beta_1` at every step, as in optax. `NAdamW` is the simpler rule of AlgoPerf.

    Args:
        learning_rate: number, at least 0, or schedule.
        beta_1: decay of the mean, and the momentum in the end.
        beta_2: decay of the mean square.
        epsilon: a term added to the corrected root.
        momentum_decay: how fast the momentum grows from half of `beta_1`; None: it does not.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: with `sparse="lazy"` the averages of untouched rows stay as they are, and
    the momentum and the bias correction count the optimizer's steps.

    Example:
        >>> w = tf.Variable([1.0, 1.0])
        >>> NAdam(0.25, momentum_decay=None).apply([tf.constant([4.0, -0.1])], [w])
        >>> [round(x, 3) for x in w.numpy().tolist()]  # 0.25 * (0.09 / 0.19 + 0.1 / 0.1)
        [0.632, 1.368]

    Reference:
        Dozat, 2016, "Incorporating Nesterov momentum into Adam", algorithm 8.
    """

    namesake = ta.Namesake(("momentum", "velocity"))

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.001,
        beta_1: ta.BelowOneOrSchedule = 0.9,
        beta_2: ta.BelowOne = 0.999,
        epsilon: ta.AboveZero = 1e-7,
        momentum_decay: Annotated[float | None, ta.Checked(ta.number, 0, optional=True)] = 1.0,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        return {"momentum": ta.Slot(), "velocity": ta.Slot(within=ta.NOT_NEGATIVE)}

    def shared_slots(self) -> dict[str, ta.Slot]:
        return {"u_product": ta.Slot(1.0, within=(0, 1))}

    def advance(self, s: ta.Slots, rates: ta.Rates, t: tf.Tensor) -> dict[str, tf.Tensor]:
        t = tf.cast(t, s["u_product"].dtype)
        return {
            "u_product": s["u_product"]
            * _momentum(ta.current(self.beta_1, t), self.momentum_decay, t)
        }

    def step(self, g: tf.Tensor, w: tf.Tensor, s: ta.Slots, lr: tf.Tensor, t: tf.Tensor) -> ta.Step:
        m = ta.running_mean(s["momentum"], g, self.beta_1, t)
        v = ta.running_mean(s["velocity"], g * g, self.beta_2, t)
        of_m, of_g, epsilon = _scaled(
            lr, self.beta_1, self.beta_2, self.epsilon, self.momentum_decay, s["u_product"], t
        )
        return -(of_m * m + of_g * g) / (tf.sqrt(v) + epsilon), {"momentum": m, "velocity": v}

    @ta.in_place(serves=ta.remembers("beta_2"))
    def kernel(
        self, g: tf.Tensor, w: tf.Variable, s: ta.SlotVariables, lr: tf.Tensor, t: tf.Tensor
    ) -> None:
        of_m, of_g, epsilon = _scaled(
            lr, self.beta_1, self.beta_2, self.epsilon, self.momentum_decay, s["u_product"], t
        )
        operands = adam_operands(g, s, self.beta_1, self.beta_2, t)
        tf.raw_ops.ResourceApplyAdam(var=w.handle, lr=of_m, epsilon=epsilon, **operands)
        descend_by_root(w, g, s["velocity"], of_g, epsilon)


def _momentum(beta_1: tf.Tensor, momentum_decay: float | None, t: tf.Tensor) -> tf.Tensor:
    """Returns `mu_t`."""
    if momentum_decay is None:
        return beta_1
    return beta_1 * (1 - 0.5 * tf.pow(tf.constant(DECAY, t.dtype), t * momentum_decay))


@ta.memoized
def _scaled(
    lr: tf.Tensor,
    beta_1: ta.NumberLike,
    beta_2: float,
    epsilon: float,
    momentum_decay: float | None,
    product: tf.Tensor,
    t: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the factors of the mean and of the gradient in the step, and epsilon.

    All contain the bias correction of the mean square.
    """
    product = tf.cast(product, t.dtype)
    beta = ta.current(beta_1, t)  # what it will be at the next step may not be known
    now, then = (_momentum(beta, momentum_decay, x) for x in (t, t + 1))
    root = tf.sqrt(ta.one_minus_power(beta_2, t))
    alpha = lr * root
    of_m = alpha * then / (1 - product * then)
    return of_m, alpha * (1 - now) / (1 - product), epsilon * root
