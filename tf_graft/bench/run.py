"""A run of the benchmark: area after area; each case is handed over as soon as it is measured."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from tf_graft.bench import peers, results
from tf_graft.bench.areas import AREAS
from tf_graft.bench.cases import Choice
from tf_graft.bench.results import Measured
from tf_graft.bench.turns import Pace, described, measure

Say: TypeAlias = Callable[[str], None]


def run(areas: Sequence[str], choice: Choice, pace: Pace, say: Say) -> Iterator[Measured]:
    """Measures areas, and yields each case when it is done.

    Args:
        areas: names of `AREAS`.
        choice: which of their cases.
        pace: how often each is measured.
        say: is told what is being measured.
    """
    if choice.peers:
        for sentence in peers.missing():
            say(sentence)
    for area in areas:
        if AREAS[area].apart:
            yield from _apart(area, choice, pace)
        else:
            yield from here(area, choice, pace, say)


def here(area: str, choice: Choice, pace: Pace, say: Say) -> Iterator[Measured]:
    """Measures an area in this process; one whose cases cannot be made loses those alone."""
    try:
        cases = [case for case in AREAS[area].of(choice) if choice.takes(case)]
        for number, case in enumerate(cases, 1):
            say(f"{area}, {number} of {len(cases)}: {case.name}")
            yield measure(area, case, pace)
    except Exception as error:
        yield _failed(area, described(error))


def _apart(area: str, choice: Choice, pace: Pace) -> Iterator[Measured]:
    """Measures an area in a process of its own, which prints a line for each case."""
    asked = json.dumps({"area": area, "choice": choice, "pace": pace})
    command = [sys.executable, "-m", "tf_graft", "bench-apart", asked]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stdout or ():
                yield results.of_line(line)
            code = process.wait()
        except BaseException:  # of who takes the cases, too
            process.kill()
            raise
    if code:
        yield _failed(area, f"its process ended with code {code}")


def _failed(area: str, error: str) -> Measured:
    return Measured(area, "all cases", {}, {}, {"all": error}, [])
