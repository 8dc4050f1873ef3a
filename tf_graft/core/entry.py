"""A value in a file: its shape and dtype are known before it is read."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Entry(NamedTuple):
    """A value in a file, which is read when it is converted to an array.

    Args:
        read: reads it.
        shape: the shape that the file declares.
        dtype: the dtype that the file declares.
    """

    read: Callable[[], np.ndarray]
    shape: tuple[int, ...]
    dtype: np.dtype

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.read())
