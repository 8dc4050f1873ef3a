"""Runs `python -m benchmarks`: announces measurements, keeps figures, shows them at the end."""

import contextlib
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import chart, results, sheets
from benchmarks.cases import Choice
from benchmarks.process import say
from benchmarks.results import Measured
from benchmarks.run import run
from benchmarks.turns import Pace
from tf_graft.terminal import Terminal

INTERRUPTED = 128 + signal.SIGINT


def measured(
    areas: Sequence[str], choice: Choice, pace: Pace, output: Path | None
) -> tuple[list[Measured], int]:
    """Measures areas; after each case `output` contains the figures so far.

    Returns:
        The cases that were measured, and the exit code, which is not 0 after Ctrl-C.
    """
    cases: list[Measured] = []
    try:
        with _interruptible() as interrupts:
            _save(output, cases)  # so that a file that cannot be written fails now
            for case in run(areas, choice, pace, say):
                cases.append(case)
                _save(output, cases)
                if interrupts:
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        say("Interrupted; this is what was measured.")
        return cases, INTERRUPTED
    return cases, 0


def show(cases: Sequence[Measured], markdown: bool, plot: Path | None) -> None:
    """Prints tables, and draws the chart."""
    machine = results.machine()
    names = ("tf_graft", "tensorflow", "keras", "torch", "fbgemm-gpu-cpu", "optax")
    versions = ", ".join(f"{name} {machine[name]}" for name in names if name in machine)
    about = f"{machine['cores']} cores, {machine['processor']}\n{versions}, {machine['date'][:10]}"
    made = sheets.sheets(cases)
    if markdown:
        print("\n\n".join([about, *map(sheets.markdown, made), sheets.LEGEND]))
    else:
        Terminal().print(about, *map(sheets.rich, made), "", sheets.LEGEND, sep="\n")
    if plot and any(case.steps for case in cases):
        chart.draw(cases, about, plot)


def _save(output: Path | None, cases: Sequence[Measured]) -> None:
    if output:
        results.save(output, cases)


@contextlib.contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Makes Ctrl-C raise KeyboardInterrupt; elsewhere in a command it ends the process.

    Yields a list of the signals that came, because the exception is lost in code that Python calls
    while it collects garbage.
    """
    before = signal.getsignal(signal.SIGINT)
    came: list[int] = []

    def interrupt(signum: int, _: object) -> None:
        came.append(signum)
        raise KeyboardInterrupt

    if before != signal.SIG_IGN:  # nohup ignores the signal
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)
