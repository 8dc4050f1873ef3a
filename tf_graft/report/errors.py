"""What is wrong with a file of a graft's records or rates."""

import difflib
from collections.abc import Sequence


class ReportError(ValueError):
    """A file of records or rates that cannot be used. Nothing has been changed."""


def difference(saved: Sequence[str], present: Sequence[str]) -> str:
    """In a clause, how the paths in a file differ from a model's."""
    absent = [path for path in present if path not in saved]
    if absent:
        close = difflib.get_close_matches(absent[0], saved, 1)
        hint = f", it has '{close[0]}'" if close else ""
        return f"it has no '{absent[0]}'{hint}"
    return f"its '{next(path for path in saved if path not in present)}' is no variable here"
