"""What a Keras variable on a mesh holds its value in."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import keras_contract
from tf_graft.core.mesh_tensors import from_mesh, to_mesh


class MeshStorage(dtensor.DVariable):
    """A `DVariable` that can be read and assigned in one piece, as Keras does.

    A function that uses it is refused when it updates a variable off the mesh too.
    """

    def __init__(self, value: Any, layout: dtensor.Layout, name: str, trainable: bool = False):
        placed = dtensor.relayout if dtensor.is_dtensor(value) else to_mesh
        super().__init__(placed(value, layout), name=name, trainable=trainable)

    @property
    def handle(self) -> Any:
        """What every operation on the variable takes: asked for in a function, it is checked."""
        keras_contract.at_end_of_trace(check_on_mesh)
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


def check_on_mesh(graph: Any) -> None:
    """Refuses a traced function that updates variables off the mesh beside those on it.

    What updates variables on the mesh may not even read others: an optimizer that is built in the
    function leaves those that it had read behind.

    Args:
        graph: the function's; what is on the mesh it has asked for.

    Raises:
        ValueError: naming both.
    """
    names = {id(v.handle): v.name.partition(":")[0] for v in graph.variables}
    if not names:  # the trace was broken off by an error
        return
    outer = {id(inner): source for source, inner in graph.captures}
    used: dict[bool, dict[str, bool]] = {True: {}, False: {}}  # on the mesh: name, whether updated
    for inner, updated in keras_contract.resources(graph):
        source = outer.get(id(inner))
        if source is not None and not tf.is_symbolic_tensor(source):
            name = names.get(id(source), "a table, iterator or writer")
            used["CUSTOM" in source.device][name] = updated
    updates = any(used[True].values())
    wrong = [name for name, updated in used[False].items() if updated or updates]
    if wrong:
        mine = next(name for name, updated in used[True].items() if updated or not updates)
        does, also = ("updates", "uses") if updates else ("reads", "updates")
        raise ValueError(
            f"{mine} is on a mesh, and a function that {does} it also {also} {wrong[0]}, which is "
            "not: it would be updated once per device. Put it on the mesh "
            "(tf_graft.dtensor.replicate), or use it outside the function. The variables of an "
            "optimizer of Keras' cannot go there: use its counterpart in tf_graft, or "
            "tf_graft.wrap(optimizer)."
        )
