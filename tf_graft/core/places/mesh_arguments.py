"""Meshes and layouts as arguments: TensorFlow's own, or those of `keras.distribution`."""

from collections.abc import Sequence
from typing import TypeAlias

import keras
from tensorflow.experimental import dtensor

from tf_graft.core import checks
from tf_graft.core.checks import shown
from tf_graft.core.places import mesh_processes, meshes

MeshLike: TypeAlias = dtensor.Mesh | keras.distribution.DeviceMesh
LayoutLike: TypeAlias = dtensor.Layout | keras.distribution.TensorLayout


def as_mesh(owner: str, mesh: MeshLike) -> dtensor.Mesh:
    """Returns a mesh of TensorFlow, converted if it is Keras'; equal ones give equal meshes.

    Args:
        owner: the function or class that was given the mesh.
        mesh: the mesh. The devices of a `DeviceMesh` (`"cpu:0"`) are this machine's; if there are
            several processes, the devices of each in turn.

    Raises:
        TypeError: `mesh` is neither.
        ValueError: a device does not exist or is given twice.
    """
    checks.instance(owner, "mesh", mesh, dtensor.Mesh, keras.distribution.DeviceMesh)
    if isinstance(mesh, dtensor.Mesh):
        return mesh
    dims = {name: int(size) for name, size in zip(mesh.axis_names, mesh.shape, strict=True)}
    names = [str(name) for name in mesh.devices.flat]
    processes = mesh_processes.find()
    each, number = len(names) // processes, dtensor.client_id()
    try:
        return meshes.create_mesh(dims, names[number * each : (number + 1) * each])
    except ValueError as error:
        raise ValueError(f"{owner}(mesh={shown(mesh)}): {error}") from None


def as_layout(owner: str, layout: LayoutLike) -> dtensor.Layout:
    """Returns a layout of TensorFlow, converted if it is Keras'.

    Raises:
        TypeError: `layout` is neither.
        ValueError: a `TensorLayout` has no mesh, or names a dimension twice.
    """
    checks.instance(owner, "layout", layout, dtensor.Layout, keras.distribution.TensorLayout)
    if isinstance(layout, dtensor.Layout):
        return layout
    where = f"{owner}(layout={shown(layout)})"
    if layout.device_mesh is None:
        raise ValueError(f"{where}: the layout has no mesh; make it with device_mesh.")
    return layout_of(where, layout.axes, as_mesh(owner, layout.device_mesh))


def layout_of(where: str, axes: Sequence[str | None], mesh: dtensor.Mesh) -> dtensor.Layout:
    """Returns the layout with a mesh dimension, or None, for each dimension of a tensor.

    Raises:
        ValueError: the mesh has no such dimension, or one divides two dimensions of the tensor.
    """
    specs = [dtensor.UNSHARDED if name is None else name for name in axes]
    for name in specs:
        if name != dtensor.UNSHARDED and name not in mesh.dim_names:
            raise ValueError(
                f"{where}: the mesh has no dimension {shown(name)}, only "
                f"{', '.join(map(repr, mesh.dim_names))}."
            )
        if name != dtensor.UNSHARDED and specs.count(name) > 1:
            raise ValueError(f"{where}: '{name}' can divide one dimension only.")
    return dtensor.Layout(specs, mesh)
