"""Writes a state that several processes of a mesh hold: each writes the shards of its devices.

Together they write one checkpoint in the form of `tf.train.Checkpoint`. One process, or another
number of processes with another mesh, can read it. `tf.train.Checkpoint` itself does not wait for
the shards of other processes before it lists them in the index.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core.files.whole_files import part_of, whole
from tf_graft.core.keras_contract import TrackableObjectGraph
from tf_graft.training.saved_state import GRAPH, ORIGIN, VALUE


def completes() -> bool:
    """Returns whether this process completes a state; the others write only their shards."""
    return dtensor.client_id() == 0


def write(
    path: Path, mesh: dtensor.Mesh, variables: Mapping[str, keras.Variable], origin: str
) -> None:
    """Writes a state, whole or not at all; all processes must call it, with one folder for all.

    Args:
        path: the path of the state, without the endings of its files.
        mesh: the mesh of the variables.
        variables: the variables, by the names under which they are saved.
        origin: the state's description of itself; that of the first process is saved.
    """
    host = mesh.host_mesh()
    tensors = {f"{name}{VALUE}": _on_host(variable, host) for name, variable in variables.items()}
    for name, text in ((ORIGIN, origin.encode()), (GRAPH, _graph(list(variables)))):
        copies = [tf.constant(text)] * mesh.num_local_devices()
        tensors[name] = dtensor.pack(copies, dtensor.Layout.replicated(host, 0))
    own = whole(path) if completes() else contextlib.nullcontext(part_of(path) / path.name)
    with own as part:
        dtensor.barrier(mesh, "tf_graft.folder")
        dtensor.name_based_save(mesh, str(part), tensors)
    dtensor.barrier(mesh, "tf_graft.state")


def _on_host(variable: keras.Variable, host: dtensor.Mesh) -> tf.Tensor:
    value = variable.value.read_value()
    layout = dtensor.fetch_layout(value)
    if layout.mesh.device_type() == "CPU":
        return value
    return dtensor.pack(dtensor.unpack(value), dtensor.Layout(layout.sharding_specs, host))


def _graph(names: list[str]) -> bytes:
    """Returns the graph in which `tf.train.Checkpoint` finds a value: one root and its children."""
    graph = TrackableObjectGraph()
    root = graph.nodes.add()
    for number, name in enumerate(names, 1):
        root.children.add(node_id=number, local_name=name)
        graph.nodes.add().attributes.add(
            name=VALUE.rpartition("/")[2], full_name=name, checkpoint_key=f"{name}{VALUE}"
        )
    return graph.SerializeToString()
