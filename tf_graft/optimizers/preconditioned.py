"""The base class of optimizers that precondition the sides of matrices."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tf_graft.algorithm import MatrixOptimizer
from tf_graft.optimizers import jacobi
from tf_graft.optimizers.factors import Blocks
from tf_graft.optimizers.roots import Eigenvectors

LARGEST = 2**32  # bytes; the eigenvectors of a larger matrix take hours


class Preconditioned(MatrixOptimizer):
    """An optimizer that keeps a square matrix for each side of each weight matrix.

    Attributes:
        limit: the argument that limits the size of these matrices.
    """

    limit: ClassVar[str]

    def sides_of(self, size: Sequence[int]) -> tuple[str, ...]:
        """Returns the sides of matrices of a size, `Axes.size`, that have preconditioners."""
        raise NotImplementedError

    def blocks(self, size: Sequence[int]) -> Blocks:
        """Returns the blocks of matrices of a size."""
        raise NotImplementedError

    def prepare(self, variables: Mapping[str, Any]) -> None:
        super().prepare(variables)
        for path, axes in self.axes_by_path.items():
            if axes is not None:
                for side in self.sides_of(axes.size):
                    self._check_size(path, side, self.blocks(axes.size).length(side))

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
