"""The picture of a study: for each task its arms, their training losses, and their sweeps."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tf_graft.core.media import for_figure
from tf_graft.study.outcomes import Outcome
from tf_graft.study.plan import Plan
from tf_graft.training import plots
from tf_graft.training.folder import RunFolder
from tf_graft.training.log import read

Colors: TypeAlias = Mapping[str, tuple[float, ...]]

COLORS = colormaps["tab20"].colors  # type: ignore[attr-defined]
ROW = 0.28  # inches of an arm
PARTS = 40  # of a run, of which the mean training loss is drawn


def draw(plan: Plan, outcomes: Sequence[Outcome], path: Path) -> None:
    """Draws the metric of every run, the training losses, and the sweeps, as a PNG.

    Without a run that has ended, there is no picture.
    """
    outcomes, name = [each for each in outcomes if each.swept], plan.study.metric
    tasks = list(dict.fromkeys(each.cell.task for each in outcomes))
    if not tasks:
        return
    colors = {arm: COLORS[i % len(COLORS)] for i, arm in enumerate(plan.study.arms)}
    height = max(3.2, 1.1 + ROW * len(plan.study.arms))
    figure = Figure(figsize=(15.6, 0.4 + height * len(tasks)), layout="constrained")
    grid = figure.subplots(len(tasks), 3, squeeze=False)
    for task, axes in zip(tasks, grid, strict=True):
        of_task = [each for each in outcomes if each.cell.task == task]
        _arms(axes[0], of_task, colors)
        _losses(axes[1], plan, of_task, colors)
        _sweeps(axes[2], of_task, colors)
        _focus(axes[2], [each.swept[each.value] for each in of_task if each.metrics])
        axes[0].set_title(for_figure(task), loc="left")
        axes[0].set_xlabel(plots.UNITS.get(name, name.replace("_", " ")))
        axes[2].set_ylabel(axes[0].get_xlabel())
    for axis in grid.flat:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(for_figure(plan.folder.name))
    plots.save(figure, path)


def _arms(axis: Axes, outcomes: Sequence[Outcome], colors: Colors) -> None:
    """Draws a dot for each run, and a line at the mean of the seeds."""
    for row, each in enumerate(outcomes):
        color = colors[each.cell.arm]
        axis.scatter(each.finite, [row] * len(each.finite), color=color, s=26, zorder=3)
        if math.isfinite(each.mean):
            axis.plot([each.mean] * 2, [row - 0.35, row + 0.35], color=color)
    names = [f"{each.cell.arm}, {each.value}" if each.value else each.cell.arm for each in outcomes]
    axis.set_yticks(range(len(outcomes)), list(map(for_figure, names)))
    axis.set_ylim(len(outcomes) - 0.5, -0.5)


def _losses(axis: Axes, plan: Plan, outcomes: Sequence[Outcome], colors: Colors) -> None:
    """Draws the mean training loss over the seeds in parts of the runs, with its range."""
    for each in outcomes:
        trials = [plan.trial(each.cell, each.value, seed) for seed in each.metrics]
        logs = [read(RunFolder(str(trial.folder)).steps) for trial in trials]
        if not logs or any(not len(log.get("loss", ())) for log in logs):
            continue
        steps = _means(logs[0]["step"])
        losses = np.stack([_means(log["loss"]) for log in logs])
        color = colors[each.cell.arm]
        axis.plot(steps, losses.mean(0), color=color, lw=1.2)
        axis.fill_between(steps, losses.min(0), losses.max(0), color=color, alpha=0.15)
    axis.set_xlabel("step")
    axis.set_ylabel("training loss")
    if axis.lines:
        axis.set_yscale("log")


def _means(values: np.ndarray) -> np.ndarray:
    return np.array([part.mean() for part in np.array_split(values, min(PARTS, len(values)))])


def _sweeps(axis: Axes, outcomes: Sequence[Outcome], colors: Colors) -> None:
    """Draws the metric of the first seed over the values of each sweep, in their order."""
    for each in outcomes:
        points = {v: m for v, m in each.swept.items() if v and math.isfinite(m)}
        numbers = [number for number in map(_number, points) if number is not None]
        scaled = len(numbers) == len(points)
        at = numbers if scaled else list(range(len(points)))
        axis.plot(at, list(points.values()), "o-", color=colors[each.cell.arm], ms=4)
        if points and scaled:
            axis.set_xscale("log")
    axis.set_xlabel("value of the sweep")


def _focus(axis: Axes, best: Sequence[float]) -> None:
    """Leaves out what is far from the best of each arm, such as runs that diverged."""
    finite = [metric for metric in best if math.isfinite(metric)]
    if finite:
        low, high = min(finite), max(finite)
        margin = max(high - low, abs(high) / 20)
        bottom, top = axis.get_ylim()
        axis.set_ylim(max(bottom, low - margin), min(top, high + margin))


def _number(text: str) -> float | None:
    """Returns a positive number, None for other values."""
    try:
        return float(text) if float(text) > 0 else None
    except ValueError:
        return None
