"""The axes of a variable as those of one matrix, or of several of the same size."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_graft.core import checks
from tf_graft.core.checks import shown

PARTS = ("inputs", "outputs", "batch", "shape")
OF_LAYER = "layer"


class Axes(NamedTuple):
    """Which axes of a variable are the inputs and the outputs of a matrix.

    Args:
        variable: the shape of the variable.
        shape: the shape to which the variable is reshaped first. It can split an axis that joins
            several matrices, such as those of the gates of an LSTM.
        inputs: the axes of `shape` that are the rows of a matrix.
        outputs: the axes of `shape` that are its columns.
        batch: the axes of `shape` along which there are several matrices.

    Example:
        >>> conv = Axes.of((3, 3, 8, 16), inputs=(0, 1, 2), outputs=(3,))
        >>> conv.size
        (1, 72, 16)
        >>> conv.matrices(tf.zeros([3, 3, 8, 16])).shape
        TensorShape([1, 72, 16])
    """

    variable: tuple[int, ...]
    shape: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    batch: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        variable: Sequence[int],
        inputs: Sequence[int],
        outputs: Sequence[int],
        batch: Sequence[int] = (),
        shape: Sequence[int] | None = None,
    ) -> "Axes":
        """Returns the axes for a variable of a shape; without `shape` they are its own axes."""
        own = tuple(map(int, variable))
        split = own if shape is None else tuple(map(int, shape))
        return cls(own, split, tuple(inputs), tuple(outputs), tuple(batch))

    @property
    def size(self) -> tuple[int, int, int]:
        """The number of matrices, of the rows of each (inputs), and of its columns (outputs)."""
        batch, rows, columns = (
            math.prod(self.shape[axis] for axis in axes)
            for axes in (self.batch, self.inputs, self.outputs)
        )
        return batch, rows, columns

    @property
    def order(self) -> tuple[int, ...]:
        """All axes of `shape`, in the order [batch, inputs, outputs]."""
        return self.batch + self.inputs + self.outputs

    def matrices(self, x: tf.Tensor) -> tf.Tensor:
        """Returns a tensor of the variable's shape as matrices, [batch, inputs, outputs]."""
        x = _reshaped(x, self.shape)
        if self.order != tuple(range(len(self.order))):
            x = tf.transpose(x, self.order)
        return _reshaped(x, self.size)

    def restored(self, m: tf.Tensor) -> tf.Tensor:
        """Returns matrices, [batch, inputs, outputs], as a tensor of the variable's shape."""
        x = _reshaped(m, tuple(self.shape[axis] for axis in self.order))
        if self.order != tuple(range(len(self.order))):
            x = tf.transpose(x, [self.order.index(axis) for axis in range(len(self.order))])
        return _reshaped(x, self.variable)

    def parted(self, count: int, interleaved: bool = False) -> "Axes":
        """Splits the last axis, which joins columns of several matrices; returns the new axes.

        Args:
            count: the number of matrices.
            interleaved: whether their columns take turns; otherwise they are side by side.
        """
        last, length = len(self.shape) - 1, self.shape[-1] // count
        parts = (length, count) if interleaved else (count, length)
        number, columns = (last + 1, last) if interleaved else (last, last + 1)
        return self._replace(
            shape=(*self.shape[:-1], *parts),
            outputs=(*(axis for axis in self.outputs if axis != last), columns),
            batch=(*self.batch, number),
        )

    def __str__(self) -> str:
        batch, rows, columns = self.size
        return f"{rows} x {columns}" if batch == 1 else f"{batch} of {rows} x {columns}"


def _reshaped(x: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
    return x if tuple(x.shape) == shape else tf.reshape(x, shape)


Given = Mapping[str, Any]  # by pattern: None, "layer", or the parts of `Axes` by name


def checked(owner: str, name: str, given: object) -> Given | None:
    """Returns what a user says of variables' axes, by pattern, as plain values.

    Raises:
        TypeError: the argument is no mapping, or a key is no string.
        ValueError: a key is no regular expression, or a value is not one of those that
            `axes_of` describes.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise TypeError(f"{owner}({name}={shown(given)}): {name} must be a dict by pattern.")
    checks.patterns(owner, name, list(given))
    return {key: _plain(f"{owner}({name}={{{shown(key)}: ...}})", x) for key, x in given.items()}


def _plain(where: str, given: Any) -> Any:
    if given is None or (isinstance(given, str) and given == OF_LAYER):
        return given
    if isinstance(given, Mapping) and {"inputs", "outputs"} <= given.keys() <= {*PARTS}:
        lists = {part: x for part, x in given.items() if x is not None}
        if all(_whole_numbers(x) for x in lists.values()):
            return {part: [int(n) for n in x] for part, x in lists.items()}
    raise ValueError(
        f"{where}: it is {shown(given)}, and must be None (no matrix), 'layer' (as its layer says) "
        "or a dict of axes such as {'inputs': [0], 'outputs': [1]}."
    )


def _whole_numbers(given: Any) -> bool:
    listed = isinstance(given, Sequence) and not isinstance(given, str)
    return listed and all(isinstance(n, int) and not isinstance(n, bool) for n in given)


def by_hand(where: str, path: str, shape: Sequence[int], given: Mapping[str, Any]) -> Axes:
    """Returns the axes that a user gives for a variable.

    Raises:
        ValueError: they do not fit the variable's shape.
    """
    axes = Axes.of(shape, **given)
    if math.prod(axes.shape) != math.prod(axes.variable) or min(axes.shape, default=0) < 0:
        raise ValueError(
            f"{where}: the shape {axes.shape} does not have as many entries as '{path}', whose "
            f"shape is {axes.variable}."
        )
    if sorted(axes.order) != list(range(len(axes.shape))) or not (axes.inputs and axes.outputs):
        raise ValueError(
            f"{where}: {given} must name each axis of '{path}', whose shape is {axes.shape}, once, "
            "with at least one input and one output."
        )
    return axes
