"""The cases that can be measured, each with candidates that do the same work."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

Step: TypeAlias = Callable[[], object]
Shapes: TypeAlias = Sequence[tuple[int, ...]]

RATE = 1e-3  # of every optimizer
SCALE = 0.01  # of weights and gradients
OF_A_MESSAGE = 300  # characters


class Candidate(NamedTuple):
    """One implementation to measure.

    `start` builds an optimizer and returns a function that makes one update; the first call is
    `start`, `trace` if there is one, and the first update. `weights` returns tensors that every
    update must move. `peak` returns the peak memory of `start` in MB, if the candidate has a
    process of its own. `trace` traces the update, so that the parts of the first call can be timed.
    """

    start: Callable[[], Step]
    weights: Callable[[], Sequence[Any]]
    peak: Callable[[], float | None] = lambda: None
    trace: Callable[[], object] | None = None


class Case(NamedTuple):
    """Candidates by name; each is prepared, which is not timed, shortly before it starts.

    `moved` is the number of bytes that an update must move, 0 if there is no floor. `usual` says
    whether the case is measured even if nobody asks for it.
    """

    name: str
    candidates: Mapping[str, Callable[[], Candidate]]
    moved: int = 0
    usual: bool = True


class Choice(NamedTuple):
    """Which cases are measured: those with a name, or else the usual ones or all."""

    only: tuple[str, ...] = ()
    full: bool = False
    peers: bool = False

    def takes(self, case: Case) -> bool:
        """Returns whether a case is to be measured."""
        if self.only:
            return any(name.lower() in case.name.lower() for name in self.only)
        return case.usual or self.full


def described(error: Exception) -> str:
    """Describes an error in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:OF_A_MESSAGE]
