"""Rows of a file that grows, each with a checksum: the CRC-32 of the file up to the row's end.

A row that was changed, lost, doubled or is another file's has a checksum that does not fit, and so
has every row after it.
"""

import bisect
import zlib
from collections.abc import Sequence
from typing import NamedTuple


def checksum(content: bytes, before: int = 0) -> int:
    """The CRC-32 of a file that goes on with `content`; `before`: of what came before."""
    return zlib.crc32(content, before)


def unreadable(error: OSError) -> str:
    """The damage of a file that cannot be read."""
    return f"content cannot be read ({str(error.strerror).lower()})"


class Rows(NamedTuple):
    """The rows of a file, up to the first that is damaged.

    Args:
        steps: their steps, rising.
        checksums: their checksums.
        first: the checksum of the first line, which says what the rows are; None without one.
        damage: what is wrong with the row after them; empty where nothing is.
        even: whether the rows come at even distances.
    """

    steps: Sequence[int] = ()
    checksums: Sequence[int] = ()
    first: int | None = None
    damage: str = ""
    even: bool = False

    def until(self, step: int) -> int:
        """How many rows there are up to `step`."""
        return bisect.bisect_right(self.steps, step)

    def checksum(self, step: int) -> int | None:
        """The checksum of the file up to `step`."""
        count = self.until(step)
        return int(self.checksums[count - 1]) if count else self.first

    def lost(self, step: int, expected: int | None) -> bool:
        """Whether there is no row up to `step`, nor a trace of one, and there should be.

        Args:
            step: of a state.
            expected: the checksum that the file had then; None where that is not known.
        """
        traces = self.until(step) or self.damage
        return not traces and (self.first is None or expected not in (None, self.first))

    def misfit(self, step: int, expected: int | None) -> str:
        """What is wrong with the rows up to a state; empty where nothing is.

        Arguments are those of `lost`.
        """
        if expected is not None and self.checksum(step) == expected and self._reach(step):
            return ""
        if self.damage and self.until(step) == len(self.steps):
            return self.damage
        if not self._reach(step):
            return f"rows end at step {self.steps[self.until(step) - 1]}"
        return "" if expected is None else "rows are not those it was saved with"

    def _reach(self, step: int) -> bool:
        """Whether no row is missing before `step`, as far as distances tell."""
        count = self.until(step)
        if not count or not self.even:
            return True
        distance = self.steps[1] - self.steps[0] if len(self.steps) > 1 else self.steps[0]
        return step - self.steps[count - 1] < distance
