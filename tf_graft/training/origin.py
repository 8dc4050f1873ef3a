"""What a checkpoint knows of its run: the config, its step, and what the logs held then."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from tf_graft.core.checks import CheckpointError
from tf_graft.report import records
from tf_graft.report.rows import Rows
from tf_graft.training import config as configs
from tf_graft.training import log
from tf_graft.training.folder import FREE, RunFolder
from tf_graft.training.schema import RunConfig


class OfLog(CheckpointError):
    """A log of the run that is not as a checkpoint left it."""


class Now(NamedTuple):
    """Where a run stands.

    Args:
        step: how many steps it has taken.
        checksums: of its logs, by name.
        paths: of its variables, by group; None in states of versions before 0.2.
    """

    step: int
    checksums: Mapping[str, int]
    paths: Mapping[str, Sequence[str]] | None = None


class Origin(tf.train.experimental.PythonState):
    """Is saved in a checkpoint; tells whether one is of this run, and goes with its logs.

    Args:
        config: of the run.
        folder: of the run.
        last: the step at which the run ends.
    """

    def __init__(self, config: RunConfig, folder: RunFolder, last: int) -> None:
        self._config, self._path, self._last = config, folder.path, last
        self._logs: dict[Path, Callable[[Path], Rows]] = {
            folder.steps: log.rows,
            folder.metrics: log.rows,
            folder.records: records.rows,
        }
        self.now = Now(0, {})

    def serialize(self) -> str:
        """The config, and where the run stands, as JSON.

        No variable: on a mesh all that is saved together must be there.
        """
        return json.dumps({"config": self._config.model_dump(mode="json"), **self.now._asdict()})

    def deserialize(self, string_value: bytes) -> None:
        """Changes nothing: `check` has read it."""

    def check(self, saved: bytes | None, step: int) -> list[str]:
        """Refuses a state of another run, or one that the logs do not lead up to.

        Args:
            saved: what the checkpoint holds; None in those of version 0.1, which know no run.
            step: of the state.

        Returns:
            What the user should know, a line each.

        Raises:
            CheckpointError: the state is refused; the message is a clause about it.
        """
        checksums = None if saved is None else self._checksums_in(saved, step)
        notices = []
        for path, read in self._logs.items():
            if checksums is None and path.name == records.FILE and not path.exists():
                continue  # that version did not say whether there is one
            if checksums is not None and path.name not in checksums:
                continue
            expected, rows = (checksums or {}).get(path.name), read(path)
            if rows.lost(step, expected):
                notices.append(
                    f"{path} is gone or empty: the rows up to step {step} are lost, and the run "
                    "goes on without them."
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
    """The config of a run, and where it stood, in what `serialize` returned.

    Raises:
        CheckpointError: it is something else; the message is a clause about it.
    """
    try:
        fields = json.loads(saved)
        paths = fields.get("paths")
        if paths is not None:
            paths = {group: [str(path) for path in listed] for group, listed in paths.items()}
        then = Now(fields["step"], dict(fields["checksums"]), paths)
        return RunConfig.model_validate(fields["config"]), then
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
    ):  # pydantic's is a ValueError
        raise CheckpointError("cannot be read: it does not say of which run it is") from None
