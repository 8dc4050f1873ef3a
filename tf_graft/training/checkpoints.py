"""The state of a run on disk: every variable that the next step depends on, and its number."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from tf_graft.core.checks import CheckpointError
from tf_graft.report import ReportError, records
from tf_graft.training.origin import OfLog, Origin, parsed

# Keys in a file: of a variable's value, after its name; of its run; and of what TensorFlow adds.
VALUE, ORIGIN = "/.ATTRIBUTES/VARIABLE_VALUE", "origin/.ATTRIBUTES/py_state"
UNBOUNDED = (-math.inf, math.inf)
GRAPH, COUNTER = "_CHECKPOINTABLE_OBJECT_GRAPH", f"save_counter{VALUE}"

# What TensorFlow raises on files that are truncated, altered or of another program.
UNREADABLE = (
    tf.errors.OpError,
    DecodeError,
    AssertionError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


class Checkpoints:
    """Saves and restores a run in `folder`, of which the newest `keep` states are kept.

    Saved are the weights, the state of dropout and other random generators, the optimizer's
    state, and the running metrics of an epoch under way.
    """

    def __init__(self, folder: Path, model: keras.Model, keep: int, origin: Origin) -> None:
        self._folder, self._origin = folder, origin
        self._step = tf.Variable(0, dtype=tf.int64)
        groups = {
            "model": model.variables,
            "optimizer": model.optimizer.variables,
            "metrics": model.metrics_variables,
        }
        # Numbered, as names of layers depend on what else the process has made before.
        self._variables = {
            f"{group}_{number:05d}": variable
            for group, variables in groups.items()
            for number, variable in enumerate(variables)
        }
        tensors = {key: variable.value for key, variable in self._variables.items()}
        self._state = tf.train.Checkpoint(step=self._step, **tensors)
        self._checkpoint = tf.train.Checkpoint(origin=origin, step=self._step, **tensors)
        self._keep = keep
        self._manager: Any = None

    def save(self, step: int, logs: Mapping[str, int]) -> None:
        """Writes the state after `step`; `logs` are the logs' checksums, by name."""
        self._step.assign(step)
        self._origin.checksums = logs
        if self._manager is None:
            self._manager = tf.train.CheckpointManager(
                self._checkpoint, str(self._folder), max_to_keep=self._keep
            )
        self._manager.save(checkpoint_number=step)

    def restore(self, say: Callable[[str], None]) -> int:
        """Loads the newest state that can be read, and returns its step; 0 where there is none.

        Raises:
            CheckpointError: there are states, and none of them can be read.
        """
        problems = []
        for path in _states(self._folder):
            try:
                notices = self._load(path, _number(path))
            except UNREADABLE as error:
                problems.append((f"{path} {_clause(error)}.", isinstance(error, OfLog)))
                continue
            for problem, _ in problems:
                say(f"{problem} Going on from {path.name} instead.")
            for notice in notices:
                say(notice)
            return int(self._step)
        if not problems:
            return 0
        problem, of_log = problems[0]
        remove = "Put back a copy of that log, or remove it to go on without its rows; or start"
        raise CheckpointError(f"{problem} {remove if of_log else 'Start'} afresh: run.fresh=true.")

    def _load(self, path: Path, step: int) -> list[str]:
        """Loads a state if it is whole and of this run; returns what the user should know."""
        reader = tf.train.load_checkpoint(str(path))
        self._check_variables(reader)
        _check_graph(reader, [*self._variables, "step"])
        if (said := reader.get_tensor(f"step{VALUE}")) != step:
            raise CheckpointError(f"cannot be read: it says that it is of step {said}")
        notices = self._origin.check(_origin_in(reader), step)
        self._check_values(reader)
        status = self._state.read(str(path))
        status.assert_existing_objects_matched()
        status.expect_partial()  # as to what is no variable
        return notices

    def _check_variables(self, reader: Any) -> None:
        """Refuses other variables before a byte is allocated: a file says what it likes."""
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        for name, variable in self._variables.items():
            key = f"{name}{VALUE}"
            if shapes.pop(key, None) != variable.shape or dtypes[key] != variable.value.dtype:
                message = f"it holds no {variable.path} of shape {tuple(variable.shape)}"
                raise CheckpointError(f"cannot be read: {message}")
        if shapes.pop(f"step{VALUE}", None) != [] or dtypes[f"step{VALUE}"] != tf.int64:
            raise CheckpointError("cannot be read: it holds no step")
        if more := sorted(set(shapes) - {ORIGIN, GRAPH, COUNTER}):
            raise CheckpointError(f"cannot be read: its {more[0]} is no variable of this run")

    def _check_values(self, reader: Any) -> None:
        """Refuses what an optimizer's variable cannot hold, where it says what it can."""
        for name, variable in self._variables.items():
            low, high = getattr(variable, "within", UNBOUNDED)
            if (low, high) != UNBOUNDED:
                value = reader.get_tensor(f"{name}{VALUE}")
                if np.any((value < low) | (value > high)):
                    message = f"{variable.path} must lie in [{low:g}, {high:g}]"
                    raise CheckpointError(f"cannot be read: {message}")


def check_records(folder: Path) -> None:
    """Refuses the records in a run's folder that are not those its newest state was saved with.

    What is damaged in the file itself, it tells by itself.

    Raises:
        ReportError: rows are missing, or are another run's.
    """
    path = folder / records.FILE
    for state in _states(folder / "checkpoints"):
        try:
            saved = _origin_in(tf.train.load_checkpoint(str(state)))
            expected = None if saved is None else parsed(saved)[1].get(path.name)
        except UNREADABLE:
            continue
        found = records.rows(path)
        wrong = found.misfit(_number(state), expected)
        if wrong and path.exists() and not found.damage:
            raise ReportError(
                f"{state} does not go with {path}, whose {wrong}; put back a copy, or report on "
                f"the file alone: tf-graft report {path}"
            )
        return


def _origin_in(reader: Any) -> bytes | None:
    return reader.get_tensor(ORIGIN) if reader.has_tensor(ORIGIN) else None


def _states(folder: Path) -> list[Path]:
    """The states in a folder, the newest first."""
    found = [path.with_suffix("") for path in folder.glob("ckpt-*.index")]
    found = [path for path in found if re.fullmatch(r"ckpt-\d+", path.name)]
    return sorted(found, key=_number, reverse=True)


def _number(path: Path) -> int:
    return int(path.name[5:])


def _check_graph(reader: Any, names: Iterable[str]) -> None:
    """Refuses a file that would have another's value restored into a variable."""
    nodes = TrackableObjectGraph.FromString(reader.get_tensor(GRAPH)).nodes
    children = {child.local_name: nodes[child.node_id] for child in nodes[0].children}
    for name in names:
        found = [each.checkpoint_key for each in children[name].attributes]
        if found != [f"{name}{VALUE}"] or children[name].HasField("registered_saver"):
            raise CheckpointError(f"cannot be read: it would restore {found} into {name}")


def _clause(error: Exception) -> str:
    """What is wrong with a state."""
    reason = str(error).strip().partition("\n")[0].rstrip(".")
    return reason if isinstance(error, CheckpointError) else f"cannot be read: {reason}"
