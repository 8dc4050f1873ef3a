"""What a model's variable holds its value in while the model is on a mesh."""

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.dtensor.tensors import from_mesh, to_mesh


class MeshStorage(dtensor.DVariable):
    """A `DVariable` that can be read and assigned in one piece, as Keras does.

    A function that assigns it is refused when it also uses a variable off the mesh: TensorFlow
    would update that one once per device.
    """

    def __init__(self, value: Any, layout: dtensor.Layout, name: str, trainable: bool):
        super().__init__(to_mesh(value, layout), name=name, trainable=trainable)

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
            check_on_mesh(self.name)
            return value
        value = tf.convert_to_tensor(value, dtype=self.dtype)
        return value if dtensor.is_dtensor(value) else to_mesh(value, self.layout)


def check_on_mesh(updated: str) -> None:
    """Refuses the function being traced when it uses variables that are not on a mesh.

    Args:
        updated: what the function updates on the mesh, for the message.

    Raises:
        ValueError: it uses one.
    """
    graph = tf.compat.v1.get_default_graph()
    names = []
    while hasattr(graph, "captures"):  # a function's graph, not the program's
        known = {id(variable.handle): variable.name for variable in graph.variables}
        for source, _ in graph.captures:
            on_host = source.dtype == tf.resource and "CUSTOM" not in source.device
            if not tf.is_symbolic_tensor(source) and on_host:
                names.append(known.get(id(source), "a variable or table"))
        graph = graph.outer_graph
    if names:
        raise ValueError(
            f"{updated} is on a mesh, and the function that updates it also uses {names[0]}, which "
            "is not: it would be updated once per device. An optimizer of Keras' keeps such "
            "variables: use its counterpart in tf_graft, or tf_graft.wrap(optimizer). A variable "
            "of one's own belongs on the mesh (tf.experimental.dtensor.DVariable)."
        )
