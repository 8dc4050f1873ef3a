"""The state of a run on disk: every variable that the next step depends on, and its number."""

import re
from collections.abc import Callable
from pathlib import Path

import keras
import tensorflow as tf

from tf_graft.core.checks import CheckpointError
from tf_graft.training.whole import remove, whole, write

# What TensorFlow raises on files that are truncated, altered or of another program.
UNREADABLE = (
    tf.errors.OpError,
    AssertionError,
    IndexError,
    RuntimeError,
    TypeError,
    ValueError,
)

# What a kill leaves of a state that was being written; the last two by versions before 0.2.
LEFT = re.compile(r"(ckpt-\d+|checkpoint)\.part|ckpt-\d+_temp|checkpoint\.tmp\w+")


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

    def save(self, step: int) -> None:
        """Writes the state after `step`, whole or not at all."""
        self._step.assign(step)
        path = self._folder / f"ckpt-{step}"
        self._checkpoint.save_counter.assign_add(1)
        with whole(path) as part:
            self._checkpoint.write(str(part))
        for path in _states(self._folder):
            if _number(path) > step:  # of steps that are being taken again
                _index(path).unlink()
        self.settle(step)

    def settle(self, step: int) -> None:
        """Has the folder say that the state after `step` is the latest, and hold those to keep."""
        states = [path for path in _states(self._folder) if _number(path) <= step]
        if states:  # for `tf.train.latest_checkpoint`; a run looks at the states themselves
            write(self._folder / "checkpoint", f'model_checkpoint_path: "{states[0].name}"\n')
        for path in states[self._keep :]:
            _index(path).unlink()
        names = {path.name for path in _states(self._folder)}
        for path in list(self._folder.glob("c*")):
            data = re.fullmatch(r"(ckpt-\d+)\.data-.*", path.name)
            if LEFT.fullmatch(path.name) or (data and data[1] not in names):
                remove(path)

    def restore(self, say: Callable[[str], None]) -> int:
        """Loads the newest state that can be read, and returns its step; 0 where there is none.

        Raises:
            CheckpointError: there are states, and none of them can be read.
        """
        problems = []
        for path in _states(self._folder):
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


def _states(folder: Path) -> list[Path]:
    """The states in a folder, the newest first: one is there when its index is."""
    found = [path.with_suffix("") for path in folder.glob("ckpt-*.index")]
    found = [path for path in found if re.fullmatch(r"ckpt-\d+", path.name)]
    return sorted(found, key=_number, reverse=True)


def _number(path: Path) -> int:
    return int(path.name[5:])


def _index(path: Path) -> Path:
    return path.with_name(f"{path.name}.index")
