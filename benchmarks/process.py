"""Set-up of a benchmark's processes: they own standard output, and Ctrl-C ends them.

Not all of these processes can import tf_graft, so this module imports it late.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).parents[1]  # from where Python finds this folder
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")  # only Linux has them


def output() -> TextIO:
    """Reserves standard output for data that another process reads; other output goes to errors.

    Ctrl-C, which all processes of a terminal get, ends this process silently: the command prints
    the message.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    taken = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return taken


def say(line: str) -> None:
    """Prints a message on standard error, apart from the figures."""
    from tf_graft.core.media import for_terminal

    print(for_terminal(line), file=sys.stderr, flush=True)


@contextlib.contextmanager
def without_messages() -> Iterator[None]:
    """Discards what is written to standard error, also by code in C++."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def forget_peak() -> None:
    """Makes the system measure this process' peak memory from now on."""
    if RESET.exists():
        RESET.write_text("5")


def peak() -> float | None:
    """Returns the most memory that this process has held, in MB; None if the system can't tell."""
    lines = STATUS.read_text().splitlines() if STATUS.exists() else []
    return next((int(text.split()[1]) / 1e3 for text in lines if text.startswith("VmHWM")), None)
