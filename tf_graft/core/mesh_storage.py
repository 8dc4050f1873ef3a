"""What a Keras variable on a mesh holds its value in."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import keras_contract
from tf_graft.core.mesh_tensors import from_mesh, to_mesh


class MeshStorage(dtensor.DVariable):
    """A `DVariable` that can be read and assigned in one piece, as Keras does.

    A function that uses it may use no variable off the mesh: TensorFlow would update that once per
    device and out of order.
    """

    def __init__(self, value: Any, layout: dtensor.Layout, name: str, trainable: bool = False):
        placed = dtensor.relayout if dtensor.is_dtensor(value) else to_mesh
        super().__init__(placed(value, layout), name=name, trainable=trainable)

    @property
    def handle(self) -> Any:
        """What every operation on it takes: a function that does is watched from then on."""
        keras_contract.check_captured(functools.partial(_check, self.name.partition(":")[0]))
        return super().handle

    def numpy(self) -> np.ndarray:
        """The whole value."""
        return from_mesh(self.read_value()).numpy()

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Assigns a DTensor, or an ordinary value of the variable's whole shape."""
        return super().assign(self._on_mesh(value), *args, **kwargs)

    def assign_add(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        """Adds a DTensor, or an ordinary value of the variable's whole shape."""
        return super().assign_add(self._on_mesh(delta), *args, **kwargs)

    def assign_sub(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        """Subtracts a DTensor, or an ordinary value of the variable's whole shape."""
        return super().assign_sub(self._on_mesh(delta), *args, **kwargs)

    def _on_mesh(self, value: Any) -> Any:
        if not tf.executing_eagerly():
            return value
        value = tf.convert_to_tensor(value, dtype=self.dtype)
        return value if dtensor.is_dtensor(value) else to_mesh(value, self.layout)


def filled(
    layout: dtensor.Layout,
    initializer: Callable[..., tf.Tensor],
    shape: tuple[int, ...],
    dtype: str,
    name: str,
) -> MeshStorage:
    """A storage with that layout, filled by a function of shape and dtype.

    Where the function returns a scalar, every entry is that: nothing is made whole.
    """
    start = initializer(shape, dtype=dtype)
    if start.shape.rank == 0:
        with dtensor.default_mesh(layout.mesh):
            start = dtensor.call_with_layout(tf.fill, layout, shape, start)
    return MeshStorage(start, layout, name)


def _check(mine: str, handle: tf.Tensor, name: str | None) -> None:
    """Refuses a variable off the mesh in a function that uses `mine`, which is on it."""
    if "CUSTOM" not in handle.device:
        raise ValueError(
            f"{mine} is on a mesh, and the function that uses it also uses "
            f"{name or 'a variable, table or iterator'}, which is not: it would be updated once "
            "per device. Put it on the mesh (tf_graft.dtensor.replicate), or use it outside the "
            "function. The variables of an optimizer of Keras' cannot go there: use its "
            "counterpart in tf_graft, or tf_graft.wrap(optimizer)."
        )
