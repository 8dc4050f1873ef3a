"""AdaBelief: Adam, divided by how far gradients lie from their mean."""

from typing import Unpack

import tensorflow as tf

from tf_graft import algorithm as ta


@ta.register
class AdaBelief(ta.Optimizer):
    """AdaBelief: takes long steps where the gradient is close to its running mean.

    ```
    m <- m + (1 - beta_1) * (g - m)
    v <- v + (1 - beta_2) * ((g - m)^2 - v) + epsilon_root
    w <- w - learning_rate * m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + epsilon)
    ```

    Difference from TensorFlow Addons' and the authors' programs: the step is not rectified as in
    `RAdam` (their `rectify`), and there is no `amsgrad`; the algorithm has neither.

    Args:
        learning_rate: number, at least 0, or schedule.
        beta_1: decay of the mean.
        beta_2: decay of the mean squared difference.
        epsilon: a term added to the root.
        epsilon_root: a term added to the mean square at each step.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: with `sparse="lazy"` the averages of untouched rows stay as they are, and
    the bias correction counts the optimizer's steps.

    Example:
        >>> w = tf.Variable([1.0, 1.0])
        >>> AdaBelief(0.25).apply([tf.constant([4.0, -0.1])], [w])  # 0.25 / 0.9: g - m is 0.9 g
        >>> [round(x, 3) for x in w.numpy().tolist()]
        [0.722, 1.278]

    Reference:
        Zhuang et al., 2020, "AdaBelief optimizer: adapting stepsizes by the belief in observed
        gradients" (arXiv 2010.07468), algorithm 2. The paper uses one epsilon in both places.
    """

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.001,
        beta_1: ta.BelowOneOrSchedule = 0.9,
        beta_2: ta.BelowOne = 0.999,
        epsilon: ta.AboveZero = 1e-8,
        epsilon_root: ta.AtLeastZero = 1e-16,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        return {"momentum": ta.Slot(), "velocity": ta.Slot(within=ta.NOT_NEGATIVE)}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: ta.Slots, lr: tf.Tensor, t: tf.Tensor) -> ta.Step:
        m = ta.running_mean(s["momentum"], g, self.beta_1, t)
        error = (g - m) * (g - m)
        v = ta.running_mean(s["velocity"], error, self.beta_2, t) + self.epsilon_root
        root = tf.sqrt(v / ta.one_minus_power(self.beta_2, t)) + self.epsilon
        return -lr / ta.one_minus_power(self.beta_1, t) * m / root, {"momentum": m, "velocity": v}
