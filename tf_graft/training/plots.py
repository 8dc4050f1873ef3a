"""Plots of a run and of a schedule, as PNG files."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tf_graft.training.folder import RunFolder, read

TRAIN, TEST, RATE = "#4269d0", "#e8743b", "#3ca951"


def draw_run(folder: RunFolder, title: str) -> None:
    """Loss, the other metrics and the learning rate of a run, from its logs."""
    steps, epochs = read(folder.steps), read(folder.metrics)
    names = [name.removeprefix("test_") for name in epochs if name.startswith("test_")]
    figure = Figure(figsize=(4.6 * (len(names) + 1), 3.8), layout="constrained")
    axes = figure.subplots(1, len(names) + 1, squeeze=False)[0]
    position = steps["step"] * (epochs["epoch"][-1] / epochs["step"][-1])
    for axis, name in zip(axes, names, strict=False):
        if name == "loss":
            axis.plot(
                position, steps["loss"], color=TRAIN, alpha=0.25, linewidth=0.8, label="each step"
            )
        _pair(axis, epochs, name)
    axes[-1].plot(position, steps["learning_rate"], color=RATE)
    _label(axes[-1], "learning rate", "epoch")
    axes[-1].set_ylim(bottom=0)
    figure.suptitle(title)
    figure.savefig(folder.plot, dpi=120)


def draw_schedule(rates: np.ndarray, steps: np.ndarray, title: str, path: Path) -> None:
    """A learning rate over the steps of a run."""
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axis = figure.subplots()
    axis.plot(steps, rates, color=RATE)
    _label(axis, "learning rate", "step")
    axis.set_ylim(bottom=0)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def _pair(axis: Any, epochs: dict[str, np.ndarray], name: str) -> None:
    """A metric on the training data, the mean over each epoch, and on the test data after it."""
    axis.plot(
        epochs["epoch"] - 0.5, epochs[f"train_{name}"], "o-", ms=3, color=TRAIN, label="train"
    )
    axis.plot(epochs["epoch"], epochs[f"test_{name}"], "o-", ms=3, color=TEST, label="test")
    _label(axis, UNITS.get(name, name.replace("_", " ")), "epoch")
    axis.legend(frameon=False)
    if name == "accuracy":
        axis.yaxis.set_major_formatter("{x:.0%}")
    end = epochs[f"test_{name}"][-1]
    shown = f"{end:.1%}" if name == "accuracy" else f"{end:.3f}"
    axis.set_title(f"test at the end: {shown}", fontsize="medium")


def _label(axis: Any, what: str, over: str) -> None:
    axis.set_xlabel(over)
    axis.set_ylabel(what)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


UNITS = {"loss": "loss (cross-entropy, nats)", "bits_per_character": "bits per character"}
