"""Row-wise Adagrad: one accumulator for each row, for large embeddings."""

import math
from typing import Unpack

import tensorflow as tf

from tf_graft import algorithm as ta


@ta.register
class RowWiseAdagrad(ta.Optimizer):
    """Row-wise Adagrad: Adagrad with one sum for each row, of the row's mean squared gradient.

    ```
    a <- a + mean(g^2)                                over each row
    w <- w - learning_rate * g / (sqrt(a) + epsilon)
    ```

    A table of rows of 64 weights keeps one number more for each row, where Adagrad keeps 64. This
    is the "exact row-wise Adagrad" of FBGEMM and TorchRec. A bias has rows of one entry.

    Args:
        learning_rate: number, at least 0, or schedule.
        initial_accumulator_value: the sums at the start.
        epsilon: a term added to the root.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: the same as the equal dense gradient, at the cost of the touched rows.

    Example:
        >>> w = tf.Variable([[1.0, 1.0], [1.0, 1.0]])
        >>> gradient = tf.IndexedSlices(tf.constant([[7.0, 1.0]]), tf.constant([1]))
        >>> RowWiseAdagrad(0.5).apply([gradient], [w])  # the mean of 49 and 1 is 5^2
        >>> [[round(x, 3) for x in row] for row in w.numpy().tolist()]
        [[1.0, 1.0], [0.3, 0.9]]

    Reference:
        Gupta et al., 2014, "Training highly multiclass classifiers", section 3.2 (one rate for the
        parameters of a class); Mudigere et al., 2022, "Software-hardware co-design for fast and
        scalable training of deep learning recommendation models" (arXiv 2104.05158).
    """

    idle = True

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.01,
        initial_accumulator_value: ta.AtLeastZero = 0.0,
        epsilon: ta.AboveZero = 1e-8,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        fill = self.initial_accumulator_value
        return {"accumulator": ta.Slot(fill, shape="rows", within=ta.NOT_NEGATIVE)}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: ta.Slots, lr: tf.Tensor, t: tf.Tensor) -> ta.Step:
        # A graph would turn a division into this product. Rows may have no entries.
        per_entry = 1 / max(1, math.prod(w.shape[1:]))
        a = s["accumulator"] + tf.reduce_sum(g * g, list(range(1, g.shape.rank))) * per_entry
        rate = lr / ta.of_rows(tf.sqrt(a) + self.epsilon, g)
        return -rate * g, {"accumulator": a}
