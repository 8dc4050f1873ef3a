"""The learning rate over the updates of a config's run, without training."""

import functools
from pathlib import Path

import keras
import numpy as np

from tf_graft.core.nesting import nested
from tf_graft.training import data, models, optimizer, plots
from tf_graft.training.errors import Source
from tf_graft.training.schema import RunConfig

POINTS = 1_000
SHOWN = 8


def draw(config: RunConfig, source: Source, path: Path) -> list[tuple[int, float]]:
    """Draws the learning rate over the run by steps, or by updates if steps are accumulated.

    Returns:
        A few (step, rate) pairs from the first step to the last.
    """
    batches = data.load(config.data, config.run.steps_per_execution, source)
    model = functools.partial(models.build, config.model, batches, source)
    chosen = optimizer.build(config, batches.steps_per_epoch, source, model)
    every = getattr(chosen, "gradient_accumulation_steps", None)
    total = max(config.run.epochs * (batches.steps_per_epoch // (every or 1)), 1)
    title = f"{source.file}: {total:,} {'updates' if every else 'steps'}"
    steps = np.unique(np.linspace(0, total - 1, POINTS).astype(int))
    rates = np.array([_rate(chosen, step) for step in steps])
    plots.draw_schedule(rates, steps, title, path)
    some = np.linspace(0, len(steps) - 1, min(SHOWN, len(steps))).astype(int)
    return [(int(steps[i]), float(rates[i])) for i in some]


def _rate(chosen: keras.optimizers.Optimizer, step: int) -> float:
    for each in nested(chosen):  # children count by their wrapper's steps once they are built
        each.iterations.assign(step)
    return float(keras.ops.convert_to_numpy(chosen.learning_rate))
