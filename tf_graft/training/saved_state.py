"""A saved state of a run, checked in full before any of it is loaded."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from tf_graft.core.errors import CheckpointError
from tf_graft.core.files import model_weights
from tf_graft.core.files.checked_state import saved_names
from tf_graft.core.files.model_weights import described
from tf_graft.core.keras_contract import TrackableObjectGraph
from tf_graft.core.state.parameters import paths
from tf_graft.training import replica_values
from tf_graft.training.replica_values import OF_REPLICAS

# Keys in a file: the ending of a variable's key, the origin's key, that of TensorFlow's graph.
VALUE, ORIGIN = "/.ATTRIBUTES/VARIABLE_VALUE", "origin/.ATTRIBUTES/py_state"
GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

# The errors that TensorFlow raises for files that are truncated, altered or of another program.
UNREADABLE = (
    tf.errors.OpError,
    DecodeError,
    AssertionError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)

METRICS = "metrics"  # the group that states of runs on parameter servers lacked up to 0.2.0
Groups = Mapping[str, Sequence[keras.Variable]]  # of the model, the optimizer and the metrics


def groups_of(model: keras.Model) -> Groups:
    """Returns the variables of a compiled model on which its next step depends."""
    return {
        "model": model.variables,
        "optimizer": model.optimizer.variables,
        METRICS: model.metrics_variables,
    }


def keyed(groups: Groups) -> dict[str, keras.Variable]:
    """Returns the variables by the names they are saved under: their group and number."""
    return {
        _name(group, number): variable
        for group, variables in groups.items()
        for number, variable in enumerate(variables)
    }


def paths_of(groups: Groups) -> dict[str, list[str]]:
    """Returns the paths of the variables of each group, in order."""
    return {group: paths(variables) for group, variables in groups.items()}


class SavedState:
    """One state on disk.

    Args:
        path: the path of the state, without the endings of its files.

    Raises:
        UNREADABLE: here and in all methods, if the files are damaged or of another program.
    """

    def __init__(self, path: Path) -> None:
        model_weights.check_kinds(model_weights.files_of(path))
        self._path = path
        self._reader = tf.train.load_checkpoint(str(path))

    def origin(self) -> bytes:
        """Reads the text that `Origin` wrote."""
        text: bytes = self._reader.get_tensor(ORIGIN)
        return text

    def values(
        self, group: str, variables: Sequence[keras.Variable], saved: Sequence[str]
    ) -> list[np.ndarray]:
        """Returns the saved values of a group's variables, all of them finite, matched by path.

        Args:
            group: the name of the group.
            variables: its variables.
            saved: the paths of the saved variables of the group, in order.

        Raises:
            CheckpointError: the state holds other variables; the message is a clause about it.
        """
        names = {path: f"{_name(group, i)}{VALUE}" for i, path in enumerate(saved)}
        shapes, ours = self._reader.get_variable_to_shape_map(), paths(variables)
        pairs = saved_names(saved, ours) if len(saved) == len(ours) else {}
        for path, variable in zip(ours, variables, strict=True):
            if shapes.get(names.get(pairs.get(path, path), "")) != variable.shape:
                raise CheckpointError(f"cannot be read: it holds no {described(variable)}")
        values = [np.asarray(self._reader.get_tensor(names[pairs[path]])) for path in ours]
        for variable, value in zip(variables, values, strict=True):
            model_weights.check(variable, value)
        return values

    def matched(
        self, groups: Groups, saved: Mapping[str, Sequence[str]]
    ) -> dict[str, keras.Variable]:
        """Returns the variables by the names of their saved values, matched by path.

        If a variable's copies on the replicas were saved too, it is also under the name of these.
        Metrics are left out if the state has none. `matched` allocates nothing: a damaged file may
        claim any shape.

        Args:
            groups: the variables.
            saved: the paths of the saved variables.

        Raises:
            CheckpointError: the state holds other variables; the message is a clause about it.
        """
        shapes = self._reader.get_variable_to_shape_map()
        dtypes = self._reader.get_variable_to_dtype_map()
        result: dict[str, keras.Variable] = {}
        more: dict[str, str] = {}  # the saved paths that no variable here has taken, by key
        for group, ours in paths_of(groups).items():
            if group == METRICS and group not in saved:
                continue
            theirs = saved[group]
            names = {path: _name(group, number) for number, path in enumerate(theirs)}
            more |= {f"{name}{VALUE}": path for path, name in names.items()}
            pairs = saved_names(theirs, ours)
            for path, variable in zip(ours, groups[group], strict=True):
                name = names.get(pairs[path], "")
                key = f"{name}{VALUE}"
                if shapes.pop(key, None) != variable.shape or dtypes[key] != variable.value.dtype:
                    raise CheckpointError(f"cannot be read: it holds no {described(variable)}")
                result[name] = variable
                copies = f"{name}{OF_REPLICAS}"
                if f"{copies}{VALUE}" in shapes:
                    dtype, shape = dtypes[f"{copies}{VALUE}"], shapes.pop(f"{copies}{VALUE}")
                    if replica_values.fits(variable, dtype, shape):
                        result[copies] = variable
        for key in sorted(set(shapes) - {ORIGIN, GRAPH}):
            problem = f"its {more.get(key, key)} is no variable of this run"
            raise CheckpointError(f"cannot be read: {problem}")
        self._check_graph(result)
        return result

    def load(self, variables: Mapping[str, keras.Variable], loose: bool) -> None:
        """Assigns variables their saved values.

        Args:
            variables: the result of `matched`.
            loose: whether weights and the optimizer's state may be infinite or NaN.

        Raises:
            CheckpointError: a saved value is one that no step can produce.
        """
        self._check_values(variables, loose)
        whole = {n: v.value for n, v in variables.items() if not n.endswith(OF_REPLICAS)}
        status = tf.train.Checkpoint(**whole).read(str(self._path)).expect_partial()
        status.assert_existing_objects_matched()
        for name in variables.keys() - whole.keys():
            replica_values.give(variables[name], self._reader.get_tensor(f"{name}{VALUE}"))

    def _nodes(self) -> dict[str, TrackableObjectGraph.TrackableObject]:
        """Reads the nodes of TensorFlow's graph, by the names that values are saved under."""
        nodes = TrackableObjectGraph.FromString(self._reader.get_tensor(GRAPH)).nodes
        return {child.local_name: nodes[child.node_id] for child in nodes[0].children}

    def _check_graph(self, names: Mapping[str, object]) -> None:
        """Refuses a file from which another value would be restored into a variable."""
        nodes = self._nodes()
        for name in names:
            found = [each.checkpoint_key for each in nodes[name].attributes]
            if found != [f"{name}{VALUE}"] or nodes[name].HasField("registered_saver"):
                raise CheckpointError(f"cannot be read: it would restore {found} into {name}")

    def _check_values(self, variables: Mapping[str, keras.Variable], loose: bool) -> None:
        """Refuses values of weights or optimizer variables that no step can produce.

        Means may be infinite or NaN: those of a loss that has diverged, and of a layer's inputs.
        """
        for name, variable in variables.items():
            if not (name.startswith("optimizer") or variable.trainable):
                continue
            value = np.asarray(self._reader.get_tensor(f"{name}{VALUE}"))
            model_weights.check(variable, value, loose)


def _name(group: str, number: int) -> str:
    return f"{group}_{number:05d}"
