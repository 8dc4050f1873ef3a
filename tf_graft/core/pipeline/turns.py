"""Turns: large variables are written one after the other."""

import contextlib
import math
from typing import Any

import tensorflow as tf

from tf_graft.core.types import VariableLike

# Variables of at least so many entries are written in turn, so that few tensors are in memory.
LARGE = 2**20


class Turns:
    """Writes large variables in turn: tensors of one are in caches, and freed before the next."""

    def __init__(self) -> None:
        self._before: list[Any] = []
        self.large = False  # whether the current turn is that of a large variable

    def of(self, variable: VariableLike) -> contextlib.AbstractContextManager[Any]:
        """A context in which operations wait for the end of the previous turn."""
        self.large = math.prod(variable.shape) >= LARGE
        return tf.control_dependencies(self._before if self.large else [])

    def ends_after(self, variable: tf.Variable) -> None:
        """Lets the turn end after all updates of a variable so far, which is not row-sparse.

        That takes another operation, and only large variables need it.
        """
        if self.large and not tf.executing_eagerly():
            self._before = [tf.convert_to_tensor(variable).op]

    def ends_with(self, last: Any) -> None:
        """Sets the operation that ends the turn; None eagerly, where operations run in order."""
        if self.large and last is not None:
            self._before = [last]
