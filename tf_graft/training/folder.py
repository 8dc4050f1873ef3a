"""The folder of a run: its config, its logs, its results."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

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
        changes = configs.differences(configs.load(self.config)[0], config, FREE)
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


def write(path: Path, text: str) -> None:
    """Replaces a file whole: a reader sees the old text or the new one."""
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_text(text)
    os.replace(temporary, path)
