"""Messages for a run's folder that cannot be used, or can no longer be written to."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from tf_graft.core.files.report_files import Unwritable
from tf_graft.training.lock import InUse
from tf_graft.training.schema import RunConfig
from tf_graft.training.source import reason


class FolderError(OSError):
    """A run cannot write to its folder; the message says what, why, and how to continue."""


@contextlib.contextmanager
def usable(folder: Path, config: RunConfig) -> Iterator[None]:
    """Turns errors of a folder that cannot be used into a ConfigError about `run.dir`."""
    try:
        yield
    except InUse as holder:
        message = f"{folder} is in use by {holder}; wait for it to end"
    except OSError as error:
        message = f"{error.filename or folder} cannot be used ({reason(error)}); fix that"
    else:
        return
    raise config.error(("run", "dir"), f"{message}, or choose another run.dir.") from None


@contextlib.contextmanager
def sentences(folder: Path, command: str) -> Iterator[None]:
    """Turns errors of writing a file of the run into a FolderError that says what to do.

    Args:
        folder: the run's folder.
        command: what continues the run.
    """
    try:
        yield
    except (OSError, tf.errors.OpError, Unwritable) as error:
        said = _said(error, folder)
        if said is None:
            raise
        raise FolderError(
            f"{said}; nothing that was saved is lost: after that is fixed, {command} continues."
        ) from error


def _said(error: Exception, folder: Path) -> str | None:
    """Names a file and its error; None for errors that concern no file of the run."""
    if isinstance(error, OSError):
        closed = isinstance(error, ConnectionError)  # of the pipe that reads our output
        return None if closed else f"{error.filename or folder}: {reason(error)}"
    if isinstance(error, Unwritable):
        return str(error).removesuffix(".")
    pattern = rf"({re.escape(str(folder))}\S*); ([^\n\[]*)"  # TensorFlow's form
    found = re.search(pattern, str(error))
    return found and f"{found[1]}: {found[2].strip().lower()}"
