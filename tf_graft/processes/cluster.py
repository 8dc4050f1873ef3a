"""A cluster on this machine: a process per task, on loopback, started and ended together.

Each process leads a process group, which ends as a whole. The standard input of each process is a
pipe from the launcher; when the launcher ends for any reason, the pipe closes and the process ends.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Self

LAUNCHED = "TF_GRAFT_LAUNCHED"  # set in processes that end when their standard input closes
LOST = 75  # exit code of a launched process that lost another one: it may be started again
SHOWN = 15  # lines of a task's output in an error message

Task = tuple[str, int]


def end_with_launcher() -> None:
    """Ends this process when its launcher ends; does nothing if no launcher started it."""
    if os.environ.get(LAUNCHED):
        threading.Thread(target=_wait_for_end, daemon=True).start()


def _wait_for_end() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


def code_of_loss() -> int:
    """Returns this process's exit code if another one is lost: 1, or `LOST` for a launcher."""
    return LOST if os.environ.get(LAUNCHED) else 1


def free_ports(count: int) -> list[int]:
    """Finds `count` free local ports."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def cluster_spec(tasks: dict[str, int]) -> dict[str, list[str]]:
    """Assigns loopback addresses to a number of tasks of each kind, in the form of `TF_CONFIG`."""
    ports = iter(free_ports(sum(tasks.values())))
    return {
        kind: [f"localhost:{next(ports)}" for _ in range(count)]
        for kind, count in tasks.items()
        if count
    }


class Cluster:
    """Runs a process for each task, with its `TF_CONFIG`.

    A context manager: it starts all processes, and none remains on exit.

    Args:
        command: the command that each task runs.
        tasks: the number of tasks of each kind: `{"worker": 2}`, `{"chief": 1, "worker": 2, "ps":
            1}`. The first task of the first kind, the chief, shows its output.
        environment: environment variables for all tasks, in addition to those of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        tasks: dict[str, int],
        environment: dict[str, str] | None = None,
    ) -> None:
        self.spec = cluster_spec(tasks)
        self.tasks: list[Task] = [(kind, i) for kind in self.spec for i in range(tasks[kind])]
        self.chief = self.tasks[0]
        self.processes: dict[Task, subprocess.Popen[bytes]] = {}
        self._command, self._environment = list(command), environment or {}
        self._outputs = tempfile.TemporaryDirectory(prefix="tf_graft_launch_")

    def __enter__(self) -> Self:
        try:
            for task in self.tasks:
                self.start(task)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, task: Task) -> None:
        """Starts a task's process; an earlier one is killed first, with its process group."""
        if task in self.processes:
            _end_group(self.processes[task])
        kind, index = task
        config = {"cluster": self.spec, "task": {"type": kind, "index": index}}
        environment = os.environ | self._environment | {"TF_CONFIG": json.dumps(config)}
        output: IO[bytes] | None = None
        if task != self.chief:
            output = open(self._output(task), "ab")  # noqa: SIM115  (closed below)
        self.processes[task] = subprocess.Popen(
            self._command,
            env=environment | {LAUNCHED: "1"},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output and subprocess.STDOUT,
            start_new_session=True,
        )
        if output is not None:
            output.close()

    def output(self, task: Task) -> str:
        """Returns the last lines that a task other than the chief has printed."""
        try:
            text = self._output(task).read_text(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-SHOWN:])

    def ended(self) -> dict[Task, int]:
        """Returns the exit codes of the tasks that have ended; -n for signal n."""
        codes = {task: process.poll() for task, process in self.processes.items()}
        return {task: code for task, code in codes.items() if code is not None}

    def send(self, signum: int, tasks: Sequence[Task]) -> None:
        """Sends a signal to the process groups of tasks."""
        for task in tasks:
            _signal_group(self.processes[task], signum)

    def wait(self, tasks: Sequence[Task], seconds: float) -> bool:
        """Waits for tasks to end; returns whether all did in time."""
        until = time.monotonic() + seconds
        while not set(tasks) <= self.ended().keys():
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True

    def end(self) -> None:
        """Kills every process group, and waits for its leader to end."""
        for process in self.processes.values():
            _end_group(process)
        self._outputs.cleanup()

    def _output(self, task: Task) -> Path:
        return Path(self._outputs.name) / f"{task[0]}_{task[1]}.txt"


def _signal_group(process: subprocess.Popen[bytes], signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signum)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    _signal_group(process, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
