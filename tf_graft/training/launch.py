"""`tf-graft launch`: a run of several processes on this machine, as a scheduler would start it."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tf_graft.processes.cluster import LOST, Cluster, Task
from tf_graft.training import config as configs
from tf_graft.training.schema import RunConfig
from tf_graft.training.source import ConfigError
from tf_graft.training.stop import StopRequest

GRACE = 30.0  # seconds for the chief to end after a signal
# Seconds for the others to end after the chief. Deleting an iterator of a strategy waits for its
# autotuning thread, which may sleep up to a minute (TensorFlow 2.21).
LINGER = 90.0
RESTARTS = 3  # of killed processes, or of all processes if one does not answer


class LaunchError(Exception):
    """A task ended in a way that the run cannot survive; the message says which and how."""


class _Broken(Exception):
    """A task was killed, or has lost another one; the arguments are the task and its code."""


def launch(
    config: RunConfig,
    command: Sequence[str],
    tasks: dict[str, int],
    say: Callable[[str], None] = print,
    restarts: int = RESTARTS,
) -> int:
    """Runs a config as a cluster of processes on this machine; returns the chief's exit code.

    Args:
        config: a config whose strategy or mesh takes several processes.
        command: the command that trains the config, run in each process.
        tasks: `{"worker": n, "ps": m}`.
        say: called with each line for the user.
        restarts: how many times processes that were killed, or that no longer answer, are started
            again: a killed worker of parameter servers alone, otherwise all processes, which
            continue from the last state.

    Raises:
        ConfigError: neither strategy nor mesh takes the tasks.
        LaunchError: a task failed; all others have been ended.
    """
    tasks, left = _tasks(config, tasks), iter(range(restarts))
    written = Path(config.run.dir or "") / configs.FILE  # `RunFolder` would import TensorFlow
    before = _identity(written)
    with StopRequest().listening() as stop:
        while True:
            with Cluster(command, tasks) as cluster:
                listed = ", ".join(f"{kind} {i}" for kind, i in cluster.tasks)
                say(f"Started {listed} on this machine.")
                try:
                    return _watched(cluster, stop, say, left)
                except _Broken as broken:
                    if next(left, None) is None:
                        raise LaunchError(_failure(cluster, *broken.args)) from None
                    task, code = broken.args
            say(f"The {_name(task)} {_ending(code)}; all are restarted, from the last saved state.")
            if config.run.fresh and _identity(written) not in (None, before):
                command = [*command, "run.fresh=false"]  # the former run has been removed


def _identity(path: Path) -> tuple[int, int] | None:
    """Returns what differs once a file was written anew; None without the file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _tasks(config: RunConfig, given: dict[str, int]) -> dict[str, int]:
    name = None if config.strategy is None else config.strategy.name
    if name == "parameter_server":
        if not given["ps"]:
            raise config.error(("strategy", "name"), "parameter_server needs servers: --ps 1.")
        return {"chief": 1, **given}
    if name != "multi_worker" and config.mesh is None:
        raise config.error(
            ("strategy",),
            "this config runs in one process, with tf-graft train; launch is for the strategies "
            "multi_worker and parameter_server, and for a mesh.",
        )
    if given["ps"]:
        used = name or "a mesh"
        raise ConfigError(f"--ps is for the strategy parameter_server, and this is {used}.")
    return {"worker": given["worker"]}


def _watched(
    cluster: Cluster, stop: StopRequest, say: Callable[[str], None], restarts: Iterator[int]
) -> int:
    """Waits for the chief; forwards a signal, and restarts workers of parameter servers.

    Raises:
        LaunchError: a task has failed.
        _Broken: a task that the others need was killed, or no longer reaches them.
    """
    serves = "ps" in cluster.spec
    while cluster.chief not in cluster.ended():
        if stop.signum is not None:
            cluster.send(stop.signum, [cluster.chief] if serves else cluster.tasks)
            if not cluster.wait([cluster.chief], GRACE):
                raise LaunchError(f"the {_name(cluster.chief)} did not stop; it was killed.")
            return _code_of_chief(cluster)
        for task, code in _failed(cluster):
            if code < 0 and task[0] == "worker" and serves and next(restarts, None) is not None:
                say(f"The {_name(task)} {_ending(code)}; it is restarted, and the run continues.")
                cluster.start(task)
            elif _is_broken(code):
                raise _Broken(task, code)
            elif not cluster.wait([cluster.chief], 1.0):
                raise LaunchError(_failure(cluster, task, code))
        time.sleep(0.05)
    for task, code in _failed(cluster):
        if _is_broken(code):
            raise _Broken(task, code)
        if cluster.ended()[cluster.chief] == LOST:
            raise LaunchError(_failure(cluster, task, code))
    return _collected(cluster)


def _is_broken(code: int) -> bool:
    """Returns whether something outside of a task ended it, so that a later start may succeed."""
    return code < 0 or code == LOST


def _failed(cluster: Cluster) -> list[tuple[Task, int]]:
    """Lists the tasks that have failed; with parameter servers, any task but the chief that ended.

    Killed tasks come first. Tasks that have lost another one come last, a second later, because the
    other one may have failed.
    """
    serves = "ps" in cluster.spec
    if LOST in cluster.ended().values():
        cluster.wait(cluster.tasks, 1.0)
    ended = cluster.ended().items()
    failed = [(task, code) for task, code in ended if code or (serves and task != cluster.chief)]
    return sorted(failed, key=lambda found: (found[1] >= 0, found[1] == LOST))


def _collected(cluster: Cluster) -> int:
    """Waits for the other tasks to end, and returns the chief's exit code.

    Raises:
        LaunchError: a worker has failed, or does not end.
        _Broken: a worker was killed while it ended, or has lost another one.
    """
    code = _code_of_chief(cluster)
    if "ps" in cluster.spec or code:
        return code
    if not cluster.wait(cluster.tasks, LINGER):
        late = next(task for task in cluster.tasks if task not in cluster.ended())
        raise LaunchError(f"the {_name(late)} did not end with the chief; it was killed.")
    for task, code in _failed(cluster):
        if _is_broken(code):
            raise _Broken(task, code)
        raise LaunchError(_failure(cluster, task, code))
    return 0


def _code_of_chief(cluster: Cluster) -> int:
    """Returns the exit code of the chief, which has ended; 128 + n after signal n."""
    code = cluster.ended()[cluster.chief]
    return 128 - code if code < 0 else code


def _failure(cluster: Cluster, task: Task, code: int) -> str:
    said = cluster.output(task)
    return f"the {_name(task)} {_ending(code)}; all others were ended." + (
        f" Its last output:\n{said}" if said else ""
    )


def _ending(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    if code == LOST:
        return "has lost another process"
    return f"ended with code {code}"


def _name(task: Task) -> str:
    return f"{task[0]} {task[1]}"


def command_of(config: Path, overrides: Sequence[str]) -> list[str]:
    """Returns the command that trains a config in a separate process."""
    return [sys.executable, "-m", "tf_graft", "train", str(config), *overrides]
