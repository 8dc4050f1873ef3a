"""What a run says about itself."""

import sys
from collections.abc import Callable
from typing import Any

import keras

from tf_graft.training import data as data_sets
from tf_graft.training.folder import RunFolder
from tf_graft.training.schema import RunConfig


def finished(
    config: RunConfig, folder: RunFolder, steps_per_epoch: int, say: Callable[[str], None]
) -> dict[str, Any] | None:
    """The summary of a run that has made its steps already; None where there is something to do."""
    if config.run.fresh:
        return None
    try:
        summary = folder.finished()
    except (OSError, ValueError):
        say(f"{folder.summary} cannot be read; it is made anew.")
        return None
    if not summary or summary["steps"] < config.run.epochs * steps_per_epoch:
        return None
    say(
        f"{folder.path} is finished. More epochs go on from its end (run.epochs=...); "
        "run.fresh=true starts afresh."
    )
    return summary


def verbosity(progress: str) -> int:
    """Keras' `verbose` for `run.progress`."""
    if progress == "auto":
        progress = "bar" if sys.stdout.isatty() else "line"
    return {"none": 0, "bar": 1, "line": 2}[progress]


def announced(
    config: RunConfig, folder: RunFolder, model: keras.Model, data: data_sets.Batches, start: int
) -> str:
    """What a run is about to do, in a line."""
    total = config.run.epochs * data.steps_per_epoch
    if start:
        return f"Resuming {folder.path} after step {start:,} of {total:,}."
    return (
        f"Training a model of {model.count_params():,} parameters for {total:,} steps, "
        f"{data.steps_per_epoch:,} an epoch. Everything goes to {folder.path}."
    )
