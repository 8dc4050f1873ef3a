"""The folder of a run: its config, its logs, its results."""

import contextlib
import enum
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from tf_graft.core.whole_files import part_of, remove, write
from tf_graft.report import records
from tf_graft.report.errors import Unwritable
from tf_graft.training import config as configs
from tf_graft.training import results
from tf_graft.training.errors import ConfigError, Source, reason
from tf_graft.training.lock import InUse, locked
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


class State(enum.Enum):
    """Where a run stands, told by what its folder holds; see `RunFolder`."""

    NEW = enum.auto()
    RUN = enum.auto()
    EMPTYING = enum.auto()
    FOREIGN = enum.auto()


class FolderError(OSError):
    """A run cannot write to its folder; the message says what, why, and how to go on."""


class RunFolder:
    """The files of one run, and the states of a run.

    config.yaml   the config as resolved
    steps.csv     a row a step: step, epoch, loss, learning_rate
    metrics.csv   a row an epoch: the means over the training data, and the test data's
    plot.png      both, drawn
    summary.json  the final numbers; written last
    model.keras   the trained model
    checkpoints/  states to resume from
    graft.records, report.html  what a graft measured, and `tf-graft report` on it
    tensorboard/  the metrics for TensorBoard
    run.lock      which process writes here, while it does

    A run can be killed at any moment: what a folder holds tells where the run stands, and each
    step from one state to the next is a single operation on a file.

    state     the folder holds        what begins or goes on there does
    NEW       nothing                 puts config.yaml in its place; then it is a RUN
    RUN       config.yaml             goes on from the newest checkpoint, from none at step 0, and
                                      writes summary.json when all else is in its place;
                                      with run.fresh, renames config.yaml to config.yaml.emptying
    EMPTYING  config.yaml.emptying    removes what the run has left; then as if NEW, and removes
              and no config.yaml      config.yaml.emptying
    FOREIGN   something else          is refused

    A checkpoint is there when its index is, a log's rows once it comes after them. Anything else
    gets its place whole, by way of `<name>.part`; those that a kill has left count for nothing,
    and are removed when a run begins or goes on.
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
        self._emptying, self._lock = self.path / "config.yaml.emptying", self.path / "run.lock"

    def state(self) -> State:
        """Where the run stands.

        Raises:
            OSError: the folder cannot be read, or is none.
        """
        try:
            held = set(self.path.iterdir())
        except FileNotFoundError:
            return State.NEW
        if self.config in held:
            return State.RUN
        if self._emptying in held:
            return State.EMPTYING
        return State.FOREIGN if held - {self._lock, part_of(self.config)} else State.NEW

    def check(self, config: RunConfig, source: Source) -> None:
        """Refuses a folder that holds another run, or something else. Changes nothing."""
        with self._usable(source):
            state = self.state()
            self._check_kinds(source)
        if state == State.FOREIGN:
            message = f"{self.path} holds other things than a run; choose another run.dir."
            raise source.error(("run", "dir"), message)
        if state != State.RUN or config.run.fresh:
            return
        changes = configs.differences(configs.load(self.config, own=True)[0], config, FREE)
        if changes:
            more = f" (and {len(changes) - 1} more)" if len(changes) > 1 else ""
            raise ConfigError(
                f"{self.path} holds a run of another config: {changes[0]}{more}; choose another "
                "run.dir, or start afresh with run.fresh=true."
            )

    @contextlib.contextmanager
    def opened(
        self, config: RunConfig, source: Source, say: Callable[[str], None]
    ) -> Iterator[None]:
        """Has this process alone write to the folder, which is made, and emptied where asked to.

        Raises:
            ConfigError: the folder cannot be used; what it holds is as before.
            FolderError: the folder cannot be written to any more.
        """
        with contextlib.ExitStack() as stack:
            with self._usable(source):
                self.path.mkdir(parents=True, exist_ok=True)
                if not stack.enter_context(locked(self._lock)):
                    say(f"{self.path} cannot be locked: see that no other process uses it.")
            self.check(config, source)  # again: another process may have changed it
            with self._sentences():
                self._begin(config)
                yield

    def goes_on(self, config: RunConfig) -> bool:
        """Whether there are states to resume from, whoever empties the folder at this moment."""
        return not config.run.fresh and self.state() == State.RUN

    def finished(self) -> dict[str, Any] | None:
        """The summary of the last complete session; None where there is none.

        Raises:
            OSError: it cannot be read.
            ValueError: it is damaged.
        """
        if self.state() != State.RUN or not self.summary.exists():
            return None
        summary = results.read(self.summary)
        return summary if self.model.exists() else None

    def _begin(self, config: RunConfig) -> None:
        """Takes the folder to the state RUN, in the steps that the class describes."""
        if config.run.fresh and self.config.exists():
            os.replace(self.config, self._emptying)
        if self._emptying.exists() and not self.config.exists():
            for path in (*self._files(), *self._folders()):
                remove(path)
        for path in (self.config, *self._files()):
            remove(part_of(path))
        remove(self.path / "part.keras")  # of versions before 0.2
        write(self.config, configs.dump(config))
        remove(self._emptying)

    def _files(self) -> tuple[Path, ...]:
        """All but the config, which comes first and goes last."""
        logs = self.steps, self.metrics, self.records
        return *logs, self.plot, self.summary, self.model, self.report

    def _folders(self) -> tuple[Path, ...]:
        return self.checkpoints, self.tensorboard

    def _check_kinds(self, source: Source) -> None:
        folders = [path for path in (self.config, *self._files(), self._lock) if path.is_dir()]
        files = [path for path in self._folders() if path.exists() and not path.is_dir()]
        for path in (*folders, *files):
            what = "folder" if path in folders else "file"
            raise source.error(
                ("run", "dir"),
                f"{path} is a {what}, which no run makes; move it away, or choose another run.dir.",
            )

    @contextlib.contextmanager
    def _usable(self, source: Source) -> Iterator[None]:
        """Says what is wrong with `run.dir` where the folder cannot be used."""
        try:
            yield
        except InUse as holder:
            message = f"{self.path} is in use by {holder}; wait for it to end"
        except OSError as error:
            message = f"{self.path} cannot be used ({reason(error)}); mend that"
        else:
            return
        raise source.error(("run", "dir"), f"{message}, or choose another run.dir.") from None

    @contextlib.contextmanager
    def _sentences(self) -> Iterator[None]:
        """Says what to do where a file of the run cannot be written."""
        try:
            yield
        except (OSError, tf.errors.OpError, Unwritable) as error:
            said = self._said(error)
            if said is None:
                raise
            raise FolderError(
                f"{said}; nothing that was saved is lost: once that is mended, the same command "
                "goes on."
            ) from error

    def _said(self, error: Exception) -> str | None:
        """A file and what is wrong with it; None for errors that are of no file of the run."""
        if isinstance(error, OSError):
            closed = isinstance(error, ConnectionError)  # by who reads our output
            return None if closed else f"{error.filename or self.path}: {reason(error)}"
        if isinstance(error, Unwritable):
            return str(error).removesuffix(".")
        pattern = rf"({re.escape(str(self.path))}\S*); ([^\n\[]*)"  # as TensorFlow says it
        found = re.search(pattern, str(error))
        return found and f"{found[1]}: {found[2].strip().lower()}"
