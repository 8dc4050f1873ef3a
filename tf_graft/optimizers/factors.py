"""The sides of matrices: blocks, second moments, and products with one matrix for each side."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

INPUTS, OUTPUTS = "inputs", "outputs"
BOTH = (INPUTS, OUTPUTS)
Sides = dict[str, tf.Tensor]  # one batch of matrices for each side that has them


class Blocks(NamedTuple):
    """How matrices of one size are divided into blocks of one size, the last padded with zeros.

    Args:
        matrices: the number of matrices.
        sides: the rows and columns of each.
        block: the rows and columns of a block.
    """

    matrices: int
    sides: tuple[int, int]
    block: tuple[int, int]

    @classmethod
    def of(cls, size: Sequence[int], largest: int | None) -> "Blocks":
        """Returns the division into blocks with sides of at most `largest`; None: no division.

        Args:
            size: the number of matrices, and the rows and columns of each.
            largest: the longest side of a block.
        """
        matrices, *sides = size
        rows, columns = (side if largest is None else min(side, largest) for side in sides)
        return cls(matrices, (sides[0], sides[1]), (rows, columns))

    @property
    def counts(self) -> tuple[int, int]:
        """How many blocks there are along each side."""
        rows, columns = (
            math.ceil(n / b) if n else 1 for n, b in zip(self.sides, self.block, strict=True)
        )
        return rows, columns

    @property
    def number(self) -> int:
        """The number of blocks of all matrices."""
        return self.matrices * math.prod(self.counts)

    def length(self, side: str) -> int:
        """Returns the length of a side of each block."""
        return self.block[BOTH.index(side)]

    def squares(self, side: str) -> tuple[int, int, int]:
        """Returns the shape of square matrices, one for each block, as long as one of its sides."""
        return self.number, self.length(side), self.length(side)

    def split(self, m: tf.Tensor) -> tf.Tensor:
        """Returns the blocks of matrices `[matrices, *sides]`, of shape `[number, *block]`."""
        if self.number == self.matrices:
            return m
        (rows, columns), (r, c) = self.counts, self.block
        more = [k * b - n for n, k, b in zip(self.sides, self.counts, self.block, strict=True)]
        m = tf.pad(m, [[0, 0], [0, more[0]], [0, more[1]]])
        m = tf.transpose(tf.reshape(m, [self.matrices, rows, r, columns, c]), [0, 1, 3, 2, 4])
        return tf.reshape(m, [self.number, r, c])

    def joined(self, blocks: tf.Tensor) -> tf.Tensor:
        """Returns the matrices of blocks: the inverse of `split`."""
        if self.number == self.matrices:
            return blocks
        (rows, columns), (r, c) = self.counts, self.block
        m = tf.reshape(blocks, [self.matrices, rows, columns, r, c])
        m = tf.reshape(tf.transpose(m, [0, 1, 3, 2, 4]), [self.matrices, rows * r, columns * c])
        return m[:, : self.sides[0], : self.sides[1]]


def second_moment(m: tf.Tensor, side: str) -> tf.Tensor:
    """Returns `m m^T` for the inputs, `m^T m` for the outputs."""
    return tf.matmul(m, m, transpose_a=side == OUTPUTS, transpose_b=side == INPUTS)


def mean_moment(m: tf.Tensor, side: str) -> tf.Tensor:
    """Returns `second_moment(m, side)` divided by the length of the other side."""
    length = m.shape[1 + BOTH.index(across(side))]
    return second_moment(m, side) * (1 / max(length, 1))


def balanced(m: tf.Tensor) -> tf.Tensor:
    """Returns each matrix divided by the fourth root of its mean square; zeros stay zeros."""
    square = tf.reduce_mean(m * m, [1, 2], keepdims=True)
    return tf.math.divide_no_nan(m, tf.sqrt(tf.sqrt(square)))


def known(factor: tf.Tensor) -> tf.Tensor:
    """Returns which second moments have had a gradient, by their diagonals; shape [n]."""
    number, length, _ = factor.shape
    rows = tf.reshape(factor, [number, length * length])
    return tf.reduce_any(rows[:, :: length + 1] != 0, 1)  # on a mesh, there is no `diag_part`


def across(side: str) -> str:
    """Returns the other side."""
    return OUTPUTS if side == INPUTS else INPUTS


def multiplied(by: Sides, m: tf.Tensor) -> tf.Tensor:
    """Returns `L m R^T` with the matrices of the inputs, `L`, and of the outputs, `R`, if any."""
    m = tf.matmul(by[INPUTS], m) if INPUTS in by else m
    return tf.matmul(m, by[OUTPUTS], transpose_b=True) if OUTPUTS in by else m


def turned(by: Sides, m: tf.Tensor) -> tf.Tensor:
    """Returns `L^T m R`: what undoes `multiplied` for orthogonal matrices."""
    m = tf.matmul(by[INPUTS], m, transpose_a=True) if INPUTS in by else m
    return tf.matmul(m, by[OUTPUTS]) if OUTPUTS in by else m
