"""The tasks of a cluster and this process's own task, as `TF_CONFIG` describes them."""

import json
import re
from typing import Any, NamedTuple

VARIABLE = "TF_CONFIG"
ADDRESS = re.compile(r"\S+:\d+")


class Tasks(NamedTuple):
    """What a `TF_CONFIG` says.

    Args:
        cluster: the addresses of the tasks of each kind.
        kind: the kind of this process's task; None if it does not say that.
        number: its number among the tasks of its kind; None if it does not say that.
    """

    cluster: dict[str, list[str]]
    kind: str | None
    number: int | None


def parsed(text: str) -> Tasks:
    """Returns what a `TF_CONFIG` says.

    Raises:
        ValueError: it is not such a description; the message is a clause with `TF_CONFIG` as its
            subject.
    """
    try:
        described = json.loads(text)
        cluster, task = described.get("cluster", {}), described.get("task", {})
        tasks = Tasks(dict(cluster), task.get("type"), task.get("index"))
        tasks = tasks._replace(number=None if tasks.number is None else int(tasks.number))
    except (ValueError, TypeError, AttributeError):
        problem = f"{VARIABLE} in the environment is not JSON of 'cluster' and 'task'"
        raise ValueError(problem) from None
    for kind, addresses in tasks.cluster.items():
        _check(kind, addresses)
    every = [address for addresses in tasks.cluster.values() for address in addresses]
    if twice := [address for address in every if every.count(address) > 1]:
        raise ValueError(f"{VARIABLE} in the environment gives {twice[0]} to two tasks")
    known = len(tasks.cluster.get(tasks.kind or "", ()))
    if tasks.kind is not None and not 0 <= (tasks.number or 0) < known:
        raise ValueError(
            f"{VARIABLE} in the environment says that this process is {tasks.kind} {tasks.number}, "
            f"and its cluster has {known} of that kind, counted from 0"
        )
    return tasks


def _check(kind: str, addresses: Any) -> None:
    if not (
        isinstance(addresses, list)
        and addresses
        and all(isinstance(each, str) and ADDRESS.fullmatch(each) for each in addresses)
    ):
        raise ValueError(
            f"{VARIABLE} in the environment must list addresses such as 'host:2222' as the "
            f"'{kind}' tasks of its cluster"
        )
