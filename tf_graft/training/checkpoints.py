"""The state of a run on disk: every variable that the next step depends on, and its number."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core.checks import CheckpointError
from tf_graft.core.whole_files import remove, whole, write
from tf_graft.report import ReportError, records
from tf_graft.training.origin import Now, OfLog, Origin, parsed
from tf_graft.training.saved_state import UNREADABLE, SavedState, keyed, paths_of

LATEST = "checkpoint"  # the file in which TensorFlow looks for the name of the newest state

# What a kill leaves of a state that was being written; the last two by versions before 0.2.
LEFT = re.compile(r"(ckpt-\d+|checkpoint)\.part|ckpt-\d+_temp|checkpoint\.tmp\w+")


class Checkpoints:
    """Saves and restores a run in `folder`, of which the newest `keep` states are kept.

    Saved are the weights, the state of dropout and other random generators, the optimizer's
    state, and the running metrics of an epoch under way.
    """

    def __init__(self, folder: Path, model: keras.Model, keep: int, origin: Origin) -> None:
        self._folder, self._origin, self._keep = folder, origin, keep
        self._groups = {
            "model": model.variables,
            "optimizer": model.optimizer.variables,
            "metrics": model.metrics_variables,
        }
        tensors = {name: variable.value for name, variable in keyed(self._groups).items()}
        self._checkpoint = tf.train.Checkpoint(origin=origin, **tensors)

    def save(self, step: int, logs: Mapping[str, int]) -> None:
        """Writes the state after `step`, whole or not at all; `logs` gives checksums by name."""
        self._origin.now = Now(step, logs, paths_of(self._groups))
        path = self._folder / f"ckpt-{step}"
        with whole(path) as part:
            self._checkpoint.write(str(part))
        for path in _states(self._folder):
            if _number(path) > step:  # of steps that are being taken again
                remove(_index(path))
        self.settle(step)

    def settle(self, step: int) -> None:
        """Has the folder say that the state after `step` is the latest, and hold those to keep."""
        states = [path for path in _states(self._folder) if _number(path) <= step]
        if states:  # for `tf.train.latest_checkpoint`; a run looks at the states themselves
            write(self._folder / LATEST, f'model_checkpoint_path: "{states[0].name}"\n')
        for path in states[self._keep :]:
            remove(_index(path))
        names = {path.name for path in _states(self._folder)}
        for path in list(self._folder.glob("c*")):
            data = re.fullmatch(r"(ckpt-\d+)\.data-.*", path.name)
            if LEFT.fullmatch(path.name) or (data and data[1] not in names):
                remove(path)

    def restore(self, say: Callable[[str], None]) -> int:
        """Loads the newest state that can be read, and returns its step; 0 where there is none.

        Raises:
            CheckpointError: there are states, and the run can go on from none of them.
        """
        if (latest := self._folder / LATEST).is_dir():
            raise CheckpointError(f"{latest} is a folder, which no run makes; move it away.")
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
            return _number(path)
        if not problems:
            return 0
        problem, of_log = problems[0]
        advice = "Put back a copy of that log, or remove it to go on without its rows; or start"
        raise CheckpointError(f"{problem} {advice if of_log else 'Start'} afresh: run.fresh=true.")

    def _load(self, path: Path, step: int) -> list[str]:
        """Loads a state if it is whole and of this run; returns what the user should know."""
        state = SavedState(path)
        origin = state.origin()
        if origin is None and not np.array_equal(said := state.step(), step):
            raise CheckpointError(f"cannot be read: it says that it is of step {said}")
        paths = None if origin is None else parsed(origin)[1].paths
        variables = state.matched(self._groups, paths)
        notices = self._origin.check(origin, step)
        state.load(variables)
        return notices


def check_records(folder: Path) -> None:
    """Refuses the records in a run's folder that are not those its newest state was saved with.

    What is damaged in the file itself, it tells by itself.

    Raises:
        ReportError: rows are missing, or are another run's.
    """
    path = folder / records.FILE
    for state in _states(folder / "checkpoints"):
        try:
            saved = SavedState(state).origin()
            expected = None if saved is None else parsed(saved)[1].checksums.get(path.name)
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


def _states(folder: Path) -> list[Path]:
    """The states in a folder, the newest first: one is there when its index is."""
    found = [path.with_suffix("") for path in folder.glob("ckpt-*.index")]
    found = [path for path in found if re.fullmatch(r"ckpt-\d+", path.name)]
    return sorted(found, key=_number, reverse=True)


def _number(path: Path) -> int:
    return int(path.name[5:])


def _index(path: Path) -> Path:
    return path.with_name(f"{path.name}.index")


def _clause(error: Exception) -> str:
    """What is wrong with a state."""
    reason = str(error).strip().partition("\n")[0].rstrip(".")
    return reason if isinstance(error, CheckpointError) else f"cannot be read: {reason}"
