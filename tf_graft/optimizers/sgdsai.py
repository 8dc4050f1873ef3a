"""SGD-SaI: momentum, with a learning rate for each variable that its first gradient sets."""

import math
from typing import Any, Unpack

import tensorflow as tf

from tf_graft import algorithm as ta


@ta.register
class SGDSaI(ta.Optimizer):
    """SGD-SaI: momentum that scales each variable's learning rate once, by its first gradient.

    ```
    r = ||g|| / (std(g) + epsilon),  m = g                   at first
    m <- m + (1 - momentum) * (g - m)                        later
    w <- w - learning_rate * r * m
    ```

    `r` is one number for each variable, the ratio of signal to noise, and never changes. The
    optimizer keeps half as many numbers as Adam. "At first" means at the first gradient that is not
    zero. `std` is the standard deviation of the entries, with n - 1. If their mean is near zero,
    `r` is about the root of the number of entries. A variable with a single entry has no deviation;
    its `r` is 1.

    Differences from the authors' program: there the `r` of a single entry is `||g|| / epsilon`, and
    a variable whose first gradient is zero keeps an `r` of zero. From version 1.0.4 on, that
    program divides all `r` by the largest one; here, divide the learning rate instead.

    Args:
        learning_rate: number, at least 0, or schedule.
        momentum: decay of the mean of gradients.
        epsilon: a term added to the deviation.
        **common: see `tf_graft.algorithm.Common`; the paper trains with weight decay.

    Row-sparse gradients: norm and deviation are taken over the whole gradient, as if it were dense.
    With `sparse="lazy"` untouched rows keep their mean and do not move; the mean of a row that is
    first touched later starts at zero.

    Example:
        >>> w = tf.Variable([1.0, 1.0])
        >>> SGDSaI(0.1).apply([tf.constant([4.0, 2.0])], [w])  # 0.1 * sqrt(20) / sqrt(2) * g
        >>> [round(x, 3) for x in w.numpy().tolist()]
        [-0.265, 0.368]

    Reference:
        Xu et al., 2024, "No more Adam: learning rate scaling at initialization is all you need"
        (arXiv 2412.11768), algorithm 1.
    """

    rowwise = False
    skips_zero_rows = True

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.01,
        momentum: ta.BelowOne = 0.9,
        epsilon: ta.AboveZero = 1e-8,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        return {
            "momentum": ta.Slot(),
            "signal_to_noise": ta.Slot(shape="scalar", within=ta.NOT_NEGATIVE),
        }

    def traits(self, path: str) -> dict[str, Any]:
        return {"entries": math.prod(self.rule.shapes[path])}

    def step(
        self,
        g: tf.Tensor,
        w: tf.Tensor,
        s: ta.Slots,
        lr: tf.Tensor,
        t: tf.Tensor,
        entries: int = 0,
    ) -> ta.Step:
        measured = s["signal_to_noise"] > 0
        r = tf.where(measured, s["signal_to_noise"], self._signal_to_noise(g, entries))
        fresh = tf.where(measured, tf.constant(1 - self.momentum, g.dtype), 1.0)
        m = s["momentum"] + fresh * (g - s["momentum"])
        return -lr * r * m, {"momentum": m, "signal_to_noise": r}

    def _signal_to_noise(self, g: tf.Tensor, entries: int) -> tf.Tensor:
        """Returns the ratio for a gradient, or for its touched rows; 0 for a gradient of zeros."""
        norm = ta.length(g)
        if entries < 2:
            return tf.cast(norm > 0, g.dtype)
        mean = ta.quotient(tf.reduce_sum(g), entries)
        given = tf.size(g) if g.shape.num_elements() is None else g.shape.num_elements()
        untouched = tf.cast(entries - given, g.dtype)  # less than none if zeros pad the rows
        deviation = tf.square(ta.length(g - mean)) + untouched * mean * mean
        return ta.quotient(norm, tf.sqrt(ta.quotient(deviation, entries - 1)) + self.epsilon)
