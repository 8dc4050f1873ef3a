"""The figures of a report."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tf_graft.core.media import for_figure
from tf_graft.monitor.norms_file import NormsReport

MAGNITUDE, DIRECTION, RATIO, OTHER = "#4269d0", "#e8743b", "#3ca951", "#999999"
NAMED = ("#4269d0", "#e8743b", "#3ca951", "#a463f2", "#6cc5b0")
CURVES = {"length": MAGNITUDE, "direction": DIRECTION, "ratio": RATIO}  # of a panel
NARROW = 5.0  # inches; in a narrower figure the legend is below the axes


def ratios(
    steps: np.ndarray,
    layers: Mapping[str, np.ndarray],
    common: np.ndarray,
    width: float,
    height: float,
) -> Figure:
    """Plots the ratio of every layer, names the first ones, and shows the common ratio."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axis = figure.subplots()
    _draw(axis, steps, dict([*layers.items()][: len(NAMED)]))
    axis.plot(steps, common, "k", linewidth=2, label="common to all layers", zorder=5)
    _draw_others(axis, steps, dict([*layers.items()][len(NAMED) :]))
    axis.set_ylabel("length of magnitude over direction")
    _legend(figure, axis, width)
    return figure


def norms(report: NormsReport, width: float, height: float) -> Figure:
    """Plots the norm of the gradient and the ratio of step to weights by layer."""
    narrow = width < NARROW
    figure = Figure(figsize=(width, 2 * height if narrow else height), layout="constrained")
    axes = figure.subplots(2, 1) if narrow else figure.subplots(1, 2)
    paths = [layer.path for layer in report.layers()]
    what = {"norm of gradient": report.gradient, "norm of step / norm of weights": report.ratio}
    for axis, (name, values) in zip(axes, what.items(), strict=True):
        curves = {path: values[:, report.paths.index(path)] for path in paths}
        shown = [(path, np.where(curve > 0, curve, np.nan)) for path, curve in curves.items()]
        _draw(axis, report.steps, dict(shown[: len(NAMED)]))
        _draw_others(axis, report.steps, dict(shown[len(NAMED) :]))
        axis.set_ylabel(name)
    _legend(figure, axes[0], width)
    return figure


def _draw(axis: Axes, steps: np.ndarray, curves: Mapping[str, np.ndarray]) -> None:
    """Plots curves with their names."""
    marker = "o" if len(steps) == 1 else None
    for rank, (path, color) in enumerate(zip(curves, NAMED, strict=False)):
        style: dict[str, Any] = {"color": color, "linewidth": 1.4, "marker": marker}
        axis.plot(steps, curves[path], label=for_figure(path), zorder=4 - rank / 10, **style)
    axis.set(yscale="log", xlabel="step")
    axis.grid(alpha=0.3)


def _draw_others(axis: Axes, steps: np.ndarray, curves: Mapping[str, np.ndarray]) -> None:
    """Plots curves in grey, with one name for all."""
    label = (
        for_figure(next(iter(curves), "")) if len(curves) == 1 else f"{len(curves)} other layers"
    )
    for curve in curves.values():
        axis.plot(steps, curve, color=OTHER, linewidth=0.7, label=label, zorder=2)
        label = "_"  # matplotlib leaves this label out of the legend: one entry for all is enough


def _legend(figure: Figure, axis: Axes, width: float) -> None:
    narrow = width < NARROW
    place: Literal["outside lower center", "outside right center"] = (
        "outside lower center" if narrow else "outside right center"
    )
    handles, labels = axis.get_legend_handles_labels()
    columns = 2 if narrow else 1
    figure.legend(handles, labels, frameon=False, fontsize="small", loc=place, ncols=columns)


def panel(steps: np.ndarray, curves: Iterable[np.ndarray]) -> Figure:
    """Plots a layer's norms and their ratio, in the order of `CURVES`."""
    figure = Figure(figsize=(4.2, 2.8))
    axis = figure.add_axes((0.16, 0.16, 0.82, 0.82))  # a computed layout is slow
    for curve, color in zip(curves, CURVES.values(), strict=True):
        axis.plot(steps, np.where(curve > 0, curve, np.nan), color=color, linewidth=1)
    axis.set(yscale="log", xlabel="step")
    axis.grid(alpha=0.3)
    return figure
