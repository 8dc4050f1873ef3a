"""The steps as a chart: a panel for each area, a line for each case, a dot for each candidate."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.areas import AREAS, Area
from benchmarks.results import Measured, Spread
from tf_graft.core.files.whole_files import whole
from tf_graft.core.media import for_figure

COLORS = {
    **dict.fromkeys(("ours", "large"), "#4269d0"),
    **dict.fromkeys(("unchecked", "small"), "#97bbf5"),
    "stock": "#e8743b",
    "torch": "#3ca951",
    "fbgemm": "#9c6b4e",
    "optax": "#a463f2",
}
LINE, PANEL = 0.24, 1.1  # inches of a case, and of the space around a panel's cases


def draw(measured: Sequence[Measured], title: str, path: Path) -> None:
    """Draws all steps that were measured, as multiples of the floor or of another candidate."""
    found = {name: [m for m in measured if m.area == name and m.steps] for name in AREAS}
    panels = {name: cases for name, cases in found.items() if cases}
    heights = [PANEL + LINE * len(cases) for cases in panels.values()]
    figure = Figure(figsize=(8.5, 0.5 + sum(heights)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (name, cases) in zip(axes, panels.items(), strict=True):
        _panel(axis, AREAS[name], cases)
    figure.suptitle("\n".join(map(for_figure, title.split("\n"))), fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as part:
        figure.savefig(part, dpi=120)


def _panel(axis: Axes, area: Area, cases: Sequence[Measured]) -> None:
    floors = all(m.floor for m in cases)
    for name in area.columns:
        spreads = [
            m.of_floor(name) if floors else m.compared("step", name, area.base) for m in cases
        ]
        _dots(axis, name, [(row, spread) for row, spread in enumerate(spreads) if spread])
    axis.set_yticks(range(len(cases)), [for_figure(m.case) for m in cases])
    axis.set_ylim(len(cases) - 0.4, -0.6)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel(f"time, as a multiple of {'the floor' if floors else area.base}")
    axis.grid(alpha=0.3)
    axis.axvline(1, color="black", linewidth=0.8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    axis.set_title(area.title, fontsize="medium", loc="left")


def _dots(axis: Axes, name: str, points: Sequence[tuple[int, Spread]]) -> None:
    """Draws medians, and lines from quartile to quartile."""
    if points:
        rows, spreads = zip(*points, strict=True)
        low, middle, high = (
            [getattr(spread, what) for spread in spreads]
            for what in ("lower_quartile", "median", "upper_quartile")
        )
        axis.hlines(rows, low, high, color=COLORS[name], linewidth=2)
        axis.scatter(middle, rows, color=COLORS[name], s=28, label=name, zorder=3)
