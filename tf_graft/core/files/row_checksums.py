"""Rows of a growing file, each with a checksum: the CRC-32 of the file up to the row's end.

If a row was changed, lost, duplicated or copied from another file, its checksum and those of all
rows after it are wrong.
"""

import bisect
import zlib
from collections.abc import Sequence
from typing import NamedTuple


def checksum(content: bytes, before: int = 0) -> int:
    """Returns the CRC-32 of a file after `content` is appended; `before` is that of the file."""
    return zlib.crc32(content, before)


def unreadable(error: OSError) -> str:
    """Describes the damage of a file that cannot be read."""
    return f"content cannot be read ({str(error.strerror).lower()})"


class Rows(NamedTuple):
    """The rows of a file before the first damaged one.

    Args:
        steps: the rows' steps, increasing; those of a graft's records are numbers of updates.
        checksums: the rows' checksums.
        first: the checksum of the first line, which describes the rows; None if it is missing.
        damage: what is wrong with the next row; empty if nothing is.
        even: whether the rows are those of evenly spaced steps of a run.
    """

    steps: Sequence[int] = ()
    checksums: Sequence[int] = ()
    first: int | None = None
    damage: str = ""
    even: bool = False

    def until(self, step: int) -> int:
        """Returns the number of rows up to a step of a run; all rows if they count updates."""
        return bisect.bisect_right(self.steps, step) if self.even else len(self.steps)

    def lost(self, step: int, expected: int | None) -> bool:
        """Returns whether the rows up to `step` are missing without a trace.

        Args:
            step: the step of a saved state.
            expected: the file's checksum at that step; None if it is unknown.
        """
        traces = self.until(step) or self.damage
        return not traces and (self.first is None or expected not in (None, self.first))

    def misfit(self, step: int, expected: int | None) -> str:
        """Describes what is wrong with the rows up to a saved state; empty if nothing is.

        The arguments are those of `lost`.
        """
        count = self.until(step)
        then = (self.first, *self.checksums[:count])[-1 if self.even else 0 :]
        if expected is not None and expected in then and self._reach(step):
            return ""
        if self.damage and count == len(self.steps):
            return self.damage
        if not self._reach(step):
            return f"rows end at step {self.steps[count - 1]}"
        return "" if expected is None else "rows are not those it was saved with"

    def _reach(self, step: int) -> bool:
        """Returns whether no row before `step` is missing, judged by the spacing."""
        count = self.until(step)
        if not count or not self.even:
            return True
        distance = self.steps[1] - self.steps[0] if len(self.steps) > 1 else self.steps[0]
        return step - self.steps[count - 1] < distance
