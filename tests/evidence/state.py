"""How much of the evidence there is."""

from collections.abc import Iterator, Mapping, Sequence

from evidence.ledger import Ledger, Row
from evidence.suites import Suite

HEADER = ("suite", "parts", "missing", "stale", "wrong", "tried", "minutes", "from", "to")


class State:
    """Suites, and how their parts ended.

    Args:
        suites: all of them, by name.
        chosen: the names of those that are asked for; all, if there are none.
        ledger: of the parts.
    """

    def __init__(
        self,
        suites: Mapping[str, Suite],
        chosen: Sequence[str] = (),
        ledger: Ledger | None = None,
    ):
        self.suites = {name: suites[name] for name in chosen or suites}
        self.ledger = ledger or Ledger()
        for name, suite in suites.items():
            self.ledger.enter(name, suite.shows, suite.parts)

    def rows(self, name: str) -> dict[str, Row]:
        """Returns how the parts of a suite ended that have been made, by part."""
        found = {part: self.ledger.row(name, part) for part in self.suites[name].parts}
        return {part: row for part, row in found.items() if row}

    def stale(self, name: str) -> int:
        """Returns how many rows of a suite are of code that has changed since."""
        return sum(self.suites[name].stale(part, row) for part, row in self.rows(name).items())

    def wrong(self) -> bool:
        """Returns whether a part is wrong."""
        return any(row.wrong for name in self.suites for row in self.rows(name).values())

    def to_make(self) -> list[tuple[str, str]]:
        """Returns the parts that are missing, then the wrong, then the stale ones, by suite."""
        missing, wrong, stale = [], [], []
        for name, suite in self.suites.items():
            for part in suite.parts:
                row = self.ledger.row(name, part)
                if row is None:
                    missing.append((name, part))
                elif row.wrong:
                    wrong.append((name, part))
                elif suite.stale(part, row):
                    stale.append((name, part))
        return missing + wrong + stale

    def table(self) -> Iterator[str]:
        """Yields the state, a line for each suite, then what is wrong."""
        lines = [HEADER, *map(self._line, self.suites)]
        widths = [max(len(line[at]) for line in lines) for at in range(len(HEADER))]
        for first, *others in lines:
            cells = [f"{each:>{width}}" for each, width in zip(others, widths[1:], strict=True)]
            yield f"{first:<{widths[0]}}  {'  '.join(cells)}"
        for name in self.suites:
            for part, row in self.ledger.rows[name].items():
                yield from (f"WRONG  {name}: {part}: {line}" for line in row.wrong)

    def _line(self, name: str) -> tuple[str, ...]:
        rows = self.rows(name).values()
        parts = len(self.suites[name].parts)
        wrong, tried = sum(len(row.wrong) for row in rows), sum(row.tried for row in rows)
        minutes = round(sum(row.seconds for row in rows) / 60)
        dates = sorted(row.date for row in rows) or ["", ""]
        counts = (parts, parts - len(rows), self.stale(name), wrong, tried, minutes)
        return (name, *(f"{count:,}" for count in counts), dates[0], dates[-1])
