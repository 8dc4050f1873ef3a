"""Tells how far a run is, and whether it continues or is finished."""

import sys
from collections.abc import Callable

import keras

from tf_graft.core.errors import CheckpointError
from tf_graft.training import data as data_sets
from tf_graft.training.folder import RunFolder
from tf_graft.training.place import Place
from tf_graft.training.results import Numbers
from tf_graft.training.run_checkpoints import Checkpoints
from tf_graft.training.schema import RunConfig


def finished(
    config: RunConfig, folder: RunFolder, steps_per_epoch: int, say: Callable[[str], None]
) -> Numbers | None:
    """Returns the summary of a run that has finished; None if there are steps to take."""
    if config.run.fresh:
        return None
    try:
        summary = folder.finished()
    except (OSError, ValueError):
        say(f"{folder.summary} cannot be read; it is written again.")
        return None
    if not summary or int(summary["steps"]) < config.run.epochs * steps_per_epoch:
        return None
    say(
        f"{folder.path} is finished. More epochs continue from its end (run.epochs=...); "
        "run.fresh=true starts afresh."
    )
    return summary


def resumed(
    config: RunConfig,
    place: Place,
    folder: RunFolder,
    checkpoints: Checkpoints,
    say: Callable[[str], None],
) -> int:
    """Restores the newest state, and returns its step.

    Raises:
        CheckpointError: no state can be read; processes of a mesh have found different states.
    """
    place.told(0)  # so that no process reads the folder before the first one has opened it
    goes_on = place.chief or place.shared_mesh is not None or folder.goes_on(config)
    start = checkpoints.restore(say) if goes_on else 0
    steps = place.told(start)
    if len(set(steps)) > 1:
        raise CheckpointError(
            f"The processes found states of steps {', '.join(map(str, steps))}; all must reach "
            f"{folder.path}, in a file system that they share."
        )
    if place.chief:
        checkpoints.settle(start)
    return start


def verbosity(progress: str) -> int:
    """Returns Keras' `verbose` for `run.progress`."""
    if progress == "auto":
        progress = "bar" if sys.stdout.isatty() else "line"
    return {"none": 0, "bar": 1, "line": 2}[progress]


def announced(
    config: RunConfig, folder: RunFolder, model: keras.Model, data: data_sets.Batches, start: int
) -> str:
    """Describes in a line what a run is about to do."""
    total = config.run.epochs * data.steps_per_epoch
    if start:
        return f"Resuming {folder.path} after step {start:,} of {total:,}."
    return (
        f"Training a model of {model.count_params():,} parameters for {total:,} steps, "
        f"{data.steps_per_epoch:,} an epoch. Everything goes to {folder.path}."
    )
