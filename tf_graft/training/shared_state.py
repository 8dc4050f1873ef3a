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
from tf_graft.dtensor import clients
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
    tensors[ORIGIN] = _everywhere(origin.encode(), host)
    tensors[GRAPH] = _everywhere(_graph(list(variables)), host)
    own = whole(path) if completes() else contextlib.nullcontext(part_of(path) / path.name)
    with own as part:
        clients.meet(host)  # the folder is there
        _save(str(part), host, tensors)
    clients.meet(host)


def _save(prefix: str, host: dtensor.Mesh, tensors: Mapping[str, tf.Tensor]) -> None:
    """Writes tensors as `dtensor.name_based_save` does, but never waits for a lost process."""
    where = _everywhere(prefix, host)
    with tf.device(dtensor.device_name()):
        tf.raw_ops.SaveV2(
            prefix=where,
            tensor_names=_everywhere(list(tensors), host),
            shape_and_slices=[""] * len(tensors),
            tensors=list(tensors.values()),
        )
    clients.meet(host)  # all shards are written
    with dtensor.default_mesh(host):
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=[where], destination_prefix=where, delete_old_dirs=True
        )
    clients.meet(host)


def _everywhere(value: str | bytes | list[str], host: dtensor.Mesh) -> tf.Tensor:
    copy = tf.constant(value)
    copies = [copy] * host.num_local_devices()
    return dtensor.pack(copies, dtensor.Layout.replicated(host, copy.shape.rank))


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
