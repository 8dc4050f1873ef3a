"""Set-up of a benchmark's processes: they own standard output, and Ctrl-C ends them."""

import os
import signal
import sys
from pathlib import Path
from typing import TextIO

from tf_graft.core.media import for_terminal

ROOT = Path(__file__).parents[1]  # from where Python finds this folder


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
    print(for_terminal(line), file=sys.stderr, flush=True)
