"""The folder of a run: its config, its logs, its results."""

import csv
import io
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tf_graft.report import records
from tf_graft.training import config as configs
from tf_graft.training.errors import ConfigError, Source
from tf_graft.training.schema import RunConfig

# These may change between two sessions of a run: they do not change what is computed.
FREE = (
    "data.dir",
    "run.checkpoint_every",
    "run.dir",
    "run.epochs",
    "run.fresh",
    "run.keep_checkpoints",
    "run.progress",
    "run.tensorboard",
)


class RunFolder:
    """The files of one run.

    config.yaml   the config as resolved
    steps.csv     a row a step: step, epoch, loss, learning_rate
    metrics.csv   a row an epoch: the means over the training data, and the test data's
    plot.png      both, drawn
    summary.json  the final numbers; written last
    model.keras   the trained model
    checkpoints/  states to resume from
    graft.records, report.html  what a graft measured, and `tf-graft report` on it
    tensorboard/  the metrics for TensorBoard
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.config, self.steps, self.metrics, self.plot, self.summary, self.model = (
            self.path / name
            for name in (
                "config.yaml",
                "steps.csv",
                "metrics.csv",
                "plot.png",
                "summary.json",
                "model.keras",
            )
        )
        self.records, self.report = self.path / records.FILE, self.path / "report.html"
        self.checkpoints, self.tensorboard = self.path / "checkpoints", self.path / "tensorboard"

    def check(self, config: RunConfig, source: Source) -> None:
        """Refuses a folder that holds another run, or something else. Changes nothing."""
        if not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir())):
            return
        if not self.config.is_file():
            message = f"{self.path} holds other things than a run; choose another run.dir."
            raise source.error(("run", "dir"), message)
        if config.run.fresh:
            return
        changes = configs.differences(configs.load(self.config, own=True)[0], config, FREE)
        if changes:
            more = f" (and {len(changes) - 1} more)" if len(changes) > 1 else ""
            raise ConfigError(
                f"{self.path} holds a run of another config: {changes[0]}{more}; choose another "
                "run.dir, or start afresh with run.fresh=true."
            )

    def open(self, config: RunConfig) -> None:
        """Creates the folder, emptied of an earlier run where `run.fresh` says so."""
        if config.run.fresh and self.config.is_file():
            for path in (
                self.steps,
                self.metrics,
                self.plot,
                self.summary,
                self.model,
                self.records,
                self.report,
                self.config,
            ):
                path.unlink(missing_ok=True)
            for path in (self.checkpoints, self.tensorboard):
                shutil.rmtree(path, ignore_errors=True)
        self.path.mkdir(parents=True, exist_ok=True)
        write(self.config, configs.dump(config))

    def finished(self) -> dict[str, Any] | None:
        """The summary of the last complete session."""
        try:
            return dict(json.loads(self.summary.read_text()))
        except (FileNotFoundError, ValueError):
            return None


class Log:
    """A CSV that grows by rows and never holds one twice, whatever happens to the process.

    Opened at step `n`, rows of later steps, and what a killed process left of a row, are dropped.
    """

    def __init__(self, path: Path, columns: Sequence[str], step: int) -> None:
        kept = _complete_rows(path, columns, step)
        write(path, "".join([",".join(columns) + "\n", *kept]))
        self._columns = columns
        self._file = open(path, "a", buffering=1)  # noqa: SIM115  (a line at a time, for long)

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row; floats in the shortest form that reads back as the same float32."""
        values = (row[column] for column in self._columns)
        texts = (str(np.float32(v) if isinstance(v, float) else v) for v in values)
        self._file.write(",".join(texts) + "\n")

    def sync(self) -> None:
        """Returns when the rows are on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Ends the log."""
        self._file.close()


def read(path: Path) -> dict[str, np.ndarray]:
    """The columns of a log."""
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    return {name: np.array([float(row[name]) for row in rows]) for name in (rows or [{}])[0]}


def write(path: Path, text: str) -> None:
    """Replaces a file whole: a reader sees the old text or the new one."""
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_text(text)
    os.replace(temporary, path)


def _complete_rows(path: Path, columns: Sequence[str], step: int) -> list[str]:
    if not path.exists():
        return []
    header, *rows = path.read_text(errors="replace").splitlines(keepends=True) or [""]
    if header.strip().split(",") != list(columns):
        return []
    position = columns.index("step")
    complete = [row for row in rows if row.endswith("\n") and row.count(",") == len(columns) - 1]
    numbers = [row.split(",")[position] for row in complete]
    return [row for row, n in zip(complete, numbers, strict=True) if n.isdigit() and int(n) <= step]
