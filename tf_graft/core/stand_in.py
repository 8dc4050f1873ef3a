"""What stands for a variable in the hands of another optimizer, and writes down what it is told."""

from typing import Any, Self

import tensorflow as tf


class StandIn:
    """Stands where a `tf.Variable` would: reads give the tensor it holds, writes are noted.

    Args:
        name: what the optimizer calls it.
        value: what it holds: a tensor, or a function that makes it when it is first read.
        shape: its shape.
        dtype: its dtype.
        key: what tells it from others; one of its own when None.

    Attributes:
        touched: whether it was read or written since `hold`.
        written: whether it was written since `hold`.
    """

    def __init__(self, name: str, value: Any, shape: Any, dtype: Any, key: Any = None):
        self.name = name
        self.shape = tf.TensorShape(shape)
        self.dtype = tf.as_dtype(dtype)
        self._unique_id = key or f"stand-in {id(self)}"  # where Keras looks for a key
        self.hold(value)

    def hold(self, value: Any) -> None:
        """Starts anew from a value, or from a function that makes it when it is first read."""
        self._first = self._held = value
        self._added: tf.Tensor | None = None
        self.touched = self.written = False

    def read(self) -> tf.Tensor:
        """The present value."""
        self.touched = True
        if callable(self._held):
            self._first = self._held = tf.cast(self._held(), self.dtype)
        return self._held if self._added is None else self._held + self._added

    value = read_value = read

    def state(self) -> Any:
        """What `hold` takes to bring it back to where it is."""
        return self._held if self._added is None else self.read()

    def change(self) -> tf.Tensor:
        """What was added since `hold`: no difference of two values, unless it was assigned."""
        if self._held is self._first:
            return tf.zeros_like(self.read()) if self._added is None else self._added
        moved = self._held - self._first
        return moved if self._added is None else moved + self._added

    def assign(self, value: Any, *_: Any, **__: Any) -> Self:
        """Notes a new value; returns itself, as a `tf.Variable` does."""
        value = tf.cast(value, self.dtype)
        self.touched = self.written = True
        self._held, self._added = value, None
        return self

    def assign_add(self, value: Any, *_: Any, **__: Any) -> Self:
        """Notes a sum."""
        value = tf.cast(value, self.dtype)
        self.touched = self.written = True
        self._added = value if self._added is None else self._added + value
        return self

    def assign_sub(self, value: Any, *_: Any, **__: Any) -> Self:
        """Notes a difference."""
        return self.assign_add(-tf.cast(value, self.dtype))

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.read(), dtype, name=name)


def _forward(operator: str) -> Any:
    return lambda self, *others: getattr(self.read(), operator)(*others)


for _name in ("add", "sub", "mul", "truediv", "pow", "matmul"):
    for _operator in (f"__{_name}__", f"__r{_name}__"):
        setattr(StandIn, _operator, _forward(_operator))
for _operator in ("__neg__", "__abs__", "__getitem__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(StandIn, _operator, _forward(_operator))
