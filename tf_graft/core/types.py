"""Types of the objects that TensorFlow, Keras and this package exchange.

TensorFlow and Keras ship no types: `tf.Tensor`, `keras.Variable` and the like are `Any` to a type
checker. Use them in annotations nevertheless, because they inform the reader. The protocols below
are checked. Annotate a value that may be anything, such as an argument before validation, with
`object`.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import keras
import numpy as np
import tensorflow as tf

Config: TypeAlias = dict[str, Any]  # arguments by name, as `get_config` returns them
Structure: TypeAlias = Any  # tensors nested in lists, tuples and dicts, as in `tf.nest`
Logs: TypeAlias = Mapping[str, float] | None  # the logs that Keras passes to callbacks
Store: TypeAlias = MutableMapping[str, np.ndarray]  # the target of `save_own_variables`

TensorLike: TypeAlias = (  # the arguments of `tf.convert_to_tensor`
    tf.Tensor | tf.Variable | keras.Variable | np.ndarray | np.generic | Sequence[Any] | float
)
Scalar: TypeAlias = tf.Tensor | float  # a number, or a tensor of shape []
Key: TypeAlias = Hashable  # Keras' key of a variable
Slots: TypeAlias = Mapping[str, tf.Tensor]  # the state of one variable, by role
SlotVariables: TypeAlias = Mapping[str, tf.Variable]  # the same as variables, for kernels
Rates: TypeAlias = Mapping[str, Scalar]  # learning rates, by role


class UniqueRows(NamedTuple):
    """A row-sparse gradient in which no row occurs twice.

    In XLA, where sizes are static, it is padded with rows outside the variable: they read as zero,
    and writes to them are dropped.

    Args:
        values: of shape [k, ...].
        indices: the rows, an int64 tensor of shape [k].
    """

    values: tf.Tensor
    indices: tf.Tensor


class MaskedGradient(NamedTuple):
    """A row-sparse gradient in dense form.

    Args:
        values: the gradient, zero in the rows that are not touched.
        mask: which rows are touched, booleans of shape [rows].
    """

    values: tf.Tensor
    mask: tf.Tensor


class OptionalGradient(MaskedGradient):
    """A gradient that may be absent: without it a variable and all its state stay as they are.

    It is absent if the mask is false everywhere; the mask of a scalar is a scalar.
    """


Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | UniqueRows | MaskedGradient


class VariableLike(Protocol):
    """The common interface of `keras.Variable` and `tf.Variable`.

    `keras_contract.storage` returns the `tf.Variable` of either. `dtype` is a string or a
    `tf.DType`, which `tf.as_dtype` converts.
    """

    name: str
    shape: Any  # a tuple or a `tf.TensorShape`
    dtype: Any
    trainable: bool
    constraint: Callable[[tf.Tensor], tf.Tensor] | None

    def assign(self, value: TensorLike) -> object: ...


class ScheduleLike(Protocol):
    """A learning rate as a function of the number of updates done."""

    def __call__(self, step: TensorLike) -> TensorLike: ...


NumberLike: TypeAlias = float | ScheduleLike
RateLike: TypeAlias = float | tf.Tensor | ScheduleLike | Callable[[], Scalar] | Config


class OptimizerLike(Protocol):
    """The common interface of the optimizers of this package and of Keras."""

    name: str
    built: bool
    learning_rate: Any
    iterations: VariableLike
    variables: list[keras.Variable]

    def build(self, variables: Sequence[Any], /) -> None: ...
    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None: ...
    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], /) -> object: ...
    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor: ...
    def get_config(self) -> Config: ...


class Entry(NamedTuple):
    """A value in a file, which is read when it is converted to an array.

    Args:
        read: reads the value.
        shape: the shape that the file declares.
        dtype: the dtype that the file declares.
    """

    read: Callable[[], np.ndarray]
    shape: tuple[int, ...]
    dtype: np.dtype

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.read())
