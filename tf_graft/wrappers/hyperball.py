"""Hyperball: any optimizer, with the norms of matrices and the lengths of their steps fixed."""

import math
from typing import Any, Unpack

import tensorflow as tf

from tf_graft.core.arguments.declared import OptionalPatterns
from tf_graft.core.arguments.options import Common
from tf_graft.core.arguments.registry import register
from tf_graft.core.state.point import Point
from tf_graft.core.state.slots import NOT_NEGATIVE, Slot
from tf_graft.core.tensors import numerics
from tf_graft.core.types import RateLike, VariableLike
from tf_graft.wrappers.of_norms import OfNorms


@register
class Hyperball(OfNorms):
    """Keeps the norm of each weight matrix, and takes steps relative to this norm.

    ```
    radius = ||w||                                   when the optimizer is built
    d = the optimizer's step, without weight decay
    v = w + learning_rate * radius * d / ||d|| - learning_rate * weight_decay * w
    w <- radius * v / ||v||
    ```

    It acts on variables of at least two axes, but for embeddings and single numbers, which could
    only change their sign; the norm is over all entries. All other variables get the optimizer's
    own steps. The learning rate is relative to the weights:
    0.01 moves them by a hundredth of their norm, whatever the optimizer's own steps would be. Do
    not use it around an optimizer that finds the length of its steps itself, such as `Prodigy`.

    Weight decay cannot shorten the weights: it makes the effective learning rate `learning_rate /
    (1 - learning_rate * weight_decay)`, and that only. After a step of zero the weights are the
    same but for rounding. Weights that are all zero when the optimizer is built, or whose norm is
    above 1e18 in float32, have no radius, and get the optimizer's own steps; NVIDIA's program
    refuses zeros. That program measures the radius again before each step, after weight decay, so
    that the norm shrinks with it unless you give the radius; here it is the first norm, as in the
    paper. For another radius, scale the weights before you build the optimizer.

    Args:
        optimizer: an optimizer of tf_graft or Keras, a name or a config.
        exclude_from_hyperball: regular expressions; a variable whose path contains a match gets the
            optimizer's own steps. None means embeddings.
        learning_rate: replaces the optimizer's learning rate, if not None.
        **common: see `tf_graft.algorithm.Common`; those given to the optimizer are taken over.

    Row-sparse gradients: a variable that is not left out gets its gradient as a dense one, because
    the norms are over all rows.

    Example:
        >>> from tf_graft.optimizers import SGD
        >>> w = tf.Variable([[3.0, 4.0]])  # of norm 5: a step of rate 0.75 is 3.75 long
        >>> Hyperball(SGD(0.75)).apply([tf.constant([[-80.0, 60.0]])], [w])
        >>> [round(x, 3) for x in w.numpy()[0].tolist()]
        [4.8, 1.4]

    Reference:
        Wen et al., 2026, "Fantastic pretraining optimizers and where to find them II: hyperball
        optimization" (arXiv 2606.16899).
    """

    def __init__(
        self,
        optimizer: Any,
        exclude_from_hyperball: OptionalPatterns = None,
        learning_rate: RateLike | None = None,
        **common: Unpack[Common],
    ):
        super().__init__(optimizer, learning_rate, **common)

    @property
    def exclusions(self) -> OptionalPatterns:
        return self.exclude_from_hyperball

    def slots_for(self, path: str) -> dict[str, Slot]:
        radius = {"radius": Slot(_norm, "scalar", within=NOT_NEGATIVE)}
        return (radius if self.acts_on(path) else {}) | super().slots_for(path)

    def with_decay(self, p: Point, d: tf.Tensor) -> tf.Tensor:
        # on the sphere, decay is a part of the step
        return d if self.acts_on(p.path) else super().with_decay(p, d)

    def reshaped(self, p: Point, d: tf.Tensor) -> tf.Tensor:
        radius, length = tf.convert_to_tensor(p.s["radius"]), numerics.length(d)
        # scalars are chosen, as DTensor cannot choose between tensors by a scalar
        lies, one = radius > 0, tf.ones_like(radius)
        factor = tf.where(lies, numerics.quotient(self.step_rate(p) * radius, length), one)
        v = p.w + super().with_decay(p, numerics.product(d, factor))
        scale = tf.where(lies, numerics.quotient(radius, numerics.length(v)), one)
        return numerics.product(v, scale) - p.w


def _norm(variable: VariableLike) -> tf.Tensor:
    """Returns the norm of a variable; 0 if the squares of a few such norms would overflow."""
    w = tf.convert_to_tensor(variable)
    length = numerics.length(tf.cast(w, numerics.compute_dtype(w.dtype)))
    return tf.where(length < math.sqrt(length.dtype.max) / 16, length, 0)
