"""`python -m benchmarks.peer ASKED`: steps of another library, one for each line it is sent.

It answers each line with a line of JSON. With another library it imports neither TensorFlow nor
tf_graft: they may not be installed there, and a process that uses both TensorFlow's LLVM and jax's
crashes.
"""

import itertools
import json
import sys
from typing import Any

import numpy as np

from benchmarks import peer_steps, peer_tables, process
from benchmarks.cases import described

WORK = {"tensors": peer_steps.prepared, "table": peer_tables.prepared}


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

    def __init__(self, work: str, *given: Any) -> None:
        self._prepare, self._given = WORK[work], given

    def prepare(self) -> None:
        """Makes weights and gradients."""
        self._candidate = self._prepare(*self._given)

    def start(self) -> None:
        """Builds the optimizer."""
        process.forget_peak()
        self._step = self._candidate.start()
        self._peak = process.peak()

    def step(self) -> None:
        """Makes an update."""
        self._step()

    def peak(self) -> float | None:
        """Returns the peak memory of `start` in MB."""
        return self._peak

    def sums(self) -> list[float]:
        """Returns the sum of each weight, which shows whether the weight has moved."""
        return [float(np.sum(np.asarray(w), dtype=np.float64)) for w in self._candidate.weights()]


if __name__ == "__main__":
    main(sys.argv[1])
