"""A range test of the learning rate on a config's model and data."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from tf_graft.core.media import for_figure
from tf_graft.fit.finder import LearningRateCurve, checked, find_learning_rate
from tf_graft.training import data as data_sets
from tf_graft.training import plots, run
from tf_graft.training.place import enter
from tf_graft.training.schema import RunConfig
from tf_graft.training.source import ConfigError


def made(
    config: RunConfig,
    low: float,
    high: float,
    steps: int,
    say: Callable[[str], None] = print,
) -> LearningRateCurve:
    """Runs the test; it writes nothing into the run's folder.

    It computes on one device, whatever the config's strategy or mesh, with the run's batches: the
    losses are the same everywhere. `say` is called with each line for the user; the other
    arguments are those of `find_learning_rate`.

    Raises:
        ConfigError: the config cannot be run, or not tested at these learning rates.
    """
    config.strategy = config.mesh = None
    with run.environment(config):
        data = data_sets.load(config.data, config.run.steps_per_execution)
        model = run.compiled(config, data, enter(config), say)
        try:
            checked(model, low, high)
        except (TypeError, ValueError) as error:
            raise ConfigError(str(error)) from None
        batches = data.stream(config.run.seed, 0)
        return find_learning_rate(model, batches, low=low, high=high, steps=steps)


def draw(curve: LearningRateCurve, config: RunConfig, path: Path) -> None:
    """Draws the test of a config."""
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    curve.plot(figure.subplots())
    figure.suptitle(for_figure(f"{config.source.file}: {config.optimizer.name}"))
    plots.save(figure, path)
