"""Measures a case's candidates in turns, so that a drift of the machine's speed affects all."""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks import floor
from benchmarks.cases import Candidate, Case, Step, described
from benchmarks.results import Measured

FLOOR = "floor"
clock = time.perf_counter


class Pace(NamedTuple):
    """The number of turns: at least `least` and at most `most`, for about `seconds`."""

    least: int
    most: int
    seconds: float
    firsts: int  # most first calls; after one, they stop when `first_seconds` are over
    first_seconds: float


CALM = Pace(least=5, most=40, seconds=3, firsts=3, first_seconds=6)
QUICK = Pace(least=3, most=10, seconds=1, firsts=1, first_seconds=0)
ONCE = Pace(least=1, most=1, seconds=0, firsts=1, first_seconds=0)
NO_LIMIT = 1e9  # seconds
SKIPPED = 20  # most updates of a warm-up that are skipped


def pace(quick: bool, first_calls: int | None) -> Pace:
    """Returns the pace that is asked for, with as many first calls, if their number is given."""
    chosen = QUICK if quick else CALM
    if first_calls is None:
        return chosen
    return chosen._replace(firsts=first_calls, first_seconds=NO_LIMIT)


class _Runner:
    """A candidate in its turns; it drops out at its first error, which is kept."""

    def __init__(self, prepare: Callable[[], Candidate]) -> None:
        self.prepare = prepare
        self.firsts: list[float] = []  # seconds
        self.builds: list[float] = []  # seconds
        self.traces: list[float] = []  # seconds
        self.steps: list[float] = []  # milliseconds
        self.peak: float | None = None  # MB
        self.error = ""
        self.forget()

    def forget(self) -> None:
        """Frees the candidate's objects, which are few but may take a gigabyte."""
        self.step: Step = tuple
        self.weights: Callable[[], Sequence[Any]] = tuple
        if self.firsts:
            gc.collect()

    def attempt(self, what: Callable[["_Runner"], None]) -> None:
        """Runs one of the methods below, unless an earlier attempt failed."""
        if not self.error:
            try:
                what(self)
            except Exception as error:  # the other candidates continue
                self.error = described(error)
                self.forget()

    def begin(self) -> None:
        """Prepares the candidate anew, and measures its first call."""
        self.forget()
        start, self.weights, peak, trace = self.prepare()
        self.before = [_sum(w) for w in self.weights()]
        begun = clock()
        self.step = start()
        built = clock()
        if trace:
            trace()
            self.builds.append(built - begun)
            self.traces.append(clock() - built)
        self.step()
        self.firsts.append(clock() - begun)
        self.peak = peak()

    def warm_up(self) -> None:
        """Runs an update, and others if it was skipped, as with a loss scale that is too large."""
        for _ in range(SKIPPED):
            if self._update()[1]:
                break

    def turn(self) -> None:
        ms, moved = self._update()
        self.steps.append(ms)
        if not moved:
            raise RuntimeError("an update did not move the weights")

    def _update(self) -> tuple[float, bool]:
        """Runs an update; returns its milliseconds, and whether it moved the weights."""
        before = _smallest(self.weights())
        begun = clock()
        self.step()
        ms = (clock() - begun) * 1e3
        return ms, not np.array_equal(before, _smallest(self.weights()))

    def end(self) -> None:
        """Checks that every weight has moved, and frees all objects."""
        still = sum(a == _sum(b) for a, b in zip(self.before, self.weights(), strict=True))
        if still:
            raise RuntimeError(f"{still} of {len(self.before)} weights did not move")
        self.forget()


def measure(area: str, case: Case, pace: Pace) -> Measured:
    """Measures the first calls, then the steps, of all candidates of a case and of its floor."""
    prepared = {**case.candidates, **({FLOOR: floor.adding} if case.moved else {})}
    runners = {name: _Runner(prepare) for name, prepare in prepared.items()}
    _repeat(runners, _Runner.begin, 1, pace.firsts, pace.first_seconds)
    _repeat(runners, _Runner.warm_up, 2, 10, pace.seconds / 4)
    _repeat(runners, _Runner.turn, pace.least, pace.most, pace.seconds)
    _repeat(runners, _Runner.end, 1, 1, 0)
    well = {name: runner for name, runner in runners.items() if not runner.error}
    added = well.pop(FLOOR).steps if FLOOR in well else []
    return Measured(
        area,
        case.name,
        steps={name: runner.steps for name, runner in well.items()},
        firsts={name: runner.firsts for name, runner in well.items()},
        errors={name: runner.error for name, runner in runners.items() if runner.error},
        floor=[taken * case.moved / floor.MOVED for taken in added],
        peaks={name: [runner.peak] for name, runner in well.items() if runner.peak},
        builds={name: runner.builds for name, runner in well.items() if runner.builds},
        traces={name: runner.traces for name, runner in well.items() if runner.traces},
    )


def _repeat(
    runners: Mapping[Any, _Runner],
    what: Callable[[_Runner], None],
    least: int,
    most: int,
    seconds: float,
) -> None:
    """Makes all runners do something in turns: `least` times, then until `seconds` are over."""
    begun, done = clock(), 0
    while done < least or (done < most and clock() - begun < seconds):
        for runner in runners.values():
            runner.attempt(what)
        done += 1


def _array(weight: Any) -> np.ndarray:
    """Copies a weight of any library."""
    return np.array(weight.numpy() if hasattr(weight, "numpy") else weight)


def _smallest(weights: Sequence[Any]) -> np.ndarray:
    return _array(min(weights, key=lambda weight: int(np.prod(weight.shape))))


def _sum(weight: Any) -> float:
    return float(np.sum(_array(weight), dtype=np.float64))
