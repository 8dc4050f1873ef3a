"""The origin of a checkpoint: its run's config, its step, and the logs' checksums at that step."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from tf_graft.core.errors import CheckpointError
from tf_graft.core.files.row_checksums import Rows
from tf_graft.grafting import records
from tf_graft.training import config as configs
from tf_graft.training import log
from tf_graft.training.folder import FREE, RunFolder
from tf_graft.training.schema import RunConfig


class OfLog(CheckpointError):
    """A log of the run differs from the one that a checkpoint was saved with."""


class Now(NamedTuple):
    """The state of a run's progress.

    Args:
        step: the number of steps taken.
        checksums: the checksums of the run's logs, by name.
        paths: the paths of the variables, by group.
    """

    step: int
    checksums: Mapping[str, int]
    paths: Mapping[str, Sequence[str]]


class Origin(tf.train.experimental.PythonState):
    """Saved in each checkpoint; checks that a checkpoint belongs to this run and its logs.

    Args:
        config: the run's config.
        folder: the run's folder.
        last: the step at which the run ends.
    """

    def __init__(self, config: RunConfig, folder: RunFolder, last: int) -> None:
        self._config, self._path, self._last = config, folder.path, last
        self._logs: dict[Path, Callable[[Path], Rows]] = {
            folder.steps: log.rows,
            folder.metrics: log.rows,
            folder.records: records.rows,
        }
        self.now = Now(0, {}, {})

    def serialize(self) -> str:
        """Returns the config and the progress of the run as JSON.

        They are not a variable, because on a mesh all variables that are saved together must be on
        the mesh.
        """
        return json.dumps({"config": self._config.model_dump(mode="json"), **self.now._asdict()})

    def deserialize(self, string_value: bytes) -> None:
        """Does nothing: `check` has read the value."""

    def check(self, saved: bytes, step: int) -> list[str]:
        """Refuses a state of another run, or one that does not match the logs.

        Args:
            saved: the value in the checkpoint.
            step: the step of the state.

        Returns:
            Notices for the user, one per line.

        Raises:
            CheckpointError: the state is refused; the message is a clause about it.
        """
        checksums, notices = self._checksums_in(saved, step), []
        for path, read in self._logs.items():
            if path.name not in checksums:
                continue
            expected, rows = checksums[path.name], read(path)
            if rows.lost(step, expected):
                notices.append(
                    f"{path} is gone or empty: the rows up to step {step} are lost, and the run "
                    "continues without them."
                )
            elif wrong := rows.misfit(step, expected):
                raise OfLog(f"does not go with {path}, whose {wrong}")
        if step > self._last:
            raise CheckpointError(
                f"is beyond the end of the run, which is step {self._last}; raise run.epochs"
            )
        return notices

    def _checksums_in(self, saved: bytes, step: int) -> Mapping[str, int]:
        config, then = parsed(saved)
        if changes := configs.differences(config, self._config, FREE):
            raise CheckpointError(f"is of another run: {changes[0]}")
        if then.step != step:
            raise CheckpointError(f"cannot be read: it says that it is of step {then.step}")
        return then.checksums


def parsed(saved: bytes) -> tuple[RunConfig, Now]:
    """Parses what `serialize` returned: the config of a run, and its progress.

    Raises:
        CheckpointError: the value is invalid; the message is a clause about the state.
    """
    try:
        fields = json.loads(saved)
        paths = {group: [*map(str, listed)] for group, listed in fields["paths"].items()}
        then = Now(fields["step"], dict(fields["checksums"]), paths)
        return RunConfig.model_validate(fields["config"]), then
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise CheckpointError("cannot be read: it does not say of which run it is") from None
