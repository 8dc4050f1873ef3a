"""Errors of the files of records and rates, and how such a file is written."""

import difflib
from collections.abc import Sequence
from pathlib import Path

from tf_graft.core.files.whole_files import write


class ReportError(ValueError):
    """A file of records or rates cannot be used. Nothing was changed."""


class Unwritable(ReportError):
    """A file cannot be written; the message names it and the reason."""


def difference(saved: Sequence[str], present: Sequence[str]) -> str:
    """Describes the first difference between a file's variables and a model's, in a clause."""
    absent = [path for path in present if path not in saved]
    if absent:
        close = difflib.get_close_matches(absent[0], saved, 1)
        hint = f", it has '{close[0]}'" if close else ""
        return f"it has no '{absent[0]}'{hint}"
    return f"its '{next(path for path in saved if path not in present)}' is no variable here"


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file and its folders; a reader sees the old content or the new one.

    Raises:
        Unwritable: the file cannot be written; it is unchanged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, content)
    except OSError as error:
        raise Unwritable(f"{path} cannot be written: {str(error.strerror).lower()}.") from None
