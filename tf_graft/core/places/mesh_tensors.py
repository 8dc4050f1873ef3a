"""Moves tensors from the host to a mesh, and back."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core.places.mesh_arguments import LayoutLike, as_layout
from tf_graft.core.types import TensorLike, VariableLike


def to_mesh(value: TensorLike, layout: LayoutLike) -> tf.Tensor:
    """Puts a whole value on a mesh: each device gets its shard.

    Args:
        value: an array or ordinary tensor of the layout's rank.
        layout: its layout on the mesh, a `tf.experimental.dtensor.Layout` or a
            `keras.distribution.TensorLayout` with a mesh.

    Returns:
        A DTensor of the value's shape.

    Raises:
        ValueError: the value has another rank, or a dimension cannot be divided evenly.
    """
    layout, array = as_layout("to_mesh", layout), np.asarray(value)
    specs, mesh = layout.sharding_specs, layout.mesh
    if len(specs) != array.ndim:
        raise ValueError(
            f"to_mesh: a value of shape {array.shape} cannot have a layout of rank {len(specs)}."
        )
    for axis, (size, name) in enumerate(zip(array.shape, specs, strict=True)):
        if name != dtensor.UNSHARDED and size % mesh.dim_size(name):
            raise ValueError(
                f"to_mesh: dimension {axis} of a value of shape {array.shape} cannot be divided "
                f"evenly over the {mesh.dim_size(name)} devices of '{name}'."
            )
    return packed(layout, lambda place: array[_shard(array.shape, specs, mesh, place)])


def packed(layout: dtensor.Layout, shard: Callable[[dict[str, int]], np.ndarray]) -> tf.Tensor:
    """Makes a DTensor from the shards of this client's devices.

    Args:
        layout: the DTensor's layout.
        shard: returns the shard of a device for its place in the mesh, by dimension.
    """
    shards, mesh = [], layout.mesh
    for device, place in zip(mesh.local_devices(), mesh.local_device_locations(), strict=True):
        with tf.device(device):
            shards.append(tf.constant(shard(place)))
    return dtensor.pack(shards, layout)


def from_mesh(value: TensorLike | VariableLike) -> tf.Tensor:
    """Gathers a tensor or variable on a mesh into an ordinary tensor.

    Args:
        value: a DTensor, or a variable on a mesh. A value that is on no mesh is returned as it is.

    Returns:
        An ordinary tensor of the same shape.
    """
    tensor = tf.convert_to_tensor(value)
    if not dtensor.is_dtensor(tensor):
        return tensor
    layout = dtensor.fetch_layout(tensor)
    whole = dtensor.Layout.replicated(layout.mesh, tensor.shape.rank)
    return dtensor.unpack(tensor if layout == whole else dtensor.relayout(tensor, whole))[0]


def _shard(
    shape: tuple[int, ...], specs: list[str], mesh: dtensor.Mesh, place: dict[str, int]
) -> tuple[slice, ...]:
    """Returns the slices of a value that belong to the device at a place in the mesh."""
    slices = []
    for size, name in zip(shape, specs, strict=True):
        if name == dtensor.UNSHARDED:
            slices.append(slice(None))
        else:
            length = size // mesh.dim_size(name)
            slices.append(slice(place[name] * length, (place[name] + 1) * length))
    return tuple(slices)
