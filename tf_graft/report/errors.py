"""What is wrong with a file of a graft's records or rates."""

import difflib
import re
from collections.abc import Sequence


class ReportError(ValueError):
    """A file of records or rates that cannot be used. Nothing has been changed."""


def renamed(saved: Sequence[str], present: Sequence[str]) -> bool:
    """Whether the paths are the same, in the same order, but for enclosing or numbered names.

    Keras numbers layers anew for a second model in a process: `dense/kernel`, `dense_4/kernel`.
    """

    def parts(path: str) -> list[str]:
        return [re.sub(r"_\d+$", "", part) for part in reversed(path.split("/"))]

    return len(saved) == len(present) and all(
        all(x == y for x, y in zip(parts(a), parts(b), strict=False))
        for a, b in zip(saved, present, strict=True)
    )


def difference(saved: Sequence[str], present: Sequence[str]) -> str:
    """In a clause, how the paths in a file differ from a model's."""
    absent = [path for path in present if path not in saved]
    if absent:
        close = difflib.get_close_matches(absent[0], saved, 1)
        hint = f", it has '{close[0]}'" if close else ""
        return f"it has no '{absent[0]}'{hint}"
    return f"its '{next(path for path in saved if path not in present)}' is no variable here"
