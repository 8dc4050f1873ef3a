"""The storage of a Keras variable on a mesh."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import keras_contract
from tf_graft.core.places.mesh_tensors import from_mesh, to_mesh
from tf_graft.core.tensors import row_shards
from tf_graft.core.types import TensorLike


class MeshStorage(keras_contract.SavedAsTwin):
    """A `DVariable` that can be read and assigned as a whole, as Keras does.

    A function that uses it must not use a variable off the mesh, because TensorFlow would update
    that variable once per device and out of order.

    Args:
        value: its first value, on a mesh or not.
        layout: its layout.
        name: its name.
        trainable: whether gradients are taken of it.
        slot_layout: the layout of an optimizer's slots for it, if different.
    """

    def __init__(
        self,
        value: TensorLike,
        layout: dtensor.Layout,
        name: str,
        trainable: bool = False,
        slot_layout: dtensor.Layout | None = None,
    ):
        self.slot_layout = slot_layout or layout
        placed = dtensor.relayout if dtensor.is_dtensor(value) else to_mesh
        super().__init__(placed(value, layout), name=name, trainable=trainable)

    @property
    def handle(self) -> tf.Tensor:
        """The handle, which every operation on the variable reads: this starts the check."""
        keras_contract.check_captured(functools.partial(_check, self.name.partition(":")[0]))
        return super().handle

    def twin(self) -> dtensor.DVariable:
        """Returns the same variable in the form that a checkpoint uses."""
        twin = object.__new__(_InCheckpoint)
        twin.__dict__.update(self.__dict__)
        return twin

    def numpy(self) -> np.ndarray:
        """Returns the whole value."""
        return from_mesh(self.read_value()).numpy()

    def assign(self, value: TensorLike, *args: Any, **kwargs: Any) -> tf.Variable:
        """Assigns a DTensor, or an ordinary value of the variable's whole shape."""
        return super().assign(self.placed(value), *args, **kwargs)

    def assign_add(self, delta: TensorLike, *args: Any, **kwargs: Any) -> tf.Variable:
        """Adds a DTensor, or an ordinary value of the variable's whole shape."""
        return super().assign_add(self.placed(delta), *args, **kwargs)

    def assign_sub(self, delta: TensorLike, *args: Any, **kwargs: Any) -> tf.Variable:
        """Subtracts a DTensor, or an ordinary value of the variable's whole shape."""
        return super().assign_sub(self.placed(delta), *args, **kwargs)

    def sparse_read(self, indices: TensorLike, name: str | None = None) -> tf.Tensor:
        """Returns rows of the variable, for `tf.gather`, also if devices divide them."""
        devices = row_shards.devices_of(self.layout)
        if devices == 1:
            return super().sparse_read(indices, name)
        return row_shards.gather(self.read_value(), tf.convert_to_tensor(indices), devices)

    def placed(self, value: TensorLike) -> TensorLike:
        """Returns a whole value in the variable's layout; in a function, the value as it is."""
        if not tf.executing_eagerly():
            return value
        tensor = tf.convert_to_tensor(value, dtype=self.dtype)
        return tensor if dtensor.is_dtensor(tensor) else to_mesh(tensor, self.layout)


class _InCheckpoint(dtensor.DVariable):
    """A variable on a mesh in TensorFlow's functions that save and restore a checkpoint.

    These functions only read each variable once, or assign it its value from the file. They may
    therefore use variables off the mesh: the result is the same on every device.
    """

    @property
    def handle(self) -> tf.Tensor:
        """The handle, which every operation on the variable reads: this starts the check."""
        mine = self.name.partition(":")[0]
        keras_contract.check_captured(functools.partial(_check_in_checkpoint, mine))
        return super().handle


def filled(
    layout: dtensor.Layout,
    initializer: Callable[..., tf.Tensor],
    shape: tuple[int, ...],
    dtype: str,
    name: str,
) -> MeshStorage:
    """Returns storage with a layout, filled by a function of shape and dtype.

    If the function returns a scalar, it fills every entry; no tensor of the whole shape is made.
    """
    start = initializer(shape, dtype=dtype)
    if start.shape.rank == 0:
        with dtensor.default_mesh(layout.mesh):
            start = dtensor.call_with_layout(tf.fill, layout, shape, start)
    return MeshStorage(start, layout, name)


def _check(mine: str, tensor: tf.Tensor, name: str | None) -> None:
    """Refuses a variable off the mesh in a function that uses `mine`, which is on the mesh."""
    if tensor.dtype == tf.resource and "CUSTOM" not in tensor.device:
        raise ValueError(
            f"{mine} is on a mesh, and the function that uses it also uses "
            f"{name or 'a variable, table or iterator'}, which is not: it would be updated once "
            "per device. Put it on the mesh (as a keras.Variable or a metric, by "
            "tf_graft.dtensor.replicate), or use it outside the function. The variables of an "
            "optimizer of Keras' cannot go there: use its counterpart in tf_graft, or "
            "tf_graft.wrap(optimizer)."
        )


def _check_in_checkpoint(mine: str, tensor: tf.Tensor, _: str | None) -> None:
    """Refuses a tensor off the mesh that is neither a variable nor a scalar, next to `mine`."""
    alike = keras_contract.is_variable(tensor) or (tensor.dtype != tf.resource and not tensor.ndim)
    if not alike and "CUSTOM" not in tensor.device:
        raise RuntimeError(  # TensorFlow would replace a ValueError by an error of its own
            f"{mine} is on a mesh, and a checkpoint of it cannot also hold a table or an iterator, "
            "which DTensor does not restore: save that in a tf.train.Checkpoint of its own."
        )
