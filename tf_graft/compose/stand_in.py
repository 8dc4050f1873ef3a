"""A stand-in for a variable in a Keras optimizer, which records assignments."""

from collections.abc import Callable
from typing import Any, Self, TypeAlias

import tensorflow as tf

from tf_graft.core.types import Key, TensorLike

# A tensor, or a function that makes it when it is first read.
Value: TypeAlias = tf.Tensor | Callable[[], TensorLike]


class StandIn:
    """Takes the place of a `tf.Variable`: reads return the tensor it holds, writes are recorded.

    Args:
        name: its name in the optimizer.
        value: its first value.
        shape: its shape.
        dtype: its dtype.
        key: the key by which Keras finds it; None for a new key.

    Attributes:
        touched: whether it was read or written since `hold`.
        written: whether it was written since `hold`.
    """

    def __init__(
        self,
        name: str,
        value: Value,
        shape: tf.TensorShape,
        dtype: tf.DType,
        key: Key | None = None,
    ):
        self.name = name
        self.shape = tf.TensorShape(shape)
        self.dtype = tf.as_dtype(dtype)
        self._unique_id = key or f"stand-in {id(self)}"  # where Keras looks for a key
        self.hold(value)

    def hold(self, value: Value) -> None:
        """Sets a value, and forgets earlier reads and writes."""
        self._first = self._held = value
        self._added: tf.Tensor | None = None
        self.touched = self.written = False

    def read(self) -> tf.Tensor:
        """Returns the current value."""
        self.touched = True
        if callable(self._held):
            self._first = self._held = tf.cast(self._held(), self.dtype)
        return self._held if self._added is None else self._held + self._added

    value = read_value = read

    def state(self) -> Value:
        """Returns the argument with which `hold` restores the current value."""
        return self._held if self._added is None else self.read()

    def change(self) -> tf.Tensor:
        """Returns what was added since `hold`: exactly, or a difference if a value was assigned."""
        if self._held is self._first:
            return tf.zeros_like(self.read()) if self._added is None else self._added
        moved = tf.subtract(self._held, self._first)
        return moved if self._added is None else moved + self._added

    def assign(self, value: TensorLike, *_: object, **__: object) -> Self:
        """Records a new value; returns itself, as a `tf.Variable` does."""
        self._held, self._added = tf.cast(value, self.dtype), None
        self.touched = self.written = True
        return self

    def assign_add(self, value: TensorLike, *_: object, **__: object) -> Self:
        """Records an addition."""
        value = tf.cast(value, self.dtype)
        self.touched = self.written = True
        self._added = value if self._added is None else self._added + value
        return self

    def assign_sub(self, value: TensorLike, *_: object, **__: object) -> Self:
        """Records a subtraction."""
        return self.assign_add(-tf.cast(value, self.dtype))

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.read(), dtype, name=name)


def _forward(operator: str) -> Callable[..., Any]:
    return lambda self, *others: getattr(self.read(), operator)(*others)


for _name in ("add", "sub", "mul", "truediv", "pow", "matmul"):
    for _operator in (f"__{_name}__", f"__r{_name}__"):
        setattr(StandIn, _operator, _forward(_operator))
for _operator in ("__neg__", "__abs__", "__getitem__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(StandIn, _operator, _forward(_operator))
