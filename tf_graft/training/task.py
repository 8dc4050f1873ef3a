"""The task of this process in a cluster, and the others that it waits for."""

import os
from typing import NamedTuple

from tf_graft.core.places.tf_config import VARIABLE, parsed
from tf_graft.processes.cluster import code_of_loss
from tf_graft.processes.watch import watch
from tf_graft.training.schema import ParameterServer, RunConfig
from tf_graft.training.stop import ProcessLost


class Task(NamedTuple):
    """One of the processes that `TF_CONFIG` describes."""

    kind: str
    number: int


def watch_others(here: Task, cluster: dict[str, list[str]]) -> None:
    """Ends this process when another is silent: the chief watches all, the others the chief."""
    watched = {
        f"{kind} {number}": address
        for kind, addresses in cluster.items()
        for number, address in enumerate(addresses)
        if (kind == "chief") != (here.kind == "chief")
    }

    def end(name: str) -> None:
        lost = ProcessLost(f"The {name} does not answer.")
        os.write(2, f"{lost}\n".encode())
        os._exit(code_of_loss())  # this process may be waiting forever

    watch(watched, end)


def tf_config(config: RunConfig) -> tuple[Task, dict[str, list[str]]]:
    """Reads this process's task, and the addresses of all tasks, from the environment."""
    problem = "TF_CONFIG in the environment must say which task this process is"
    try:
        tasks = parsed(os.environ.get(VARIABLE, "{}"))
        if tasks.kind is not None and tasks.number is not None:
            return Task(tasks.kind, tasks.number), tasks.cluster
    except ValueError as error:
        problem = str(error)
    servers = "--ps 1 " if isinstance(config.strategy, ParameterServer) else ""
    command = f"tf-graft launch --workers 2 {servers}{config.source.file}"
    advice = f"a scheduler sets it, and so does: {command}"
    raise config.error(("strategy", "name"), f"{problem}; {advice}.")
