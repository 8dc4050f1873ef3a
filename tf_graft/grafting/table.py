"""The tables of a report for the terminal."""

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Column, Table

from tf_graft.grafting.findings import KINDS, times
from tf_graft.grafting.graft_report import GraftReport
from tf_graft.monitor.norms_file import NormsReport, number


class NamedRows:
    """A table of numbers, a row for each name; no name is broken in a narrow terminal.

    Where names and numbers do not fit beside one another, a name is above its numbers, and takes
    the line that it needs.

    Args:
        columns: the columns' headers; the first is that of the names.
        title: the line above the table.
        caption: the line below it.
    """

    def __init__(self, columns: Sequence[str], title: str, caption: str) -> None:
        self._columns, self._title, self._caption = columns, title, caption
        self._rows: list[tuple[tuple[str, ...], str]] = []

    def add(self, *cells: str, style: str = "") -> None:
        """Adds a row."""
        self._rows.append((cells, style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Prints the table beside its names, or below each."""
        whole = self._table(0)
        if whole.__rich_measure__(console, options).maximum <= options.max_width:
            whole.title, whole.caption = self._title, self._caption
            yield whole
            return
        yield self._title
        header, *lines = console.render_lines(self._table(1), options, pad=False)
        yield from (*header, Segment.line())
        for (cells, style), line in zip(self._rows, lines, strict=True):
            name = console.render_str(cells[0], style=style)
            name.overflow, name.no_wrap = "ignore", True
            yield name
            yield from (*line, Segment.line())
        yield self._caption

    def _table(self, first: int) -> Table:
        """Returns the table from a column on, each row on one line."""
        columns = [Column(name, no_wrap=True) for name in self._columns[first:]]
        table = Table(*columns, box=None)
        for cells, style in self._rows:
            table.add_row(*cells[first:], style=style)
        return table


def of_layers(report: GraftReport) -> NamedRows:
    """Makes the table of layers, those furthest from the common ratio first."""
    header, steps = report.records.header, report.records.steps
    title = f"{header.magnitude}'s length, {header.direction}'s direction: "
    table = NamedRows(
        ("variable", "shape", "ratio", "of common", "over time", "length", "direction", "weight"),
        f"{title}{len(steps):,} records to step {steps[-1]:,}",
        "Geometric means; weight: its norm at the end; grey: the ratio says nothing.",
    )
    for layer in report.layers():
        numbers = (layer.magnitude, layer.direction, layer.weight)
        table.add(
            layer.path,
            "x".join(map(str, layer.shape)) or "scalar",
            f"{layer.ratio:.3g}",
            "-" if layer.silent else times(layer.of_common),
            "-" if layer.silent else f"×÷ {layer.spread:.2f}",
            *(f"{number:.2g}" for number in numbers),
            style="bright_black" if layer.silent else "",
        )
    return table


def of_norms(report: NormsReport) -> NamedRows:
    """Makes the table of the norms that a monitor measured, the fastest layers first."""
    table = NamedRows(
        ("variable", "learning rate", "weights", "gradient", "step / weights", "at most"),
        f"Norms by layer: {len(report.steps):,} records to step {report.steps[-1]:,}",
        "Medians over the records; weights: the norm at the end.",
    )
    for row in report.layers():
        numbers = (row.learning_rate, row.weight, row.gradient, row.ratio, row.highest)
        table.add(row.path, *map(number, numbers))
    return table


def of_kinds(report: GraftReport) -> Table:
    """Makes the table of how close each kind of rates comes to the graft."""
    table = Table("rates", "miss the graft's steps by", box=None)
    misses = report.misses()
    for kind, what in KINDS.items():
        table.add_row(what, f"{misses[kind]:.0%}")
    return table
