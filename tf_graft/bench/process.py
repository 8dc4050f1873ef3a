"""Set-up of a benchmark's processes: they own standard output, and Ctrl-C ends them."""

import os
import signal
import sys
from typing import TextIO

from tf_graft.core.media import for_terminal


def output() -> TextIO:
    """Takes standard output for what another process reads; what else is printed is an error's.

    Ctrl-C, which all processes of a terminal get, ends this one without a word: the command says
    what there is to say.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    taken = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return taken


def say(line: str) -> None:
    """Says what happens, where it is not taken for a figure."""
    print(for_terminal(line), file=sys.stderr, flush=True)
