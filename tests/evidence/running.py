"""Makes parts of the evidence, each in a process of its own, and reads what it says at its end."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO

from evidence import changes
from evidence.ledger import Row

# The last lines of a program of this folder, and of pytest.
TRIED = re.compile(r"(\d[\d,]*) tried, (\d[\d,]*) wrong")
ENDED = re.compile(r"(\d+) (passed|failed|error)")
WRONG = re.compile(r"^(?:WRONG|FAILED|ERROR)\s+(.{1,300})", re.M)
NO_TESTS = 5  # pytest's exit code


class Stopped(Exception):
    """The parts that are being made are not to be kept."""


class Processes:
    """Makes parts; several threads may, at the same time."""

    def __init__(self) -> None:
        self.stopped = False
        self._made: set[subprocess.Popen[str]] = set()

    def made(self, arguments: Sequence[str], limit: float, commit: str) -> Row:
        """Makes a part.

        Args:
            arguments: those of Python.
            limit: seconds after which the process and all that it started are killed.
            commit: what is checked.

        Returns:
            How it ended. A process that did not reach its end, or that made no checks, is wrong,
            too, unless pytest says that no test was selected.

        Raises:
            Stopped: `stop` was called.
        """
        began = time.monotonic()
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            code_or_none = self._run([sys.executable, *arguments], limit, output)
            output.seek(0)
            said = without_folders(output.read())
        if self.stopped:
            raise Stopped
        tried, wrong = counted(said)
        ended_well = code_or_none == NO_TESTS or (code_or_none == 0 and tried)
        if not ended_well and not wrong:
            reasons = {None: f"no end in {limit:.0f} s", 0: "no checks counted"}
            how = reasons.get(code_or_none, f"code {code_or_none}")
            wrong = [f"{how}: {last_line(said)}"]
        return Row.of_today(tried, wrong, time.monotonic() - began, commit)

    def stop(self) -> None:
        """Ends the parts that are being made."""
        self.stopped = True
        for process in list(self._made):
            kill(process)

    def _run(self, command: Sequence[str], limit: float, output: IO[str]) -> int | None:
        """Runs a process to its end, and returns its code; None if it took too long."""
        process = subprocess.Popen(
            command,
            cwd=changes.ROOT,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._made.add(process)
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            kill(process)
            self._made.discard(process)


def kill(process: subprocess.Popen[str]) -> None:
    """Kills a process, and all that it started and that has not left its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def counted(said: str) -> tuple[int, list[str]]:
    """Returns how many checks a program made, and what was wrong, a line for each."""
    found = [number.replace(",", "") for number, _ in TRIED.findall(said)]
    last = said.rstrip().rpartition("\n")[2]
    found += [number for number, _ in ENDED.findall(last)]
    return sum(map(int, found)), WRONG.findall(said)


def without_folders(said: str) -> str:
    """Returns a text without the folders of this machine in which files are."""
    folders = (str(changes.ROOT), sys.prefix)
    for folder in sorted(folders, key=len, reverse=True):  # an environment may lie in the clone
        said = said.replace(f"{folder}/", "")
    return said


def last_line(said: str) -> str:
    """Returns the last line that is not empty."""
    return next((line for line in reversed(said.splitlines()) if line.strip()), "no output")[:300]


def python_of(path: str) -> str:
    """Returns the path of an interpreter that works from any folder."""
    return str(pathlib.Path(path).absolute())
