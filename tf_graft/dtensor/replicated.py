"""Replication of metrics and variables on a mesh."""

import functools
from collections.abc import Iterable
from typing import TypeVar

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import keras_contract
from tf_graft.core.checks import shown
from tf_graft.core.places.mesh_arguments import MeshLike, as_mesh
from tf_graft.core.places.mesh_storage import MeshStorage
from tf_graft.core.state import slots

T = TypeVar("T")


def replicate(target: T, mesh: MeshLike) -> T:
    """Replicates the metrics and variables of a custom training loop on every device of a mesh.

    On a mesh, a `tf.function` would update an ordinary variable once per device and out of order.
    If the function also uses a variable of a distributed model or of its optimizer, it raises an
    error. A function that takes only tensors cannot be recognized, so replicate its variables
    yourself. `distribute` moves a model's own metrics.

    Args:
        target: a `keras.metrics.Metric` or `keras.Variable`, or any nesting of tuples, lists and
            dicts of them. They are changed in place and keep their values; variables that a metric
            makes later are on the mesh, too. A variable that is already on the mesh does not
            change.
        mesh: the mesh.

    Returns:
        `target`.

    Raises:
        TypeError: `target` contains something else, such as a `tf.Variable`, which cannot move.
        ValueError: a variable is on another mesh.
        RuntimeError: DTensor was used before tf_graft was imported.

    Example:
        ```python
        accuracy = tg.dtensor.replicate(keras.metrics.SparseCategoricalAccuracy(), mesh)
        seen = tg.dtensor.replicate(keras.Variable(0, dtype="int64"), mesh)
        ```
    """
    keras_contract.check_order_on_mesh()
    mesh = as_mesh("replicate", mesh)
    targets = tf.nest.flatten(target)
    for one in targets:
        _check(one, mesh)
    for one in targets:
        for variable in _variables(one):
            move(variable, mesh)
        if isinstance(one, keras.metrics.Metric):
            one.add_variable = functools.partial(_added, one, mesh)
    return target


def release(metrics: Iterable[keras.metrics.Metric]) -> None:
    """Makes metrics create new variables off the mesh again; existing ones are not moved."""
    for metric in metrics:
        vars(metric).pop("add_variable", None)


def move(
    variable: keras.Variable,
    mesh: dtensor.Mesh,
    layout: dtensor.Layout | None = None,
    slot_layout: dtensor.Layout | None = None,
) -> None:
    """Moves a variable to a mesh with its value; a variable on a mesh is left unchanged.

    Args:
        variable: the variable, changed in place.
        mesh: the mesh.
        layout: the layout; None replicates the variable.
        slot_layout: the layout of an optimizer's slots for it; None for the variable's own.
    """
    if not isinstance(variable.value, dtensor.DVariable):
        layout = layout or dtensor.Layout.replicated(mesh, len(variable.shape))
        watched = variable.value.trainable  # not the layer's `trainable`, which can change later
        storage = MeshStorage(variable.numpy(), layout, variable.path, watched, slot_layout)
        keras_contract.set_storage(variable, storage)


def _variables(target: keras.Variable | keras.metrics.Metric) -> list[keras.Variable]:
    return [target] if isinstance(target, keras.Variable) else target.variables


def _check(target: object, mesh: dtensor.Mesh) -> None:
    owner = f"replicate({shown(target)})"
    if not isinstance(target, keras.metrics.Metric | keras.Variable):
        instead = " Make a keras.Variable of it." if isinstance(target, tf.Variable) else ""
        raise TypeError(f"{owner}: it must be a keras.metrics.Metric or a keras.Variable.{instead}")
    for variable in _variables(target):
        layout = slots.layout_of(variable)
        if layout is not None and layout.mesh != mesh:
            raise ValueError(f"{owner}: its '{variable.path}' is on another mesh.")


def _added(
    metric: keras.metrics.Metric, mesh: dtensor.Mesh, *args: object, **kwargs: object
) -> keras.Variable:
    """Calls the metric's own `add_variable` and moves the variable to the mesh."""
    with tf.init_scope():  # some metrics call it in their first update, perhaps in a function
        variable = type(metric).add_variable(metric, *args, **kwargs)
        move(variable, mesh)
    return variable
