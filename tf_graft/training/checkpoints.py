"""The state of a run on disk: every variable that the next step depends on, and its number."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tf_graft.core.checks import CheckpointError

# What TensorFlow raises on files that are truncated, altered or of another program.
UNREADABLE = (
    tf.errors.OpError,
    AssertionError,
    IndexError,
    RuntimeError,
    TypeError,
    ValueError,
)


class Checkpoints:
    """Saves and restores a run in `folder`, of which the newest `keep` states are kept.

    Saved are the weights, the state of dropout and other random generators, the optimizer's
    state, and the running metrics of an epoch under way.
    """

    def __init__(self, folder: Path, model: keras.Model, keep: int) -> None:
        self._folder = folder
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
        self._checkpoint = tf.train.Checkpoint(step=self._step, **tensors)
        self._keep = keep
        self._manager: Any = None

    def save(self, step: int) -> None:
        """Writes the state after `step`."""
        self._step.assign(step)
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
        found = [path.with_suffix("") for path in self._folder.glob("ckpt-*.index")]
        found = [path for path in found if re.fullmatch(r"ckpt-\d+", path.name)]
        found.sort(key=lambda path: int(path.name[5:]), reverse=True)
        problems = []
        for path in found:
            try:
                self._load(path)
            except UNREADABLE as error:
                reason = str(error).strip().partition("\n")[0]
                problems.append(f"{path} cannot be read: {reason.rstrip('.')}.")
                continue
            for problem in problems:
                say(f"{problem} Going on from {path.name} instead.")
            return int(self._step)
        if problems:
            raise CheckpointError(f"{problems[0]} Start afresh with run.fresh=true.")
        return 0

    def _load(self, path: Path) -> None:
        # Checked before a byte is allocated: a file says what it likes about its sizes.
        reader = tf.train.load_checkpoint(str(path))
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        for name, variable in self._variables.items():
            key = f"{name}/.ATTRIBUTES/VARIABLE_VALUE"
            if shapes.get(key) != variable.shape or dtypes.get(key) != variable.value.dtype:
                message = f"it holds no {variable.path} of shape {tuple(variable.shape)}"
                raise CheckpointError(message)
        self._checkpoint.restore(str(path)).assert_consumed()
