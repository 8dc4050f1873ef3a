"""The learning rates over the updates of a config's run, without training."""

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from tf_graft.core.nesting import nested
from tf_graft.grafting.layerwise_rates import LayerwiseRates
from tf_graft.matrices.matrix_optimizer import MatrixOptimizer
from tf_graft.training import configured_optimizer as optimizer
from tf_graft.training import data, models, plots
from tf_graft.training.schema import RunConfig
from tf_graft.wrappers.multi_optimizer import MultiOptimizer

POINTS = 1_000
POINTS_OF_VARIABLES = 100  # each takes a learning rate of each variable
SHOWN = 8
COLUMNS = 4


class Drawn(NamedTuple):
    """What was drawn.

    Attributes:
        names: of the learning rates: one, or one for each group of variables.
        rates: a few steps from the first to the last, with the learning rates at each.
        table: what the optimizer does to each variable; empty if the learning rate is the same for
            all.
    """

    names: list[str]
    rates: list[tuple[int, list[float]]]
    table: str


def draw(config: RunConfig, path: Path) -> Drawn:
    """Draws the learning rates over the run by steps, or by updates if steps are accumulated.

    It is one for all variables, or one for each group of variables that differ: the matrices and
    the others of `Muon`, the groups of `MultiOptimizer`, layers with a multiplier.
    """
    plots.prepare(path)
    batches = data.load(config.data, config.run.steps_per_execution)
    model = functools.cache(functools.partial(models.build, config.model, batches))
    chosen = optimizer.build(config, batches.steps_per_epoch, model)
    every = getattr(chosen, "gradient_accumulation_steps", None)
    total, _ = optimizer.updates(config, batches.steps_per_epoch)
    title = f"{config.source.file}: {total:,} {'updates' if every else 'steps'}"
    if by_variable := _differs(chosen):
        chosen.build(model())
    points = POINTS_OF_VARIABLES if by_variable else POINTS
    steps = np.unique(np.linspace(0, total - 1, points).astype(int))
    curves = _of_variables(chosen, steps) if by_variable else _of_all(chosen, steps)
    plots.draw_schedule(curves, steps, title, path)
    shown = _narrow(curves)
    some = np.linspace(0, len(steps) - 1, min(SHOWN, len(steps))).astype(int)
    rates = [(int(steps[i]), [float(curve[i]) for curve in shown.values()]) for i in some]
    return Drawn([*shown], rates, chosen.table() if by_variable else "")


def _differs(chosen: keras.optimizers.Optimizer) -> bool:
    """Returns whether variables may have learning rates that differ."""
    grouping = (MatrixOptimizer, MultiOptimizer, LayerwiseRates)
    return any(
        isinstance(each, grouping) or getattr(each, "learning_rate_multipliers", None)
        for each in nested(chosen)
    ) and hasattr(chosen, "table")


def _of_all(chosen: keras.optimizers.Optimizer, steps: Iterable[int]) -> dict[str, np.ndarray]:
    rates = [keras.ops.convert_to_numpy(chosen.learning_rate) for _ in _stepped(chosen, steps)]
    return {"learning rate": np.array(rates, float)}


def _of_variables(chosen: Any, steps: Iterable[int]) -> dict[str, np.ndarray]:
    """Returns a curve for each group of variables whose learning rates are the same."""
    paths = [parameter.path for parameter in chosen.state.parameters]
    rates = [
        [float(chosen.rule.rate_of(path, given)) for path in paths]
        for given in (chosen.rule.rates() for _ in _stepped(chosen, steps))
    ]
    next(_stepped(chosen, [0]))  # where the table is
    groups = defaultdict(list)
    for path, curve in zip(paths, zip(*rates, strict=True), strict=True):
        groups[curve].append(path)
    return {_name(members): np.array(curve) for curve, members in groups.items()}


def _name(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


def _stepped(chosen: keras.optimizers.Optimizer, steps: Iterable[int]) -> Iterator[None]:
    """Sets the counts of an optimizer, and of those within it, to one step after the other."""
    for step in steps:
        for each in nested(chosen):  # children count by their wrapper's steps once they are built
            each.iterations.assign(step)
        yield


def _narrow(curves: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Returns curves for the columns of a table: all, or the lowest and highest rates."""
    if len(curves) <= COLUMNS:
        return curves
    rates = [*curves.values()]
    return {"lowest": np.min(rates, axis=0), "highest": np.max(rates, axis=0)}
