"""Row-wise Adam: one second moment for each row, for large embeddings."""

import math
from typing import Unpack

import tensorflow as tf

from tf_graft import algorithm as ta


@ta.register
class RowWiseAdam(ta.Optimizer):
    """Row-wise Adam: Adam with one second moment for each row, of the row's mean squared gradient.

    ```
    m <- beta_1 * m + (1 - beta_1) * g
    v <- beta_2 * v + (1 - beta_2) * mean(g^2)            over each row
    w <- w - learning_rate * m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + epsilon)
    ```

    A table of rows of 64 weights keeps 65 numbers for each row, where Adam keeps 128. This is the
    "partial row-wise Adam" of FBGEMM and TorchRec; with `beta_1=0` the momentum has no effect. A
    bias has rows of one entry, so it gets Adam's steps.

    Args:
        learning_rate: number, at least 0, or schedule.
        beta_1: decay of the momentum; number, schedule or `tf_graft.Settable`.
        beta_2: decay of the rows' mean squares.
        epsilon: a term added to the root.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: with `sparse="lazy"` untouched rows keep their weights and moments, as in
    FBGEMM; `t` counts the updates of the optimizer.

    Example:
        >>> w = tf.Variable([[1.0, 1.0], [1.0, 1.0]])
        >>> gradient = tf.IndexedSlices(tf.constant([[7.0, 1.0]]), tf.constant([1]))
        >>> RowWiseAdam(0.5).apply([gradient], [w])  # 0.5 * [7, 1] / sqrt(mean of 49 and 1)
        >>> [[round(x, 3) for x in row] for row in w.numpy().tolist()]
        [[1.0, 1.0], [0.3, 0.9]]

    Reference:
        Kingma and Ba, 2015, "Adam: a method for stochastic optimization" (arXiv 1412.6980), with
        the moments of Mudigere et al., 2022, "Software-hardware co-design for fast and scalable
        training of deep learning recommendation models" (arXiv 2104.05158).
    """

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.001,
        beta_1: ta.BelowOneOrSchedule = 0.9,
        beta_2: ta.BelowOne = 0.999,
        epsilon: ta.AboveZero = 1e-8,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        return {"momentum": ta.Slot(), "velocity": ta.Slot(shape="rows", within=ta.NOT_NEGATIVE)}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: ta.Slots, lr: tf.Tensor, t: tf.Tensor) -> ta.Step:
        within_row = list(range(1, g.shape.rank))
        m = ta.running_mean(s["momentum"], g, self.beta_1, t)
        # A graph would turn a division into this product. Rows may have no entries.
        per_entry = 1 / max(1, math.prod(w.shape[1:]))
        square = tf.reduce_sum(g * g, within_row, keepdims=True) * per_entry
        v = ta.running_mean(ta.of_rows(s["velocity"], g), square, self.beta_2, t)
        root = tf.sqrt(ta.quotient(v, ta.one_minus_power(self.beta_2, t))) + self.epsilon
        rate = ta.quotient(lr, ta.one_minus_power(self.beta_1, t))
        new = {"momentum": m, "velocity": tf.reduce_sum(v, within_row)}  # of one entry each
        return -ta.quotient(rate, root) * m, new
