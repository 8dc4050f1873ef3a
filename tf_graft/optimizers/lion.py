"""Lion: the sign of an interpolation between momentum and gradient."""

from typing import Unpack

import tensorflow as tf

from tf_graft import algorithm as ta
from tf_graft.optimizers.kernels import descend


@ta.register
class Lion(ta.Optimizer):
    """Lion: moves every entry by the same length, in the direction of a running mean's sign.

    ```
    c = m + (1 - beta_1) * (g - m)
    w <- w - learning_rate * sign(c)
    m <- m + (1 - beta_2) * (g - m)
    ```

    Every entry moves by the learning rate, so use a third to a tenth of Adam's learning rate, and
    three to ten times its weight decay. It keeps one number for each weight, where Adam keeps two.

    Args:
        learning_rate: number, at least 0, or schedule. The default is that of Keras; the authors'
            is 0.0001.
        beta_1: the share of the momentum in the step.
        beta_2: decay of the momentum.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: with `sparse="lazy"` untouched rows keep their momentum and do not move.

    Example:
        >>> w = tf.Variable([1.0, 1.0, 1.0])
        >>> Lion(0.25).apply([tf.constant([4.0, -0.1, 0.0])], [w])
        >>> w.numpy().tolist()
        [0.75, 1.25, 1.0]

    Reference:
        Chen et al., 2023, "Symbolic discovery of optimization algorithms" (arXiv 2302.06675),
        algorithm 2.
    """

    namesake = ta.Namesake(
        ("momentum",),
        unlike=lambda self: {} if self.beta_1 else {"beta_1": "in Keras it must be above 0"},
    )

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.001,
        beta_1: ta.BelowOneOrSchedule = 0.9,
        beta_2: ta.BelowOne = 0.99,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        return {"momentum": ta.Slot()}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: ta.Slots, lr: tf.Tensor, t: tf.Tensor) -> ta.Step:
        c = ta.running_mean(s["momentum"], g, self.beta_1, t)
        return -lr * tf.sign(c), {"momentum": ta.running_mean(s["momentum"], g, self.beta_2, t)}

    @ta.in_place(exact=True, serves=ta.remembers("beta_1", "beta_2"))
    def kernel(
        self, g: tf.Tensor, w: tf.Variable, s: ta.SlotVariables, lr: tf.Tensor, t: tf.Tensor
    ) -> None:
        m = s["momentum"]
        diff = g - m.value()
        c = m.value() + (1 - ta.current(self.beta_1, t)) * diff
        descend(tf.sign(c), w, s, lr, momentum=None, nesterov=False)
        with tf.control_dependencies([c]):  # so that nothing has the momentum's memory any more
            less = ta.current(self.beta_2, t) - 1
            descend(diff, m, s, less, momentum=None, nesterov=False)
