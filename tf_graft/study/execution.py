"""Makes the runs of a study, several at a time, each in a process of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tf_graft.core.files.whole_files import write
from tf_graft.processes.cluster import LAUNCHED, SHOWN
from tf_graft.study.outcomes import Outcomes, asked, sums_file
from tf_graft.study.plan import Plan, Trial
from tf_graft.training import config as configs
from tf_graft.training.folder import RunFolder
from tf_graft.training.log import last
from tf_graft.training.stop import StopRequest

GRACE = 60.0  # seconds for the runs to save their states after a signal
WAIT = 0.2  # seconds between two looks at the processes


class Failure(NamedTuple):
    """A run that ended with an error, and the last lines that it printed."""

    trial: Trial
    said: str


class Execution:
    """The runs of a study that are left to make.

    A run that was interrupted continues from its last saved state. A context manager: no process
    remains on exit.

    Args:
        plan: the study.
        jobs: how many runs are made at a time.
        say: called with each line for the user.
    """

    def __init__(self, plan: Plan, jobs: int, say: Callable[[str], None]):
        self.plan, self.outcomes = plan, Outcomes(plan)
        self.failures: list[Failure] = []
        self.running: dict[Trial, subprocess.Popen[bytes]] = {}
        self._jobs, self._say = jobs, say

    def __enter__(self) -> "Execution":
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGTERM)

    def run(self, shown: Callable[[], None] = lambda: None) -> int | None:
        """Makes all runs; returns the signal that stopped them, None if they have ended.

        Args:
            shown: called again and again, to show how far the runs are.
        """
        with StopRequest().listening() as stop:
            while stop.signum is None:
                self._collect()
                while len(self.running) < self._jobs and (trial := next(self._left(), None)):
                    self._start(trial)
                if not self.running:
                    return None
                shown()
                time.sleep(WAIT)
            self._end(stop.signum)
            return stop.signum

    def _left(self) -> Iterator[Trial]:
        """Yields the runs that can be made now: those before them have ended."""
        tried = {failure.trial for failure in self.failures} | self.running.keys()
        for trial in self._needed():
            waits = trial in tried or not self.outcomes.ready(trial)
            if not waits and self.outcomes.metric(trial) is None:
                yield trial

    def _needed(self) -> Iterator[Trial]:
        """Yields all runs that are known to be needed, those of the first seed first.

        Those of further seeds are known once a sweep has chosen its value.
        """
        for cell in self.plan.cells:
            yield from self.plan.searches(cell)
        for cell in self.plan.cells:
            value = self.outcomes.chosen(cell)
            if value is not None:
                yield from (self.plan.trial(cell, value, s) for s in self.plan.study.seeds[1:])

    def _start(self, trial: Trial) -> None:
        config = self.outcomes.config(trial)
        self.outcomes.check(trial, config)
        trial.folder.parent.mkdir(parents=True, exist_ok=True)
        write(asked(trial), configs.dump(config))
        sums_file(trial).unlink(missing_ok=True)
        if sums := self.outcomes.sums(trial):
            write(sums_file(trial), sums)
        overrides = self.plan.overrides(trial, self.outcomes.chosen_before(trial.cell))
        file = str(self.plan.config_file(trial))
        command = [sys.executable, "-m", "tf_graft", "train", file, *overrides]
        threads = str(max(1, (os.cpu_count() or 1) // self._jobs))
        limits = dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), threads)
        with open(_output(trial), "wb") as output:
            self.running[trial] = subprocess.Popen(
                [*command, "run.progress=none"],
                env=limits | os.environ | {LAUNCHED: "1"},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _collect(self) -> None:
        """Takes the processes away that have ended, and says how their runs went."""
        ended = {t: p.returncode for t, p in self.running.items() if p.poll() is not None}
        for trial, code in ended.items():
            process = self.running.pop(trial)
            if process.stdin:
                process.stdin.close()
            metric = self.outcomes.metric(trial)
            if code or metric is None:
                self.failures.append(Failure(trial, said(trial)))
                self._say(f"{trial.name}: failed.")
            else:
                self._say(f"{trial.name}: {self.plan.study.metric} {metric:.4g}")

    def _end(self, signum: int) -> None:
        """Sends a signal to all processes, and waits for them; those that do not end are killed."""
        for process in self.running.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signum)
        until = time.monotonic() + GRACE
        for process in self.running.values():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if process.stdin:
                process.stdin.close()
        self.running.clear()


def said(trial: Trial) -> str:
    """Returns the last lines that a run printed."""
    lines = _output(trial).read_text(errors="replace").splitlines()
    return "\n".join(lines[-SHOWN:])


def progress(trial: Trial) -> str:
    """Says how far a run is, from its log."""
    row = last(RunFolder(str(trial.folder)).steps)
    return f"step {row['step']:,.0f}, loss {row['loss']:.4g}" if row else "begins"


def _output(trial: Trial) -> Path:
    return trial.folder.with_suffix(".txt")
