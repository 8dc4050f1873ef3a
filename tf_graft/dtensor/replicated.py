"""Metrics and variables of one's own, whole on every device of a mesh."""

import functools
from collections.abc import Iterable
from typing import Any, TypeVar

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import keras_contract, slots
from tf_graft.core.mesh_storage import MeshStorage

T = TypeVar("T")


def replicate(target: T, mesh: dtensor.Mesh) -> T:
    """Puts metrics and variables of a loop of one's own on a mesh, whole on every device.

    A `tf.function` on a mesh would update what is off it once per device and out of order. It is
    refused when it uses a variable of a distributed model or its optimizer; one that is given
    tensors only cannot be told from others. `distribute` takes a model's own metrics along.

    Args:
        target: a `keras.metrics.Metric` or `keras.Variable`, or any nesting of tuples, lists and
            dicts of them. They are changed in place and keep their values; what a metric makes
            later is on the mesh, too. What is on the mesh already stays as it is.
        mesh: the mesh.

    Returns:
        `target`.

    Raises:
        TypeError: something else in `target`, such as a `tf.Variable`, which cannot move.
        ValueError: a variable is on another mesh.
        RuntimeError: DTensor was used before tf_graft was imported.

    Example:
        ```python
        accuracy = tg.dtensor.replicate(keras.metrics.SparseCategoricalAccuracy(), mesh)
        seen = tg.dtensor.replicate(keras.Variable(0, dtype="int64"), mesh)
        ```
    """
    keras_contract.check_order_on_mesh()
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
    """Has metrics make variables off the mesh again; those they have stay where they are."""
    for metric in metrics:
        vars(metric).pop("add_variable", None)


def move(
    variable: keras.Variable, mesh: dtensor.Mesh, layout: dtensor.Layout | None = None
) -> None:
    """Puts a variable on a mesh with its value, unless it is there already.

    Args:
        variable: is changed in place.
        mesh: the mesh.
        layout: how it is to lie; whole on every device when None.
    """
    if not isinstance(variable.value, dtensor.DVariable):
        layout = layout or dtensor.Layout.replicated(mesh, len(variable.shape))
        storage = MeshStorage(variable.numpy(), layout, variable.path, variable.trainable)
        keras_contract.set_storage(variable, storage)


def _variables(target: Any) -> list[keras.Variable]:
    return [target] if isinstance(target, keras.Variable) else target.variables


def _check(target: Any, mesh: dtensor.Mesh) -> None:
    owner = f"replicate({target!r})"
    if not isinstance(target, keras.metrics.Metric | keras.Variable):
        instead = " Make a keras.Variable of it." if isinstance(target, tf.Variable) else ""
        raise TypeError(f"{owner}: it must be a keras.metrics.Metric or a keras.Variable.{instead}")
    for variable in _variables(target):
        layout = slots.layout_of(variable)
        if layout is not None and layout.mesh != mesh:
            raise ValueError(f"{owner}: its '{variable.path}' is on another mesh.")


def _added(
    metric: keras.metrics.Metric, mesh: dtensor.Mesh, *args: Any, **kwargs: Any
) -> keras.Variable:
    """`metric.add_variable`, on the mesh."""
    with tf.init_scope():  # some metrics do it on their first update, in a function perhaps
        variable = type(metric).add_variable(metric, *args, **kwargs)
        move(variable, mesh)
    return variable
