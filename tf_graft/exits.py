"""Ends a failed command with one sentence and an exit code."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

NEEDS_EXTRAS = "tf-graft needs its extras: pip install 'tf_graft[train]'"


def end_when_interrupted() -> None:
    """Makes Ctrl-C end this process at once, until a run installs its own signal handlers.

    Python's KeyboardInterrupt would be lost, or shown as another error, in imports of other
    packages.
    """

    def end(*_: object) -> None:
        os.write(2, b"Interrupted.\n")
        os._exit(128 + signal.SIGINT)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup ignores the signal
        signal.signal(signal.SIGINT, end)


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """Turns errors that a user can fix into a sentence on standard error and an exit code.

    Codes: 1 for a run that failed, 2 for a wrong request, 128 + n after signal n.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        if str(missing.name).startswith("tf_graft"):
            raise
        raise SystemExit(NEEDS_EXTRAS) from None
    except KeyboardInterrupt as interrupt:
        _end(str(interrupt) or "Interrupted.", 128 + signal.SIGINT)
    except Exception as error:
        code = _code(error)
        if code is None:
            raise
        _end(_sentence(error), code)


def _sentence(error: Exception) -> str:
    """Describes an error; for one of the operating system, the file comes first."""
    from tf_graft.core.media import for_message
    from tf_graft.training.source import reason

    if isinstance(error, OSError) and error.strerror:
        return f"{for_message(str(error.filename or 'tf-graft'))}: {reason(error)}."
    return str(error)


def _code(error: Exception) -> int | None:
    """Returns the exit code for an error; None for one that a user cannot fix."""
    from tf_graft.processes.cluster import code_of_loss
    from tf_graft.training.launch import LaunchError
    from tf_graft.training.source import ConfigError
    from tf_graft.training.stop import ProcessLost, Stopped

    if isinstance(error, Stopped):
        return 128 + error.signum
    if isinstance(error, ProcessLost):
        return code_of_loss()
    if isinstance(error, ConfigError | LaunchError):
        return 2 if isinstance(error, ConfigError) else 1
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):
        return 1  # a closed pipe, the only possible ConnectionError, is handled by the caller
    return _code_of_computing(error)


def _code_of_computing(error: Exception) -> int | None:
    """Returns the exit code for errors whose classes need NumPy and TensorFlow."""
    from tf_graft.core.errors import CheckpointError
    from tf_graft.report import ReportError

    if isinstance(error, CheckpointError):
        return 1
    return 2 if isinstance(error, ReportError) else None


def _end(message: str, code: int) -> None:
    from tf_graft.core.media import for_terminal

    print(for_terminal(message), file=sys.stderr)
    raise SystemExit(code) from None
