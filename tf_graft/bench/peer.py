"""`tf-graft bench-process peer ASKED`: steps of another library, one for each line it is sent.

It answers each line with a line of JSON. It imports no TensorFlow: that and jax have an LLVM each,
and a process that uses both is ended by them.
"""

import itertools
import json
import sys
from typing import Any

import numpy as np

from tf_graft.bench import peer_steps, process
from tf_graft.bench.cases import described


def main(asked: str) -> None:
    """Prepares what is asked for, in JSON, and then does what it is told."""
    answers = process.output()
    peer = Peer(*json.loads(asked))
    for line in itertools.chain(["prepare"], sys.stdin):
        try:
            answer: dict[str, Any] = {"answer": getattr(peer, line.strip())()}
        except Exception as error:
            answer = {"error": described(error)}
        print(json.dumps(answer), file=answers, flush=True)


class Peer:
    """What the other process may tell this one to do."""

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
        """Returns the sum of each weight, which tells whether it has moved."""
        return [float(np.sum(np.asarray(w), dtype=np.float64)) for w in self._candidate.weights()]
