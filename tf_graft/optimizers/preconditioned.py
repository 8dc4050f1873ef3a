"""The base class of optimizers that precondition the sides of matrices."""

import types
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tf_graft.algorithm import MatrixOptimizer, Slots
from tf_graft.optimizers import factors, jacobi, turns
from tf_graft.optimizers.factors import Blocks
from tf_graft.optimizers.roots import Eigenvectors
from tf_graft.optimizers.turns import Turns

LARGEST = 2**32  # bytes; the eigenvectors of a larger matrix take hours


class Preconditioned(MatrixOptimizer):
    """An optimizer that keeps a square matrix for each side of each weight matrix.

    Attributes:
        limit: the argument that limits the size of these matrices.
        precondition_frequency: the number of updates in which each matrix is refreshed once.
        spread: whether the matrices are refreshed in turns, or all in one update.
    """

    limit: ClassVar[str]
    divided_from = 512  # for smaller ones the gathers cost what the division saves
    precondition_frequency: int
    spread: bool
    _places: Mapping[str, range] = types.MappingProxyType({})

    def sides_of(self, size: Sequence[int]) -> tuple[str, ...]:
        """Returns the sides of matrices of a size, `Axes.size`, that have preconditioners."""
        raise NotImplementedError

    def blocks(self, size: Sequence[int]) -> Blocks:
        """Returns the blocks of matrices of a size."""
        raise NotImplementedError

    def moment(self, g: tf.Tensor, side: str, s: Slots, t: tf.Tensor) -> tf.Tensor:
        """Returns the second moments of one side of gradients.

        Args:
            g: the gradients, of shape `[n, *block]`.
            side: the side.
            s: the slots before the update.
            t: the number of the update, from 1.
        """
        return factors.second_moment(g, side)

    def prepare(self, variables: Mapping[str, Any]) -> None:
        super().prepare(variables)
        blocks = {p: self.blocks(axes.size) for p, axes in self.axes_by_path.items() if axes}
        for path, its in blocks.items():
            for side in self.sides_of((its.matrices, *its.sides)):
                self._check_size(path, side, its.length(side))
        counts = {path: its.number for path, its in blocks.items()}
        self._places = turns.places(self._shapes(variables), counts)

    def _shapes(self, variables: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of all variables with several axes, of frozen layers, too, by path."""
        of_models = {v.path: v for model in self.rule.models for v in model.weights}
        shapes = {path: tuple(v.shape) for path, v in {**of_models, **variables}.items()}
        return {path: shape for path, shape in shapes.items() if len(shape) > 1}

    def turns_of(self, paths: Sequence[str]) -> Turns:
        """Returns the turns of the matrices of some variables, or of blocks of them."""
        period = self.precondition_frequency if self.spread else 1
        return Turns(tuple(place % period for path in paths for place in self._places[path]))

    def _check_size(self, path: str, side: str, length: int) -> None:
        size = 4 * length * length
        if size > LARGEST:
            raise ValueError(
                f"{type(self).__name__}({self.limit}={getattr(self, self.limit)}): a "
                f"preconditioner of the {length:,} {side} of '{path}' takes {size:,} bytes, and "
                f"may take at most {LARGEST:,}; set a smaller {self.limit}."
            )

    @property
    def eigenvectors(self) -> Eigenvectors:
        """The function that computes eigenvalues, ascending, and eigenvectors."""
        return tf.linalg.eigh if self.mesh is None else jacobi.eigenvectors
