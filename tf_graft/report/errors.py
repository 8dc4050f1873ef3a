"""What is wrong with a file of a graft's records or rates, and how one is written."""

import difflib
from collections.abc import Sequence
from pathlib import Path

from tf_graft.core.whole_files import write


class ReportError(ValueError):
    """A file of records or rates that cannot be used. Nothing has been changed."""


class Unwritable(ReportError):
    """A file cannot be written; the message says which, and why."""


def difference(saved: Sequence[str], present: Sequence[str]) -> str:
    """In a clause, how the paths in a file differ from a model's."""
    absent = [path for path in present if path not in saved]
    if absent:
        close = difflib.get_close_matches(absent[0], saved, 1)
        hint = f", it has '{close[0]}'" if close else ""
        return f"it has no '{absent[0]}'{hint}"
    return f"its '{next(path for path in saved if path not in present)}' is no variable here"


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file, and the folders it is in; a reader sees the old content or the new one.

    Raises:
        Unwritable: it cannot be written; it is as before.
    """
    try:
        write(path, content)
    except OSError as error:
        raise Unwritable(f"{path} cannot be written: {str(error.strerror).lower()}.") from None
