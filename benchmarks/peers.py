"""The same steps by other libraries, if they are installed, each in a process of its own.

The libraries may be installed for another Python, which the environment variable `PEERS_PYTHON`
names.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import peer_steps, peer_tables, process
from benchmarks.cases import Candidate, Shapes, Step

PYTHON = "PEERS_PYTHON"
# The packages of each library, which pip knows by these names.
NEEDED = {"torch": ("torch",), "fbgemm": ("fbgemm-gpu-cpu", "torch"), "optax": ("optax", "jax")}
FIND = """
import json, sys
from importlib import metadata
found = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in metadata.distributions()}
print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))
"""


def missing() -> list[str]:
    """Returns a sentence for each library that is not measured because it is not installed."""
    return [
        f"{name} is not installed, and is not measured: pip install {' '.join(packages)}."
        for name, packages in NEEDED.items()
        if not _installed(name)
    ]


def candidates(name: str, shapes: Shapes, calls: int) -> dict[str, Callable[[], Candidate]]:
    """Returns the installed libraries' versions of an optimizer.

    Args:
        name: the optimizer's name in `optimizers.OPTIMIZERS`.
        shapes: the shapes of the tensors.
        calls: the number of gradients that make an update.
    """
    return {
        library: functools.partial(_prepared, "tensors", library, name, shapes, calls)
        for library, (names, _) in peer_steps.STEPS.items()
        if name in names and _installed(library)
    }


def on_table(name: str, rows: int, beside: bool) -> dict[str, Callable[[], Candidate]]:
    """Returns ours, stock Keras' and the installed libraries' versions of an optimizer on a table.

    Args:
        name: the optimizer's name in `optimizers.OPTIMIZERS`.
        rows: the number of rows of the table.
        beside: whether the other libraries are measured too.
    """
    return {
        library: functools.partial(_prepared, "table", library, name, rows)
        for library, (rules, most, _, _) in peer_tables.STEPS.items()
        if name in rules and rows <= most
        if library not in NEEDED or (beside and _installed(library))
    }


def versions() -> dict[str, str]:
    """Returns the versions of the other libraries' packages that are installed."""
    return _versions(_python())


def _python() -> str:
    """Returns the Python that the other libraries are installed for."""
    chosen = os.environ.get(PYTHON) or sys.executable
    return os.path.abspath(shutil.which(chosen) or chosen)


@functools.cache
def _versions(python: str) -> dict[str, str]:
    packages = dict.fromkeys(package for names in NEEDED.values() for package in names)
    answer = subprocess.run([python, "-c", FIND, *packages], stdout=subprocess.PIPE, check=True)
    found: dict[str, str] = json.loads(answer.stdout)
    return found


def _installed(name: str) -> bool:
    return all(package in versions() for package in NEEDED[name])


def _prepared(work: str, library: str, *given: Any) -> Candidate:
    python = _python() if library in NEEDED else sys.executable
    peer = _Process(python, work, library, *given)

    def start() -> Step:
        peer.ask("start")
        return functools.partial(peer.ask, "step")

    def sums() -> list[np.ndarray]:
        return [np.array(total) for total in peer.ask("sums")]

    return Candidate(start, sums, functools.partial(peer.ask, "peak"))


class _Process:
    """Another process, which runs methods on request, and ends with this object."""

    def __init__(self, python: str, *asked: Any) -> None:
        command = [python, "-m", "benchmarks.peer", json.dumps(asked)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, cwd=process.ROOT, text=True
        )
        weakref.finalize(self, _end, self._process)
        self._answer()

    def ask(self, what: str) -> Any:
        """Makes the process run one of the methods of `peer.Peer`, and returns its answer."""
        print(what, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError(f"its process ended with code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["answer"]


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
