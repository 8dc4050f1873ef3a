"""Yogi: Adam whose mean square falls slowly."""

from typing import Unpack

import tensorflow as tf

from tf_graft import algorithm as ta


@ta.register
class Yogi(ta.Optimizer):
    """Yogi: Adam whose mean square moves up or down by a fixed share of the gradient's square.

    ```
    m <- m + (1 - beta_1) * (g - m)
    v <- v - (1 - beta_2) * sign(v - g^2) * g^2
    alpha = learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t)
    w <- w - alpha * m / (sqrt(v) + epsilon)
    ```

    A small gradient lowers `v` only a little, so the step grows more slowly than Adam's. The paper
    has no bias correction; the authors' program, which is also that of TensorFlow Addons, corrects
    the bias as here. With `epsilon_hat=False`, `epsilon` is added to the corrected root, as in
    optax. optax also starts `m` at 1e-6, so its first steps differ from these by up to 4e-4 of
    their length. In place of TensorFlow Addons' `l1_regularization_strength` and
    `l2_regularization_strength`, use regularizers of the layers.

    Args:
        learning_rate: number, at least 0, or schedule.
        beta_1: decay of the mean.
        beta_2: decay of the mean square.
        epsilon: a term added to the root.
        initial_accumulator_value: the mean square at the start.
        epsilon_hat: whether `epsilon` is added before the root is corrected, as in `Adam`.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: with `sparse="lazy"` the averages of untouched rows stay as they are, and
    the bias correction counts the optimizer's steps.

    Example:
        >>> w = tf.Variable([1.0, 1.0])
        >>> Yogi(0.25).apply([tf.constant([4.0, -2.0])], [w])  # nearly the learning rate
        >>> [round(x, 2) for x in w.numpy().tolist()]
        [0.75, 1.25]

    Reference:
        Zaheer et al., 2018, "Adaptive methods for nonconvex optimization", algorithm 2.
    """

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.01,
        beta_1: ta.BelowOneOrSchedule = 0.9,
        beta_2: ta.BelowOne = 0.999,
        epsilon: ta.AboveZero = 1e-3,
        initial_accumulator_value: ta.AtLeastZero = 1e-6,
        epsilon_hat: ta.Flag = True,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        square = ta.Slot(self.initial_accumulator_value, within=ta.NOT_NEGATIVE)
        return {"momentum": ta.Slot(), "velocity": square}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: ta.Slots, lr: tf.Tensor, t: tf.Tensor) -> ta.Step:
        m = ta.running_mean(s["momentum"], g, self.beta_1, t)
        square = g * g
        sign = tf.sign(s["velocity"] - square)
        v = s["velocity"] - (1 - ta.current(self.beta_2, t)) * sign * square
        root = _root(self.beta_2, t)
        alpha = _alpha(lr, root, self.beta_1, t)
        epsilon = self.epsilon if self.epsilon_hat else self.epsilon * root
        return -alpha * m / (tf.sqrt(v) + epsilon), {"momentum": m, "velocity": v}


@ta.memoized
def _root(beta_2: float, t: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(ta.one_minus_power(beta_2, t))


@ta.memoized
def _alpha(lr: tf.Tensor, root: tf.Tensor, beta_1: ta.NumberLike, t: tf.Tensor) -> tf.Tensor:
    return lr * root / ta.one_minus_power(beta_1, t)
