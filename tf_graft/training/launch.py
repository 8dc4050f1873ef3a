"""`tf-graft launch`: a run of several processes on this machine, as a scheduler would start it."""

import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tf_graft.processes.cluster import Cluster, Task
from tf_graft.training.errors import ConfigError, Source
from tf_graft.training.schema import RunConfig
from tf_graft.training.stop import StopRequest

GRACE = 30.0  # seconds for the others to end after the chief, or for the chief after a signal
RESTARTS = 3  # of lost workers, with parameter servers


class LaunchError(Exception):
    """A task ended in a way that the run cannot survive; the message says which and how."""


def launch(
    config: RunConfig,
    source: Source,
    command: Sequence[str],
    tasks: dict[str, int],
    say: Callable[[str], None] = print,
) -> int:
    """Runs a config as a cluster of processes on this machine; returns the chief's exit code.

    Args:
        config: a config whose strategy needs several processes.
        source: the places of its values.
        command: the command that trains the config, run in each process.
        tasks: `{"worker": n, "ps": m}`.
        say: called with each line for the user.

    Raises:
        ConfigError: the strategy does not match the tasks.
        LaunchError: a task failed; all others have been ended.
    """
    tasks = _tasks(config, source, tasks)
    with StopRequest().listening() as stop, Cluster(command, tasks) as cluster:
        listed = ", ".join(f"{kind} {i}" for kind, i in cluster.tasks)
        say(f"Started {listed} on this machine.")
        return _watched(cluster, "ps" in cluster.spec, stop, say)


def _tasks(config: RunConfig, source: Source, given: dict[str, int]) -> dict[str, int]:
    name = None if config.strategy is None else config.strategy.name
    if name == "parameter_server":
        if not given["ps"]:
            raise source.error(("strategy", "name"), "parameter_server needs servers: --ps 1.")
        return {"chief": 1, **given}
    if name != "multi_worker":
        raise source.error(
            ("strategy",),
            "this config runs in one process, with tf-graft train; launch is for the strategies "
            "multi_worker and parameter_server.",
        )
    if given["ps"]:
        raise ConfigError("--ps is for the strategy parameter_server, and this is multi_worker.")
    return {"worker": given["worker"]}


def _watched(cluster: Cluster, serves: bool, stop: StopRequest, say: Callable[[str], None]) -> int:
    """Waits for the chief, forwards signals to it, and restarts workers that may be lost."""
    restarts = signalled = 0
    while cluster.chief not in cluster.ended():
        if stop.signum is not None and not signalled:
            signalled = stop.signum
            cluster.send(signalled, [cluster.chief] if serves else cluster.tasks)
            if not cluster.wait([cluster.chief], GRACE):
                raise LaunchError(f"the {_name(cluster.chief)} did not stop; it was killed.")
            break
        for task, code in cluster.ended().items():
            if task == cluster.chief or (code == 0 and not serves):
                continue
            if not serves or task[0] == "ps" or code >= 0 or restarts == RESTARTS:
                if cluster.wait([cluster.chief], 1.0):
                    break
                raise LaunchError(_failure(cluster, task, code))
            restarts += 1
            say(f"The {_name(task)} {_ending(code)}; it is restarted, and the run continues.")
            cluster.start(task)
        time.sleep(0.05)
    return _collected(cluster, serves)


def _collected(cluster: Cluster, serves: bool) -> int:
    """Waits for the other tasks to end, and returns the chief's exit code."""
    code = cluster.ended()[cluster.chief]
    others = [] if serves or code else cluster.tasks[1:]
    if not cluster.wait(others, GRACE):
        late = next(task for task in others if task not in cluster.ended())
        raise LaunchError(f"the {_name(late)} did not end with the chief; it was killed.")
    for task in others:
        if cluster.ended()[task]:
            raise LaunchError(_failure(cluster, task, cluster.ended()[task]))
    return 128 - code if code < 0 else code


def _failure(cluster: Cluster, task: Task, code: int) -> str:
    said = cluster.output(task)
    return f"the {_name(task)} {_ending(code)}; all others were ended." + (
        f" Its last output:\n{said}" if said else ""
    )


def _ending(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"


def _name(task: Task) -> str:
    return f"{task[0]} {task[1]}"


def command_of(config: Path, overrides: Sequence[str]) -> list[str]:
    """Returns the command that trains a config in a separate process."""
    return [sys.executable, "-m", "tf_graft", "train", str(config), *overrides]
