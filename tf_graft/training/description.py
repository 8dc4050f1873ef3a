"""What a config's run would do, without training: the config, the variables, their memory."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tf_graft.core.nesting import nested
from tf_graft.training import run
from tf_graft.training.config import dump
from tf_graft.training.folder import RunFolder
from tf_graft.training.place import enter
from tf_graft.training.schema import RunConfig

UNITS = ("B", "kB", "MB", "GB", "TB")


def parts(config: RunConfig) -> Iterator[str]:
    """Yields parts of a text for the user; nothing is written, and no step is made.

    Everything is made as for the run: the data, the model and the optimizer's state.

    Raises:
        ConfigError: the config cannot be run.
    """
    place, folder = enter(config), RunFolder.of(config)
    with run.environment(config), place.together():
        data = run.batches(config, place)
        started: list[str] = []
        anew = not folder.resumes(config)
        model = run.compiled(config, data, place, started.append, anew)
        yield dump(config)
        yield from started
        ours = next(each for each in nested(model.optimizer) if hasattr(each, "table"))
        yield f"{ours.table()}\n"
        steps = data.steps_per_epoch
        yield f"Steps: {steps * config.run.epochs:,} ({config.run.epochs} epochs of {steps:,})."
        weights = f"{model.count_params():,} numbers, {_size(model.weights)}"
        yield f"Memory: weights {weights}; optimizer {_size(model.optimizer.variables)}."


def _size(variables: Sequence[Any]) -> str:
    """Returns the memory of variables, as the sum over whole variables."""
    size = float(sum(np.dtype(v.dtype).itemsize * np.prod(v.shape) for v in variables))
    unit = 0
    while size >= 1000:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {UNITS[unit]}"
