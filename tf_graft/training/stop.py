"""Signals that ask a run to stop, and the exceptions of a run that has stopped."""

import contextlib
import os
import signal
from collections.abc import Iterator

from tf_graft.training.schema import RunConfig


def continuing(config: RunConfig) -> str:
    """Names the command that continues a run, in a sentence."""
    return "the same command" + (" without run.fresh=true" if config.run.fresh else "")


class Stopped(Exception):
    """The run was asked to stop and has saved its state after `step`; `command` continues it."""

    def __init__(self, signum: int, step: int, command: str) -> None:
        name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
        super().__init__(
            f"Stopped by {name} after step {step:,}, which is saved: {command} continues from "
            "there."
        )
        self.signum, self.step = signum, step


class ProcessLost(Exception):
    """Another process of the run, which this one needs, is lost.

    Args:
        reason: a sentence on how the loss was noticed.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            "Another process of this run has ended, and this one cannot go on alone: start all "
            f"again, and they continue from the last saved state. {reason}"
        )


class StopRequest:
    """Remembers a SIGTERM or Ctrl-C until the run can stop; a second Ctrl-C interrupts at once.

    Args:
        command: the command that continues the run.

    Attributes:
        signum: the signal that came.
        at_once: whether the first Ctrl-C interrupts at once, too, as there is nothing to save.
        notice: what a user reads after the first Ctrl-C otherwise.
    """

    def __init__(self, command: str = "the same command") -> None:
        self.signum: int | None = None
        self.at_once = False
        self.notice = ""
        self.command = command

    @contextlib.contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Handles the two signals within the context. Must be called in the main thread."""
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

        def remember(signum: int, _: object) -> None:
            self.signum = signum
            signal.signal(signal.SIGTERM, before[signal.SIGTERM])
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if signum == signal.SIGINT and self.at_once:
                raise KeyboardInterrupt
            if signum == signal.SIGINT and self.notice:
                os.write(2, f"\n{self.notice}\n".encode())  # `print` may be at work

        for number in before:
            signal.signal(number, remember)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
