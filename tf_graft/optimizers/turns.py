"""The turns in which the matrices of an optimizer are refreshed, so that no update takes long."""

import collections
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

Batches = tuple[Any, ...]  # tensors whose first dimension counts matrices, and structures of them


class Turns(NamedTuple):
    """The turn of each matrix of a batch, from 0: a matrix is refreshed when its turn comes.

    Args:
        each: the turn of each matrix.
    """

    each: tuple[int, ...]

    @property
    def some(self) -> list[int]:
        """The turns that matrices have, ascending."""
        return sorted({*self.each})

    @property
    def alike(self) -> bool:
        """Whether all matrices have the same turn."""
        return len(self.some) == 1

    def due(self, turn: tf.Tensor) -> tf.Tensor:
        """Returns whether any matrix has this turn."""
        return tf.reduce_any([tf.equal(turn, each) for each in self.some])

    def refreshed(
        self, turn: tf.Tensor, compute: Callable[..., Any], given: Batches, before: Batches
    ) -> Any:
        """Returns `compute(*given, *before)` for the matrices of a turn, `before` for the others.

        Shapes are static: in a turn with fewer matrices than another turn has, one of them is
        computed several times.

        Args:
            turn: one of the turns that matrices have.
            compute: computes the results of any number of matrices. The result of each matrix
                depends only on its own entries in the arguments. The results have the structure of
                `before`.
            given: the arguments of `compute` for all matrices.
            before: the previous results for all matrices, which are arguments, too.
        """
        if self.alike:
            return compute(*given, *before)
        place = tf.reduce_sum([tf.cast(turn > each, tf.int32) for each in self.some[:-1]])
        taken, back = (tf.gather(tf.constant(table), place) for table in self._tables())
        batches = tf.nest.map_structure(lambda x: tf.gather(x, taken), (*given, *before))
        return tf.nest.map_structure(
            lambda new, old: tf.gather(tf.concat([new, old], 0), back), compute(*batches), before
        )

    def _tables(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns for each turn which matrices are computed, and where each one is afterwards.

        The latter counts the computed matrices first, then all as they were before.
        """
        due = [[i for i, its in enumerate(self.each) if its == turn] for turn in self.some]
        width = max(map(len, due))
        back = np.tile(np.arange(len(self.each), dtype=np.int32) + width, [len(due), 1])
        for row, matrices in zip(back, due, strict=True):
            row[matrices] = range(len(matrices))
        taken = [matrices + matrices[-1:] * (width - len(matrices)) for matrices in due]
        return np.array(taken, np.int32), back


def places(shapes: Mapping[str, tuple[int, ...]], counts: Mapping[str, int]) -> dict[str, range]:
    """Returns the places of each variable's matrices in the order of turns, by path.

    Matrices of variables of one shape, which take equally long, come one after the other. Those of
    the next shape begin a place later for each of these variables, so that the place of a matrix
    does not depend on which variables are trained.

    Args:
        shapes: the shapes of all variables by path, also of those that have no matrices.
        counts: the numbers of matrices of those that have some.
    """
    alike = collections.defaultdict(list)
    for path, shape in shapes.items():
        alike[shape].append(path)
    found, first = {}, 0
    for paths in alike.values():
        for i, path in enumerate(paths):
            if path in counts:
                start = first + i * counts[path]
                found[path] = range(start, start + counts[path])
        first += len(paths)
    return found
