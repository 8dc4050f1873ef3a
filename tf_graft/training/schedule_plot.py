"""The learning rate over the run of a config, without training."""

from pathlib import Path

import keras
import numpy as np

from tf_graft.training import data, optimizer, plots
from tf_graft.training.errors import Source
from tf_graft.training.schema import RunConfig

POINTS = 1_000
SHOWN = 8


def draw(config: RunConfig, source: Source, path: Path) -> list[tuple[int, float]]:
    """Draws the rate over the steps of the run.

    Returns:
        A few (step, rate) pairs from the first step to the last.
    """
    batches = data.load(config.data, config.run.steps_per_execution, source)
    total = config.run.epochs * batches.steps_per_epoch
    chosen = optimizer.build(config, batches.steps_per_epoch, source)
    steps = np.unique(np.linspace(0, total - 1, POINTS).astype(int))
    rates = np.array([_rate(chosen, step) for step in steps])
    plots.draw_schedule(rates, steps, f"{source.file}: {total:,} steps", path)
    some = np.linspace(0, len(steps) - 1, min(SHOWN, len(steps))).astype(int)
    return [(int(steps[i]), float(rates[i])) for i in some]


def _rate(chosen: keras.optimizers.Optimizer, step: int) -> float:
    chosen.iterations.assign(step)
    return float(keras.ops.convert_to_numpy(chosen.learning_rate))
