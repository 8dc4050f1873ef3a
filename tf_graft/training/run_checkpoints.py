"""Checkpoints of a run: every variable that the next step depends on, and the step's number."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import tensorflow as tf

from tf_graft.core.errors import CheckpointError
from tf_graft.core.files.model_weights import clause
from tf_graft.core.files.whole_files import kind, remove, whole, write
from tf_graft.grafting import records
from tf_graft.report import ReportError
from tf_graft.training import replica_values, shared_state
from tf_graft.training.origin import Now, OfLog, Origin, parsed
from tf_graft.training.saved_state import UNREADABLE, Groups, SavedState, keyed, paths_of

LATEST = "checkpoint"  # the file in which TensorFlow finds the name of the newest state

# The files of a state that a kill interrupted: ours, and those that TensorFlow writes into them.
LEFT = re.compile(r"(ckpt-\d+|checkpoint)\.part|ckpt-\d+_temp|checkpoint\.tmp\w+")


class Checkpoints:
    """Saves and restores the states of a run in `folder`, and keeps the newest `keep` of them.

    A state consists of the weights, the state of dropout and other random generators, the
    optimizer's state, and the running metrics of the current epoch.

    Several processes with a mesh call the same methods at the same time, on one folder that all can
    reach. Each process writes and reads the shards of its devices; the first completes a state and
    removes others.

    Args:
        folder: the folder of the states.
        groups: the variables.
        keep: how many states are kept.
        origin: a state's description of itself.
        mesh: the mesh that several processes share, if there is one.
        loose: whether weights and the optimizer's state may be infinite or NaN.
    """

    def __init__(
        self,
        folder: Path,
        groups: Groups,
        keep: int,
        origin: Origin,
        mesh: tf.experimental.dtensor.Mesh | None = None,
        loose: bool = False,
    ) -> None:
        self._folder, self._origin, self._keep = folder, origin, keep
        self._groups, self._mesh, self._loose = groups, mesh, loose

    def save(self, step: int, logs: Mapping[str, int]) -> None:
        """Writes the state after `step`, whole or not at all; `logs` are checksums by name."""
        self._origin.now = Now(step, logs, paths_of(self._groups))
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"ckpt-{step}"
        if self._mesh is not None:
            shared_state.write(path, self._mesh, keyed(self._groups), self._origin.serialize())
            if not shared_state.completes():
                return
        else:
            variables = keyed(self._groups)
            tensors = {name: variable.value for name, variable in variables.items()}
            tensors |= replica_values.differing(variables)
            with whole(path) as part:
                tf.train.Checkpoint(origin=self._origin, **tensors).write(str(part))
        for path in states(self._folder):
            if number(path) > step:  # a state of steps that will be taken again
                remove(_index(path))
        self.settle(step)

    def settle(self, step: int) -> None:
        """Makes the state after `step` the latest, and removes states and files not to keep."""
        found = [path for path in states(self._folder) if number(path) <= step]
        if found:  # for `tf.train.latest_checkpoint`; a run does not read it
            write(self._folder / LATEST, f'model_checkpoint_path: "{found[0].name}"\n')
        for path in found[self._keep :]:
            remove(_index(path))
        names = {path.name for path in states(self._folder)}
        for path in list(self._folder.glob("c*")):
            data = re.fullmatch(r"(ckpt-\d+)\.data-.*", path.name)
            if LEFT.fullmatch(path.name) or (data and data[1] not in names):
                remove(path)

    def restore(self, say: Callable[[str], None]) -> int:
        """Loads the newest readable state, and returns its step; 0 if there are no states.

        Raises:
            CheckpointError: there are states, but the run can continue from none of them.
        """
        latest = self._folder / LATEST
        if (what := kind(latest)) not in ("file", None):
            raise CheckpointError(f"{latest} is a {what}, which no run makes; move it away.")
        problems = []
        for path in states(self._folder):
            try:
                notices = self._load(path, number(path))
            except UNREADABLE as error:
                problems.append((f"{path} {clause(error)}.", isinstance(error, OfLog)))
                continue
            for problem, _ in problems:
                say(f"{problem} Continuing from {path.name} instead.")
            for notice in notices:
                say(notice)
            return number(path)
        if not problems:
            return 0
        problem, of_log = problems[0]
        advice = "Put back a copy of that log, or remove it to continue without its rows; or start"
        raise CheckpointError(f"{problem} {advice if of_log else 'Start'} afresh: run.fresh=true.")

    def _load(self, path: Path, step: int) -> list[str]:
        """Loads a state if it is whole and of this run; returns notices for the user."""
        state = SavedState(path)
        origin = state.origin()
        variables = state.matched(self._groups, parsed(origin)[1].paths)
        notices = self._origin.check(origin, step)
        state.load(variables, self._loose)
        return notices


def check_records(folder: Path) -> None:
    """Refuses records in a run's folder that differ from those when its newest state was saved.

    Damage that shows in the file alone is left to its reader.

    Raises:
        ReportError: rows are missing, or belong to another run.
    """
    path = folder / records.FILE
    for state in states(folder / "checkpoints"):
        try:
            expected = parsed(SavedState(state).origin())[1].checksums.get(path.name)
        except UNREADABLE:
            continue
        found = records.rows(path)
        wrong = found.misfit(number(state), expected)
        if wrong and path.exists() and not found.damage:
            raise ReportError(
                f"{state} does not go with {path}, whose {wrong}; put back a copy, or report on "
                f"the file alone: tf-graft report {path}"
            )
        return


def states(folder: Path) -> list[Path]:
    """Lists the states in a folder, the newest first; a state exists if its index does."""
    found = [path.with_suffix("") for path in folder.glob("ckpt-*.index")]
    found = [path for path in found if re.fullmatch(r"ckpt-\d+", path.name)]
    return sorted(found, key=number, reverse=True)


def number(path: Path) -> int:
    """Returns the step of a state."""
    return int(path.name[5:])


def _index(path: Path) -> Path:
    return path.with_name(f"{path.name}.index")
