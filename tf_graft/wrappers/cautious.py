"""Cautious optimizers, which make only that part of another optimizer's step that descends."""

import math
from typing import Any, Unpack

import tensorflow as tf

from tf_graft.compose.wrapper import Reshaping
from tf_graft.core.arguments.declared import AtLeastZero
from tf_graft.core.arguments.options import Common
from tf_graft.core.arguments.registry import register
from tf_graft.core.state.point import Point
from tf_graft.core.tensors import numerics
from tf_graft.core.types import RateLike

LARGEST = 1000  # the factor by which what is left of a step is lengthened, at most


@register
class Cautious(Reshaping):
    """Drops the entries of a step that point up the gradient, and lengthens the others.

    ```
    d     = the optimizer's step, without weight decay
    kept  = d * g < 0                                 0 or 1 for each entry
    w <- w + d * kept * size / (sum(kept) + xi) - learning_rate * weight_decay * w
    ```

    `size` is the number of entries of the variable. Momentum can point uphill; such entries are not
    updated. Weight decay, if it is the optimizer's own, acts on every entry; with
    `tf_graft.CautiousDecay`, it acts where the step above does not increase a weight's magnitude.
    The optimizer's slots are the same as without caution. The entries are lengthened by a factor of
    at most 1000.

    The authors use two values of `xi`: 0 in C-AdamW, and 1 in C-Lion, as in the paper. With 1 the
    step of a scalar is halved.
    Their C-Muon masks the momentum before it is made orthogonal; `Cautious(Muon())` masks the step.

    Args:
        optimizer: an optimizer of tf_graft or Keras, a name or a config.
        xi: a term added to the number of entries that are kept.
        learning_rate: replaces the optimizer's learning rate, if not None.
        **common: see `tf_graft.algorithm.Common`; those given to the optimizer are taken over.

    Row-sparse gradients: with `sparse="lazy"` `size` counts the entries of the touched rows. With a
    dense gradient that is zero in most rows, the others would take steps many times as long.

    Example:
        >>> from tf_graft.optimizers import SGD
        >>> w = tf.Variable([1.0, 1.0])
        >>> optimizer = Cautious(SGD(0.25, momentum=0.5))
        >>> optimizer.apply([tf.constant([2.0, 2.0])], [w])  # as without caution
        >>> w.numpy().tolist()
        [0.5, 0.5]
        >>> optimizer.apply([tf.constant([2.0, -0.5])], [w])  # the step is [-0.75, -0.125]
        >>> w.numpy().tolist()
        [-1.0, 0.5]

    Reference:
        Liang et al., 2024, "Cautious optimizers: improving training with one line of code" (arXiv
        2411.16085), algorithm 1.
    """

    skips_zero_rows = True

    def __init__(
        self,
        optimizer: Any,
        xi: AtLeastZero = 0.0,
        learning_rate: RateLike | None = None,
        **common: Unpack[Common],
    ):
        super().__init__(optimizer, learning_rate, **common)
        self.rowwise = False

    def reshaped(self, p: Point, d: tf.Tensor) -> tf.Tensor:
        descends = tf.logical_not(tf.sign(d) * tf.sign(p.g) >= 0)  # or is NaN, which is kept
        size, kept = _entries(p), tf.reduce_sum(tf.cast(descends, d.dtype))
        factor = numerics.quotient(size, tf.maximum(kept + self.xi, size / LARGEST))
        return tf.where(descends, numerics.product(d, factor), tf.zeros_like(d))


def _entries(p: Point) -> tf.Tensor:
    """Returns the number of entries of the variable, or of its touched rows."""
    if p.touched is None:
        return tf.cast(p.g.shape.num_elements() or tf.size(p.g), p.g.dtype)
    in_row = math.prod(p.g.shape[1:])
    return tf.reduce_sum(tf.cast(p.touched, p.g.dtype)) * in_row
