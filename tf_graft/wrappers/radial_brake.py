"""RadialBrake: any optimizer, whose steps lengthen weight matrices less, and are not too short."""

from typing import Any, Unpack

import tensorflow as tf

from tf_graft.core.arguments.declared import AtLeastZero, Fraction, OptionalPatterns
from tf_graft.core.arguments.options import Common
from tf_graft.core.arguments.registry import register
from tf_graft.core.state.point import Point
from tf_graft.core.tensors import numerics
from tf_graft.core.types import RateLike
from tf_graft.wrappers.of_norms import OfNorms


@register
class RadialBrake(OfNorms):
    """Slows the growth of each weight matrix, and keeps its steps at a length relative to it.

    ```
    d = the optimizer's step, without weight decay
    k = <d, w> / ||w||^2                            the part of d along the weights
    d <- d - (1 - outward) * k * w                  if k > 0, the part that lengthens them
    d <- d * learning_rate * floor * ||w|| / ||d||  if d is shorter than that
    r = ||w|| + <d, w> / ||w||
    w <- r * (w + d) / ||w + d||
    ```

    A step across the weights lengthens them, too, by a part of second order; the last line takes it
    away. So the norms change only by the part along the weights, of which `outward` lets through
    a share if it points outward. Steps that point inward shorten the weights as before.

    Where `floor` is above 0, the learning rate is relative to the weights: their direction changes
    by at least about `learning_rate * floor` in each update. 0.3825 is the value of the record
    below, for Muon. Weight decay acts on the weights after that, if it is the optimizer's own.

    It acts on variables of at least two axes, but for embeddings and single numbers; the norm is
    over all entries. All other variables get the optimizer's own steps, and so do weights that are
    all zero. Do not use it around an optimizer that finds the length of its steps itself, such as
    `Prodigy`.

    Args:
        optimizer: an optimizer of tf_graft or Keras, a name or a config.
        outward: the share, from 0 to 1, of the part of a step that lengthens the weights.
        floor: the least ratio of the step, at a learning rate of 1, to the weights; 0 for none.
        exclude_from_brake: regular expressions; a variable whose path contains a match gets the
            optimizer's own steps. None means embeddings.
        learning_rate: replaces the optimizer's learning rate, if not None.
        **common: see `tf_graft.algorithm.Common`; those given to the optimizer are taken over.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range.

    Row-sparse gradients: a variable that is not left out gets its gradient as a dense one, because
    the norms are over all rows.

    Example:
        >>> from tf_graft.optimizers import SGD
        >>> w = tf.Variable([[3.0, 0.0], [0.0, 4.0]])  # of norm 5
        >>> RadialBrake(SGD(1.0), outward=0.5).apply([tf.constant([[-0.6, 0.0], [0.0, -0.8]])], [w])
        >>> [[round(x, 3) for x in row] for row in w.numpy().tolist()]  # of norm 5.5, not 6
        [[3.3, 0.0], [0.0, 4.4]]

    Reference:
        Results 9 and 29 of the optimization benchmark of modded-nanogpt, 2026: "u/w-floor" and
        "radial brake" (github.com/KellerJordan/modded-nanogpt, records/track_3_optimization).
    """

    def __init__(
        self,
        optimizer: Any,
        outward: Fraction = 0.5,
        floor: AtLeastZero = 0.0,
        exclude_from_brake: OptionalPatterns = None,
        learning_rate: RateLike | None = None,
        **common: Unpack[Common],
    ):
        super().__init__(optimizer, learning_rate, **common)

    @property
    def exclusions(self) -> OptionalPatterns:
        return self.exclude_from_brake

    def reshaped(self, p: Point, d: tf.Tensor) -> tf.Tensor:
        norm = numerics.length(p.w)
        # scalars are chosen, as DTensor cannot choose between tensors by a scalar
        lies = (norm > 0) & tf.math.is_finite(norm)
        zero, one = tf.zeros_like(norm), tf.ones_like(norm)
        along = numerics.quotient(tf.reduce_sum(d * numerics.quotient(p.w, norm)), norm)
        share = tf.where(lies & (along > 0), (1 - self.outward) * along, zero)
        d -= numerics.product(p.w, share)
        length = numerics.length(d)
        least = self.step_rate(p) * self.floor * norm
        short = lies & (length > 0) & (length < least)
        d = numerics.product(d, tf.where(short, numerics.quotient(least, length), one))
        along = tf.reduce_sum(d * numerics.quotient(p.w, norm))
        v = p.w + d
        radius = tf.maximum(norm + along, zero)
        scale = tf.where(lies, numerics.quotient(radius, numerics.length(v)), one)
        return numerics.product(v, scale) - p.w
