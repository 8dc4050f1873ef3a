"""The base class of wrappers that reshape steps by the norms of weight matrices."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Unpack

import tensorflow as tf

from tf_graft.compose.wrapper import Around
from tf_graft.core import patterns
from tf_graft.core.arguments.options import Common
from tf_graft.core.state.point import Point, Step, under
from tf_graft.core.types import RateLike


class OfNorms(Around):
    """A wrapper that reshapes the steps of matrices by their norms, over all entries.

    It acts on variables of at least two axes, but for embeddings, or what `exclusions` say in their
    place, and single numbers. All other variables get the optimizer's own steps. A variable that it
    acts on gets a row-sparse gradient as a dense one.
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

    def reshaped(self, p: Point, d: tf.Tensor) -> tf.Tensor:
        """Returns the step that is made of the optimizer's, which contains no weight decay."""
        raise NotImplementedError

    def acts_on(self, path: str) -> bool:
        """Returns whether the steps of a variable are reshaped."""
        excluded = patterns.EMBEDDINGS if self.exclusions is None else self.exclusions
        shape = self.rule.shapes[path]
        return len(shape) > 1 and math.prod(shape) > 1 and not patterns.matches(path, excluded)

    def whole(self, path: str) -> bool:
        return super().whole(path) or self.acts_on(path)

    def propose(self, points: Iterable[Point]) -> Iterator[Step]:
        points, given = itertools.tee(points)
        steps = self.optimizer.propose(self.inner(p)._replace(bare=True) for p in given)
        for p, (d, slots) in zip(points, steps, strict=True):
            if self.acts_on(p.path):
                d = self.reshaped(p, d)
            yield d if p.bare else self.with_decay(p, d), under("optimizer", slots)
