"""Plots of a run and of a schedule, as PNG files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tf_graft.core.files.whole_files import kind, whole
from tf_graft.core.media import for_figure
from tf_graft.training.folder import RunFolder
from tf_graft.training.log import read
from tf_graft.training.source import ConfigError

TRAIN, TEST, RATE = "#4269d0", "#e8743b", "#3ca951"
DRAWN_BY, HEAD = "tf-graft", 1024  # in the first bytes of a picture
IN_LEGEND = 8  # curves; more cannot be told apart


def draw_run(folder: RunFolder, title: str) -> None:
    """Draws the loss, other metrics and the learning rate of a run from its logs."""
    steps, epochs = read(folder.steps), read(folder.metrics)
    names = [name.removeprefix("test_") for name in epochs if name.startswith("test_")]
    figure = Figure(figsize=(4.6 * (len(names) + 1), 3.8), layout="constrained")
    axes = figure.subplots(1, len(names) + 1, squeeze=False)[0]
    end = epochs["epoch"][-1]
    position = steps["step"] * (end / epochs["step"][-1])
    for axis, name in zip(axes, names, strict=False):
        if name == "loss":
            faint = {"alpha": 0.35, "linewidth": 0.8, "label": "each step"}
            _line(axis, position, steps["loss"], color=TRAIN, **faint)
        _pair(axis, epochs, name)
    _line(axes[-1], position, steps["learning_rate"], color=RATE)
    _label(axes[-1], "learning rate", "epoch")
    axes[-1].set_ylim(bottom=0)
    for axis in axes:
        axis.set_xlim(0, 1.02 * end)  # from the start, however short the run
    figure.suptitle(for_figure(title))
    save(figure, folder.plot)


def draw_schedule(
    curves: Mapping[str, np.ndarray], steps: np.ndarray, title: str, path: Path
) -> None:
    """Draws learning rates, by name, over the steps of a run."""
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axis = figure.subplots()
    for name, rates in curves.items():
        _line(axis, steps, rates, label=for_figure(name), **_one_color(curves))
    _label(axis, "learning rate", "step")
    axis.set_ylim(bottom=0)
    if 1 < len(curves) <= IN_LEGEND:
        axis.legend(frameon=False, fontsize="small")
    figure.suptitle(for_figure(title))
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as a PNG that says who drew it."""
    with whole(path) as part:
        figure.savefig(part, dpi=120, metadata={"Software": DRAWN_BY})


def prepare(path: Path) -> None:
    """Makes the folder of a picture; refuses to replace a file that is no picture of this package.

    Raises:
        ConfigError: there is such a file.
        OSError: the folder cannot be made.
    """
    if kind(path) == "file" and DRAWN_BY.encode() not in path.read_bytes()[:HEAD]:
        raise ConfigError(f"{path} is not of tf-graft, and stays as it is; give another --output.")
    path.parent.mkdir(parents=True, exist_ok=True)


def _one_color(curves: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns the color of the learning rate for one curve; several have matplotlib's."""
    return {"color": RATE} if len(curves) == 1 else {}


def _pair(axis: Axes, epochs: dict[str, np.ndarray], name: str) -> None:
    """Draws a metric on the training data, the epoch's mean, and on the test data after it.

    On parameter servers, some metrics have no mean on the training data.
    """
    dots: dict[str, Any] = {"marker": "o", "markersize": 6 if len(epochs["epoch"]) < 4 else 3}
    train, test = epochs.get(f"train_{name}"), epochs[f"test_{name}"]
    if train is not None:
        label = "train, mean of the epoch"
        axis.plot(epochs["epoch"] - 0.5, train, color=TRAIN, label=label, **dots)
    axis.plot(epochs["epoch"], test, color=TEST, label="test", **dots)
    _label(axis, UNITS.get(name, name.replace("_", " ")), "epoch")
    axis.legend(frameon=False)
    if name == "accuracy":
        axis.yaxis.set_major_formatter("{x:.0%}")
    shown = f"{test[-1]:.1%}" if name == "accuracy" else f"{test[-1]:.3f}"
    axis.set_title(f"test at the end: {shown}", fontsize="medium")


def _line(axis: Axes, x: np.ndarray, y: np.ndarray, **style: Any) -> None:
    """Draws a curve, or a dot if there is only one point."""
    axis.plot(x, y, marker="o" if len(x) == 1 else None, markersize=4, **style)


def _label(axis: Axes, what: str, over: str) -> None:
    axis.set_xlabel(over)
    axis.set_ylabel(what)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


UNITS = {"loss": "loss (cross-entropy, nats)", "bits_per_character": "bits per character"}
