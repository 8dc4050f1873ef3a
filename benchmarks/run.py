"""Runs the benchmark area by area, and yields each case as soon as it is measured."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import tensorflow as tf

from benchmarks import given, peers, process, results, rows
from benchmarks.areas import AREAS
from benchmarks.cases import Choice, described
from benchmarks.optimizers import PLAIN
from benchmarks.results import Measured
from benchmarks.turns import ONCE, Pace, measure
from tf_graft.training import start

Say: TypeAlias = Callable[[str], None]


def run(areas: Sequence[str], choice: Choice, pace: Pace, say: Say) -> Iterator[Measured]:
    """Measures areas, and yields each case when it is done.

    Args:
        areas: names of `AREAS`.
        choice: which of the areas' cases.
        pace: how often each case is measured.
        say: called with messages about the current measurement.
    """
    if choice.peers:
        for sentence in peers.missing():
            say(sentence)
    for area in areas:
        if AREAS[area].devices > 1:
            yield from _apart(area, choice, pace)
        else:
            yield from here(area, choice, pace, say)


def here(area: str, choice: Choice, pace: Pace, say: Say) -> Iterator[Measured]:
    """Measures an area in this process; if cases cannot be made, only these are lost."""
    tf.get_logger().setLevel("ERROR")  # otherwise it warns that many functions are traced
    try:
        warm_up()
        cases = [case for case in AREAS[area].of(choice) if choice.takes(case)]
        for number, case in enumerate(cases, 1):
            say(f"{area}, {number} of {len(cases)}: {case.name}")
            yield measure(area, case, pace)
    except Exception as error:
        yield _failed(area, described(error))


@functools.cache
def warm_up() -> None:
    """Makes the very first calls in a process, which are slower than later first calls."""
    steps = [given.on(((2,),), "Adam", compiled=compiled) for compiled in (False, True)]
    for case in (*steps, rows.of("Adam", *PLAIN["Adam"][:2], rows=10)):
        measure("", case, ONCE)


def _apart(area: str, choice: Choice, pace: Pace) -> Iterator[Measured]:
    """Measures an area in a process of its own, which prints a line for each case."""
    asked = json.dumps({"area": area, "choice": choice, "pace": pace})
    command = [sys.executable, "-m", "benchmarks.apart", asked]
    # The process starts TensorFlow like this one: quietly, unless a level was set.
    environment = {k: v for k, v in os.environ.items() if (k, v) != (start.LEVEL, start.QUIET)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, env=environment, cwd=process.ROOT, text=True
    ) as running:
        try:
            for line in running.stdout or ():
                yield results.of_line(line)
            code = running.wait()
        except BaseException:  # also of the code that receives the cases
            running.kill()
            raise
    if code:
        yield _failed(area, f"its process ended with code {code}")


def _failed(area: str, error: str) -> Measured:
    return Measured(area, "all cases", {}, {}, {"all": error}, [])
