"""The same steps by other libraries, if they are installed, each in a process of its own."""

import functools
import importlib.util
import json
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import process
from benchmarks.cases import Candidate, Shapes, Step
from benchmarks.peer_steps import STEPS

NEEDED = {"torch": ("torch",), "optax": ("optax", "jax")}


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
        library: functools.partial(_prepared, library, name, shapes, calls)
        for library, (names, _) in STEPS.items()
        if name in names and _installed(library)
    }


def _installed(name: str) -> bool:
    return all(importlib.util.find_spec(package) for package in NEEDED[name])


def _prepared(library: str, name: str, shapes: Shapes, calls: int) -> Candidate:
    peer = _Process(library, name, shapes, calls)

    def start() -> Step:
        peer.ask("start")
        return functools.partial(peer.ask, "step")

    return Candidate(start, lambda: [np.array(total) for total in peer.ask("sums")])


class _Process:
    """Another process, which runs methods on request, and ends with this object."""

    def __init__(self, *asked: Any) -> None:
        command = [sys.executable, "-m", "benchmarks.peer", json.dumps(asked)]
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
