"""NovoGrad: momentum of gradients that are normalized layer by layer."""

from typing import Any, Unpack

import tensorflow as tf

from tf_graft import algorithm as ta


@ta.register
class NovoGrad(ta.Optimizer):
    """NovoGrad: divides each variable's gradient by its root mean squared norm, and adds momentum.

    ```
    v <- beta2 * v + (1 - beta2) * ||g||^2           v = ||g||^2 at first
    u  = g / sqrt(v + epsilon) + weight_decay * w
    m <- beta1 * m + u                               grad_averaging: (1 - beta1) * u
    w <- w - learning_rate * m
    ```

    `v` is one number for each variable. "At first" means at the first gradient that is not zero.
    Weight decay is part of the momentum, unlike the common `weight_decay` of other optimizers, and
    follows `exclude_from_weight_decay`.

    Difference from OpenSeq2Seq's: OpenSeq2Seq never stored `v`, so it was `||g||^2` at every step.
    Difference from TensorFlow Addons': with `grad_averaging` the first `u` is not multiplied there.

    Args:
        learning_rate: number, at least 0, or schedule.
        beta1: how much of the momentum is kept.
        beta2: decay of the average of squared norms.
        epsilon: a term inside the root.
        weight_decay: decay inside the step, as in the equation.
        grad_averaging: whether `m` is an average, not a sum.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: the norm is taken over the whole gradient. With `sparse="lazy"` untouched
    rows do not decay, and their momentum stays as it is.

    Example:
        >>> w = tf.Variable([1.0, 1.0])
        >>> NovoGrad(0.5).apply([tf.constant([3.0, 4.0])], [w])  # 1 - 0.5 * [3, 4] / 5
        >>> [round(x, 3) for x in w.numpy().tolist()]
        [0.7, 0.6]

    Reference:
        Ginsburg et al., 2019, "Stochastic gradient methods with layer-wise adaptive moments for
        training of deep networks" (arXiv 1905.11286), algorithm 1.
    """

    rowwise = False
    skips_zero_rows = True

    def __init__(  # type: ignore[misc]  # a common argument with a default of its own
        self,
        learning_rate: ta.RateLike = 1.0,
        beta1: ta.BelowOne = 0.95,
        beta2: ta.BelowOne = 0.98,
        epsilon: ta.AboveZero = 1e-8,
        weight_decay: ta.AtLeastZero = 0.0,
        grad_averaging: ta.Flag = False,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, weight_decay=weight_decay, **common)

    def slots(self) -> dict[str, ta.Slot]:
        return {
            "momentum": ta.Slot(),
            "squared_norm": ta.Slot(shape="scalar", within=ta.NOT_NEGATIVE),
        }

    def decayed(self, p: ta.Point, d: tf.Tensor) -> tf.Tensor:
        return d  # `step` applies the weight decay

    def traits(self, path: str) -> dict[str, Any]:
        return {"decay": self.weight_decay if self.rule.decays(path) else 0.0}

    def step(
        self,
        g: tf.Tensor,
        w: tf.Tensor,
        s: ta.Slots,
        lr: tf.Tensor,
        t: tf.Tensor,
        decay: float = 0.0,
    ) -> ta.Step:
        norm = ta.length(g)
        average = self.beta2 * s["squared_norm"] + (1 - self.beta2) * norm * norm
        v = tf.where(s["squared_norm"] > 0, average, norm * norm)
        u = ta.quotient(g, tf.sqrt(v + self.epsilon))
        if decay:
            u += decay * w
        if self.grad_averaging:
            u = (1 - self.beta1) * u
        m = self.beta1 * s["momentum"] + u
        return -lr * m, {"momentum": m, "squared_norm": v}
