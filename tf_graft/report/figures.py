"""The figures of a report."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from matplotlib.figure import Figure

from tf_graft.core.media import for_figure
from tf_graft.report.graft_report import GraftReport, Layer

MAGNITUDE, DIRECTION, RATIO, OTHER = "#4269d0", "#e8743b", "#3ca951", "#999999"
NAMED = ("#4269d0", "#e8743b", "#3ca951", "#a463f2", "#6cc5b0")
CURVES = {"length": MAGNITUDE, "direction": DIRECTION, "ratio": RATIO}  # of a panel
NARROW = 5.0  # inches; in a narrower figure the legend is below the axes


def ratios(report: GraftReport, layers: Sequence[Layer], width: float, height: float) -> Figure:
    """Plots the ratio of every layer, names the furthest ones, and shows the common ratio."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axis = figure.subplots()
    speaking = [layer.path for layer in layers if not layer.silent]
    steps, named, others = report.records.steps, speaking[: len(NAMED)], speaking[len(NAMED) :]
    for rank, (path, color) in enumerate(zip(named, NAMED, strict=False)):
        curve = report.ratio[:, report.paths.index(path)]
        axis.plot(
            steps, curve, color=color, linewidth=1.4, label=for_figure(path), zorder=4 - rank / 10
        )
    axis.plot(steps, report.common, "k", linewidth=2, label="common to all layers", zorder=5)
    label = for_figure(others[0]) if len(others) == 1 else f"{len(others)} other layers"
    for path in others:
        curve = report.ratio[:, report.paths.index(path)]
        axis.plot(steps, curve, color=OTHER, linewidth=0.7, label=label, zorder=2)
        label = "_"  # matplotlib leaves this label out of the legend: one entry for all is enough
    axis.set(yscale="log", xlabel="step", ylabel="length of magnitude over direction")
    axis.grid(alpha=0.3)
    narrow = width < NARROW
    place: Literal["outside lower center", "outside right center"] = (
        "outside lower center" if narrow else "outside right center"
    )
    figure.legend(frameon=False, fontsize="small", loc=place, ncols=2 if narrow else 1)
    return figure


def panel(report: GraftReport, layer: Layer) -> Figure:
    """Plots a layer's norms and their ratio."""
    figure = Figure(figsize=(4.2, 2.8))
    axis = figure.add_axes((0.16, 0.16, 0.82, 0.82))  # a computed layout is slow
    i, recorded = report.paths.index(layer.path), report.records
    columns = (recorded.magnitude, recorded.direction, report.ratio)
    for curves, color in zip(columns, CURVES.values(), strict=True):
        curve = np.where(curves[:, i] > 0, curves[:, i], np.nan)
        axis.plot(recorded.steps, curve, color=color, linewidth=1)
    axis.set(yscale="log", xlabel="step")
    axis.grid(alpha=0.3)
    return figure
