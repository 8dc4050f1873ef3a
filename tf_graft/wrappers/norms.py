"""Wrappers that reshape steps by the norms of weight matrices: Hyperball and RadialBrake."""

import math
from collections.abc import Sequence
from typing import Any, Unpack

import tensorflow as tf

from tf_graft.compose.wrapper import Reshaping
from tf_graft.core import patterns
from tf_graft.core.arguments.declared import AtLeastZero, Fraction, OptionalPatterns
from tf_graft.core.arguments.options import Common
from tf_graft.core.arguments.registry import register
from tf_graft.core.state.point import Point
from tf_graft.core.state.slots import NOT_NEGATIVE, Slot
from tf_graft.core.tensors import numerics
from tf_graft.core.types import RateLike, VariableLike


class OfNorms(Reshaping):
    """A wrapper that reshapes the steps of matrices by their norms, over all entries.

    It acts on variables that have at least two axes and more than one entry, except those that
    `exclusions` match; if `exclusions` is None, these are embeddings. All other variables get the
    optimizer's own steps. A variable that it acts on gets a row-sparse gradient as a dense one.
    """

    def __init__(
        self, optimizer: Any, learning_rate: RateLike | None = None, **common: Unpack[Common]
    ):
        super().__init__(optimizer, learning_rate, **common)
        self.idle, self.rowwise = False, False  # scaling can round the weights

    @property
    def exclusions(self) -> Sequence[str] | None:
        """Patterns of paths of variables that get the optimizer's own steps; None: embeddings."""
        raise NotImplementedError

    def of_matrix(self, p: Point, d: tf.Tensor) -> tf.Tensor:
        """Returns the step of a matrix, made of the optimizer's, both without weight decay."""
        raise NotImplementedError

    def reshaped(self, p: Point, d: tf.Tensor) -> tf.Tensor:
        return self.of_matrix(p, d) if self.acts_on(p.path) else d

    def acts_on(self, path: str) -> bool:
        """Returns whether the steps of a variable are reshaped."""
        excluded = patterns.EMBEDDINGS if self.exclusions is None else self.exclusions
        shape = self.rule.shapes[path]
        return len(shape) > 1 and math.prod(shape) > 1 and not patterns.matches(path, excluded)

    def whole(self, path: str) -> bool:
        return super().whole(path) or self.acts_on(path)


@register
class Hyperball(OfNorms):
    """Keeps the norm of each weight matrix, and takes steps relative to this norm.

    ```
    radius = ||w||                                   when the optimizer is built
    d = the optimizer's step, without weight decay
    v = w + learning_rate * radius * d / ||d|| - learning_rate * weight_decay * w
    w <- radius * v / ||v||
    ```

    It acts on variables of at least two axes, except embeddings and single numbers, which could
    only change their sign; the norm is over all entries. All other variables get the optimizer's
    own steps. The learning rate is relative to the weights: 0.01 moves them by a hundredth of their
    norm, whatever the optimizer's own steps would be. Do not use it around an optimizer that finds
    the length of its steps itself, such as `Prodigy`.

    Weight decay cannot shorten the weights: it makes the effective learning rate `learning_rate /
    (1 - learning_rate * weight_decay)`, and does nothing else. After a step of zero the weights are
    the same except for rounding. Weights that are all zero when the optimizer is built, or whose
    norm is above 1e18 in float32, have no radius, and get the optimizer's own steps; NVIDIA's
    program refuses zeros. That program measures the radius again before each step, after weight
    decay, so that weight decay shrinks the norm unless you give the radius; here the radius is the
    first norm, as in the paper. For another radius, scale the weights before you build the
    optimizer.

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

    def of_matrix(self, p: Point, d: tf.Tensor) -> tf.Tensor:
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

    Where `floor` is above 0, the learning rate is relative to the weights: `d` is at least
    `learning_rate * floor` times as long as they are. 0.3825 is the value of the record below, for
    Muon. Weight decay acts on the weights after that, if it is the optimizer's own.

    It acts on variables of at least two axes, except embeddings and single numbers; the norm is
    over all entries. All other variables get the optimizer's own steps, and so do weights that are
    all zero. Do not use it around an optimizer that finds the length of its steps itself, such as
    `Prodigy`.

    Args:
        optimizer: an optimizer of tf_graft or Keras, a name or a config.
        outward: the share, from 0 to 1, that is kept of the part of a step that lengthens the
            weights.
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

    def of_matrix(self, p: Point, d: tf.Tensor) -> tf.Tensor:
        norm = numerics.length(p.w)
        # scalars are chosen, as DTensor cannot choose between tensors by a scalar
        lies = (norm > 0) & tf.math.is_finite(norm)
        zero, one = tf.zeros_like(norm), tf.ones_like(norm)
        unit = numerics.quotient(p.w, norm)
        along = numerics.quotient(tf.reduce_sum(d * unit), norm)
        share = tf.where(lies & (along > 0), (1 - self.outward) * along, zero)
        d -= numerics.product(p.w, share)
        length = numerics.length(d)
        least = self.step_rate(p) * self.floor * norm
        short = lies & (length > 0) & (length < least)
        d = numerics.product(d, tf.where(short, numerics.quotient(least, length), one))
        v = p.w + d
        radius = tf.maximum(norm + tf.reduce_sum(d * unit), zero)
        scale = tf.where(lies, numerics.quotient(radius, numerics.length(v)), one)
        return numerics.product(v, scale) - p.w
