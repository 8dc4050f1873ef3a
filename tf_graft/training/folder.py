"""The folder of a run: its config, its logs, its results."""

import contextlib
import enum
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tf_graft.core.files.whole_files import Moved, is_at, kind, part_of, remove, write
from tf_graft.grafting import records
from tf_graft.monitor import norms_file as norms
from tf_graft.training import config as configs
from tf_graft.training import results
from tf_graft.training.folder_errors import sentences, usable
from tf_graft.training.lock import locked
from tf_graft.training.schema import RunConfig
from tf_graft.training.source import ConfigError
from tf_graft.training.stop import continuing

# The keys that may change between two sessions of a run: they do not affect what it computes.
FREE = (
    "data.dir",
    "mesh",  # the numbers are the same on all
    "run.checkpoint_every",
    "run.dir",
    "run.epochs",
    "run.fresh",
    "run.keep_checkpoints",
    "run.progress",
    "run.tensorboard",
)
SPLITS = ("train", "test")  # each has a folder for TensorBoard
SHOWN = 3  # the number of differing keys that a message names


class State(enum.Enum):
    """The state of a run, as its folder's content shows it; see `RunFolder`."""

    NEW = enum.auto()
    RUN = enum.auto()
    EMPTYING = enum.auto()
    FOREIGN = enum.auto()


class RunFolder:
    """The files of one run, and the states of a run.

    config.yaml   the config as resolved
    steps.csv     a row per step: step, epoch, loss, learning_rate
    metrics.csv   a row per epoch: the means over the training data, and the test data
    plot.png      a plot of both
    summary.json  the final numbers; written last
    model.keras   the trained model
    checkpoints/  states to resume from
    averaged.keras  the output of `tf-graft average`
    graft.records a graft's measurements
    norms.csv     the measurements of run.monitor
    report.html   the output of `tf-graft report`
    tensorboard/  the metrics for TensorBoard
    run.lock      the process that writes here, while it runs

    A run can be killed at any moment: the folder's content shows its state, and each transition
    from one state to the next is a single operation on a file.

    state     the folder holds        the next session
    NEW       nothing                 writes config.yaml; then the state is RUN
    RUN       config.yaml             continues from the newest checkpoint, or at step 0, and
                                      writes summary.json after all other files;
                                      with run.fresh, renames config.yaml to config.yaml.emptying
    EMPTYING  config.yaml.emptying    removes the files of the run; then acts as in NEW, and
              and no config.yaml      removes config.yaml.emptying
    FOREIGN   something else          is refused

    A checkpoint exists when its index exists; rows of a log count once a checkpoint follows them.
    All other files are written whole, via `<name>.part`; such parts that a kill has left are
    ignored, and removed when a run begins or continues. A link to a folder is used, and never
    emptied; one to a file is read, and replaced by the file that a run writes.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.config, self.steps, self.metrics, self.plot, self.summary, self.model = (
            self.path / name
            for name in (
                configs.FILE,
                "steps.csv",
                "metrics.csv",
                "plot.png",
                "summary.json",
                "model.keras",
            )
        )
        self.records, self.report = self.path / records.FILE, self.path / "report.html"
        self.norms, self.averaged = self.path / norms.FILE, self.path / "averaged.keras"
        self.checkpoints, self.tensorboard = self.path / "checkpoints", self.path / "tensorboard"
        self._opened: os.stat_result | None = None
        self._emptying, self._lock = self.path / f"{configs.FILE}.emptying", self.path / "run.lock"

    @classmethod
    def of(cls, config: RunConfig) -> "RunFolder":
        """Returns the folder of the run that a config describes."""
        return cls(config.run.dir or "runs/run")

    def state(self) -> State:
        """Returns the state of the run.

        Raises:
            OSError: the folder cannot be read, or is not a folder.
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

    def check(self, config: RunConfig) -> None:
        """Refuses a folder that holds another run, or something else. Changes nothing."""
        with usable(self.path, config):
            state = self.state()
            self._check_kinds(config)
            if state == State.EMPTYING or config.run.fresh:
                self._check_links(config)
        if state == State.FOREIGN:
            message = f"{self.path} holds other things than a run; choose another run.dir."
            raise config.error(("run", "dir"), message)
        if state != State.RUN or config.run.fresh:
            return
        old = configs.load(self.config, own=True)
        changes = configs.differences(old, config, FREE)
        if changes:
            more = f" (and {len(changes) - SHOWN} more)" if len(changes) > SHOWN else ""
            said = ", ".join(changes[:SHOWN]) + more
            if old.run.epochs != config.run.epochs and "optimizer." in said:
                said += f"; 'total' depends on run.epochs, which was {old.run.epochs}"
            raise ConfigError(
                f"{self.path} holds a run of another config: {said}; choose another "
                "run.dir, or start afresh with run.fresh=true."
            )

    @contextlib.contextmanager
    def opened(self, config: RunConfig, say: Callable[[str], None]) -> Iterator[None]:
        """Locks the folder for this process; creates it, or empties it with `run.fresh`.

        Raises:
            ConfigError: the folder cannot be used; its content has not changed.
            FolderError: the folder can no longer be written to.
        """
        with contextlib.ExitStack() as stack:
            with usable(self.path, config):
                self.path.mkdir(parents=True, exist_ok=True)
                if not stack.enter_context(locked(self._lock)):
                    say(f"{self.path} cannot be locked: see that no other process uses it.")
                self._opened = self.path.stat()
            self.check(config)  # again: another process may have changed it
            with sentences(self.path, continuing(config)):
                self._begin(config)
                yield
                self.check_place()

    def check_place(self) -> None:
        """Refuses to continue if the folder is no longer the one that was opened.

        Raises:
            Moved: the folder is another one.
        """
        if self._opened is not None and not is_at(self._opened, self.path):
            raise Moved(self.path)

    def goes_on(self, config: RunConfig) -> bool:
        """Returns whether a run continues here, even while another process empties the folder."""
        return not config.run.fresh and self.state() == State.RUN

    def resumes(self, config: RunConfig) -> bool:
        """Returns whether a run continues here from a saved state.

        Raises:
            ConfigError: the folder cannot be read.
        """
        with usable(self.path, config):
            return self.goes_on(config) and any(self.checkpoints.glob("ckpt-*.index"))

    def finished(self) -> results.Numbers | None:
        """Reads the summary of the last complete session; None if there is none.

        Raises:
            OSError: the summary cannot be read.
            ValueError: the summary is damaged.
        """
        if self.state() != State.RUN or not self.summary.exists():
            return None
        summary = results.read(self.summary)
        return summary if self.model.exists() else None

    def _begin(self, config: RunConfig) -> None:
        """Brings the folder to the state RUN, by the transitions that the class describes."""
        if config.run.fresh and self.config.exists():
            os.replace(self.config, self._emptying)
        if self._emptying.exists() and not self.config.exists():
            folders = [path for path in self._folders() if not path.is_symlink()]
            for path in (*self._files(), *folders):
                remove(path)
        for path in (self.config, *self._files()):
            remove(part_of(path))
        write(self.config, configs.dump(config))
        remove(self._emptying)

    def _files(self) -> tuple[Path, ...]:
        """Lists all files but the config, which is written first and removed last."""
        logs = self.steps, self.metrics, self.records, self.norms
        return *logs, self.plot, self.summary, self.model, self.averaged, self.report

    def _folders(self) -> tuple[Path, ...]:
        return self.checkpoints, self.tensorboard

    def _check_kinds(self, config: RunConfig) -> None:
        files = (self.config, self._emptying, self._lock, *self._files())
        splits = [self.tensorboard / split for split in SPLITS]
        found = {path: (kind(path), "file") for path in files}
        found |= {path: (kind(path), "folder") for path in (*self._folders(), *splits)}
        if self._lock.is_symlink():
            found[self._lock] = "link", "file"
        for path, (what, must) in found.items():
            if what not in (must, None):
                message = f"{path} is a {what}, which no run makes; move it away, or choose"
                raise config.error(("run", "dir"), f"{message} another run.dir.")

    def _check_links(self, config: RunConfig) -> None:
        """Refuses to begin anew if a link leads to a folder that is not empty."""
        for path in self._folders():
            if path.is_symlink() and any(path.iterdir()):
                message = f"{path} is a link to {path.resolve()}, which no run empties; empty that"
                more = f"{message} yourself, remove the link, or choose another run.dir."
                raise config.error(("run", "dir"), more)
