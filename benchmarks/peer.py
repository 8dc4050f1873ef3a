"""`python -m benchmarks.peer ASKED`: steps of another library, one for each line it is sent.

It answers each line with a line of JSON. It does not import TensorFlow: TensorFlow and jax each
contain an LLVM, and a process that uses both crashes.
"""

import itertools
import json
import sys
from typing import Any

import numpy as np

from benchmarks import peer_steps, process
from benchmarks.cases import described


def main(asked: str) -> None:
    """Prepares the optimizer that `asked` describes in JSON, then obeys the other process."""
    answers = process.output()
    peer = Peer(*json.loads(asked))
    for line in itertools.chain(["prepare"], sys.stdin):
        try:
            answer: dict[str, Any] = {"answer": getattr(peer, line.strip())()}
        except Exception as error:
            answer = {"error": described(error)}
        print(json.dumps(answer), file=answers, flush=True)


class Peer:
    """The methods that the other process may call."""

    def __init__(self, library: str, *given: Any) -> None:
        _, self._prepare = peer_steps.STEPS[library]
        self._given = given

    def prepare(self) -> None:
        """Makes weights and gradients."""
        self._candidate = self._prepare(*self._given)

    def start(self) -> None:
        """Builds the optimizer."""
        self._step = self._candidate.start()

    def step(self) -> None:
        """Makes an update."""
        self._step()

    def sums(self) -> list[float]:
        """Returns the sum of each weight, which shows whether the weight has moved."""
        return [float(np.sum(np.asarray(w), dtype=np.float64)) for w in self._candidate.weights()]


if __name__ == "__main__":
    main(sys.argv[1])
