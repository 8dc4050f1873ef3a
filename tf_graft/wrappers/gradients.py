"""Wrappers that change the gradient of each unit of a variable before the optimizer gets it."""

import math
from typing import Any, Unpack

import tensorflow as tf

from tf_graft.compose.wrapper import Around
from tf_graft.core import patterns
from tf_graft.core.arguments.declared import AboveZero, OptionalPatterns
from tf_graft.core.arguments.options import Common
from tf_graft.core.arguments.registry import register
from tf_graft.core.state.point import Point
from tf_graft.core.tensors import numerics
from tf_graft.core.types import RateLike


@register
class AdaptiveGradientClipping(Around):
    """AGC: clips the gradient of each unit by the norm of the unit's weights.

    ```
    largest = clipping * max(||w||, epsilon)         of each unit
    g <- g * largest / ||g||                         where ||g|| > largest
    ```

    A unit is one output: a column of a dense kernel, a filter of a convolution. For variables of
    three axes, such as kernels of attention, the norms are over the first axis; of a bias or a
    scalar they are over the whole variable. For embeddings a unit is a row, so that the cost
    follows the touched rows.

    Args:
        optimizer: an optimizer of tf_graft or Keras, a name or a config.
        clipping: the largest ratio of the two norms.
        epsilon: a lower limit for the norm of the weights, so that weights that start at zero can
            move.
        by_row: regular expressions; in a variable whose path contains a match, a unit is a row.
            None means embeddings.
        exclude_from_clipping: regular expressions; a variable whose path contains a match is not
            clipped. The paper excludes the last layer.
        learning_rate: replaces the optimizer's learning rate, if not None.
        **common: see `tf_graft.algorithm.Common`; those given to the optimizer are taken over.

    Row-sparse gradients: for embeddings each touched row is clipped by itself. Other variables get
    their gradient as a dense one, because their units span the rows.

    Example:
        >>> from tf_graft.optimizers import SGD
        >>> w = tf.Variable([[3.0, 0.0], [4.0, 0.0]])  # norms 5, and 0 which counts as 1
        >>> optimizer = AdaptiveGradientClipping(SGD(1.0), clipping=0.1, epsilon=1.0)
        >>> optimizer.apply([tf.constant([[0.0, 8.0], [1.0, 6.0]])], [w])
        >>> [[round(x, 2) for x in row] for row in w.numpy().tolist()]
        [[3.0, -0.08], [3.5, -0.06]]

    Reference:
        Brock et al., 2021, "High-performance large-scale image recognition without normalization"
        (arXiv 2102.06171), equation 3.
    """

    def __init__(
        self,
        optimizer: Any,
        clipping: AboveZero = 0.01,
        epsilon: AboveZero = 1e-3,
        by_row: OptionalPatterns = None,
        exclude_from_clipping: OptionalPatterns = None,
        learning_rate: RateLike | None = None,
        **common: Unpack[Common],
    ):
        super().__init__(optimizer, learning_rate, **common)
        self.rowwise = False

    def whole(self, path: str) -> bool:
        return super().whole(path) or not (self._by_row(path) or self._excluded(path))

    def inner(self, p: Point) -> Point:
        inner = super().inner(p)
        if self._excluded(p.path):
            return inner
        axes = [*range(1, p.w.shape.rank)] if self._by_row(p.path) else unit_axes(p.w.shape.rank)
        largest = self.clipping * tf.maximum(numerics.norms(p.w, axes), self.epsilon)
        return inner._replace(g=numerics.limited(p.g, numerics.norms(p.g, axes), largest))

    def _by_row(self, path: str) -> bool:
        return patterns.matches(path, patterns.EMBEDDINGS if self.by_row is None else self.by_row)

    def _excluded(self, path: str) -> bool:
        return patterns.matches(path, self.exclude_from_clipping or ())


@register
class GradientCentralization(Around):
    """Subtracts its mean from the gradient of each unit, that is, of each output.

    ```
    g <- g - mean(g)                                 over all axes but the last
    ```

    It acts on kernels of dense layers and convolutions: variables of at least two axes, except
    embeddings. A kernel whose units have one weight each, such as that of a dense layer with one
    input, keeps its gradient, because without its mean the gradient would be zero.

    Args:
        optimizer: an optimizer of tf_graft or Keras, a name or a config.
        exclude_from_centralization: regular expressions; a variable whose path contains a match is
            left out. None means embeddings.
        learning_rate: replaces the optimizer's learning rate, if not None.
        **common: see `tf_graft.algorithm.Common`; those given to the optimizer are taken over.

    Row-sparse gradients: a variable that is not left out gets its gradient as a dense one, because
    the mean is over the rows.

    Example:
        >>> from tf_graft.optimizers import SGD
        >>> w = tf.Variable([[1.0], [1.0]])
        >>> GradientCentralization(SGD(1.0)).apply([tf.constant([[3.0], [1.0]])], [w])
        >>> w.numpy().tolist()
        [[0.0], [2.0]]

    Reference:
        Yong et al., 2020, "Gradient centralization: a new optimization technique for deep neural
        networks" (arXiv 2004.01461), equation 1.
    """

    def __init__(
        self,
        optimizer: Any,
        exclude_from_centralization: OptionalPatterns = None,
        learning_rate: RateLike | None = None,
        **common: Unpack[Common],
    ):
        super().__init__(optimizer, learning_rate, **common)
        self.rowwise = False

    def whole(self, path: str) -> bool:
        return super().whole(path) or self._centers(path)

    def inner(self, p: Point) -> Point:
        inner = super().inner(p)
        if not self._centers(p.path):
            return inner
        axes = [*range(p.w.shape.rank - 1)]
        return inner._replace(g=p.g - tf.reduce_mean(p.g, axes, keepdims=True))

    def _centers(self, path: str) -> bool:
        """Returns whether the gradient of a variable loses its mean."""
        excluded, inputs = self.exclude_from_centralization, math.prod(self.rule.shapes[path][:-1])
        excluded = patterns.EMBEDDINGS if excluded is None else excluded
        return inputs > 1 and not patterns.matches(path, excluded)


def unit_axes(rank: int) -> list[int]:
    """Returns the axes that the norm of a unit is over, in a variable of `rank` axes."""
    if rank < 2:
        return [*range(rank)]
    return [0] if rank == 3 else [*range(rank - 1)]
