"""The programs of which something is known not to hold, in one place, each with its reason.

Where an exception holds no longer, the command fails, so that this list stays true.
"""

from collections.abc import Callable
from typing import NamedTuple


class Known(NamedTuple):
    """Checks that do not hold of some programs.

    Attributes:
        is_of: whether it is about a program.
        checks: their names, as in `checks.failed`.
        reason: why.
    """

    is_of: Callable
    checks: set[str]
    reason: str


EXCEPTIONS: tuple[Known, ...] = ()
