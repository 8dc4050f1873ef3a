"""The figures as tables, for a terminal of 80 columns and in Markdown."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from benchmarks.areas import AREAS, Area
from benchmarks.results import UNITS, Measured, Spread
from tf_graft.core.media import for_markdown

LEGEND = "± is half of what lies between the quartiles, as a part of the median."


class Sheet(NamedTuple):
    """A table of texts; `header` names the columns after the first, which contains the cases."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str]


def sheets(measured: Sequence[Measured]) -> list[Sheet]:
    """Makes a table for each quantity of each area that was measured."""
    made = []
    for name, area in AREAS.items():
        cases = [m for m in measured if m.area == name]
        made += [_sheet(area, quantity, cases) for quantity in area.quantities if cases]
    return made


def rich(sheet: Sheet) -> Group:
    """Makes a table for the terminal, between its title and its notes."""
    headers = [name.replace(" / ", " /\n").replace(", ", ",\n") for name in sheet.header]
    columns = [
        Column(overflow="fold"),
        *(Column(header, justify="right", no_wrap=True) for header in headers),
    ]
    table = Table(*columns, box=None, padding=(0, 1, 0, 0))
    for row in sheet.rows:
        table.add_row(*row)
    return Group("", Text(sheet.title, "bold"), table, *sheet.notes)


def markdown(sheet: Sheet) -> str:
    """Makes a table for a document."""
    header = [sheet.title, *sheet.header]
    lines = [header, ["---"] * len(header), *sheet.rows]
    table = "\n".join(f"| {' | '.join(map(for_markdown, line))} |" for line in lines)
    return "\n\n".join([table, *map(for_markdown, sheet.notes)])


def _sheet(area: Area, quantity: str, cases: Sequence[Measured]) -> Sheet:
    floors = quantity == "step" and all(m.floor for m in cases if m.steps)
    taken = {name for m in cases for name in (*m.samples(quantity), *m.errors)}
    columns = [name for name in area.columns if name in taken]
    pairs = [pair for pair in area.ratios if set(pair) <= taken]
    rows = [
        [m.case, *_cells(m, quantity, columns, floors), *_ratios(m, quantity, pairs)] for m in cases
    ]
    unit = "times the floor" if floors else UNITS[quantity]
    header = [*columns, *(f"{a} / {b}" for a, b in pairs)]
    title = f"{area.title}: {quantity}, {unit}"
    notes = list(_failures(cases)) if quantity == area.quantities[0] else []
    return Sheet(title, header, rows, notes)


def _cells(m: Measured, quantity: str, columns: Sequence[str], floors: bool) -> Iterator[str]:
    samples = m.samples(quantity)
    for name in columns:
        if name in m.errors:
            yield "failed"
        elif name not in samples:
            yield "-"
        else:
            yield cell(m.of_floor(name) if floors else Spread.of(samples[name]))


def _ratios(m: Measured, quantity: str, pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
    for one, other in pairs:
        spread = m.compared(quantity, one, other)
        yield "-" if spread is None else f"{spread.median:.2f}"


def _failures(cases: Sequence[Measured]) -> Iterator[str]:
    for m in cases:
        yield from (f"{m.case}, {name}: {error}" for name, error in m.errors.items())


def cell(spread: Spread | None) -> str:
    """Writes a median and its spread; a single turn has no spread."""
    if spread is None:
        return "-"
    digits = sum(spread.median < limit for limit in (10, 100))  # three significant digits
    median = f"{spread.median:.{digits}f}"
    if spread.turns == 1:
        return median
    return f"{median} ±{(spread.upper_quartile - spread.lower_quartile) / 2 / spread.median:.0%}"
