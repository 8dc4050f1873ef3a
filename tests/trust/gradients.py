"""Gradients that cannot be applied: whatever comes, no weight and no slot is poisoned.

A cell is an optimizer, an option and an execution. Each attack puts one gradient that cannot be
applied, dense or in some rows, between good ones: nothing but counters and the loss scale may
change, and the next good step must give the numbers it gives without the attack.
"""

import functools
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

import tf_graft as tg
from support import model_cells, model_rows, samples
from trust import Result

BAD = {
    "NaN": np.nan,
    "inf": np.inf,
    "-inf": -np.inf,
    "1e19": 1e19,
    "-1e25": -1e25,
    "2e38 twice": 2e38,  # a sum of equal rows overflows
    "3e38": 3e38,
}
OPTIONS = ("plain", "accumulation", "loss_scale", "bfloat16")
EXECUTIONS = ("eager", "function", "xla")
PLACES = ("dense/kernel", model_cells.TABLE)
IDS = [1, 1, 4]  # the rows that the gradient of the table has
GIVEN = model_cells.SHAPES | {model_cells.TABLE: (3, 4)}
# What a step that is not made changes all the same: counters, and the scale of the loss.
COUNTERS = ("skipped_steps", "micro_steps")
SCALE = "loss_scale/"


def optimizers() -> dict[str, Callable[..., tg.Optimizer]]:
    """All that are in the matrix, and all of Keras' own that are not, in `wrap`."""

    def wrapped(stock: Callable[..., object], **options: object) -> tg.Optimizer:
        return tg.wrap(stock(samples.RATE, **options))

    made = {name: row.make for name, row in model_rows.ROWS.items()}
    stock = {
        f"wrapped_{name}": functools.partial(wrapped, optimizer)
        for name, optimizer in samples.BUILT_IN.items()
    }
    return stock | made


def cells(every: int) -> list[tuple[str, str, str]]:
    """Optimizer, option and execution: all, or one in so many in rotation."""
    places = list(itertools.product(OPTIONS, EXECUTIONS))
    return [
        (name, *place)
        for i, name in enumerate(optimizers())
        for j, place in enumerate(places)
        if (i * len(places) + i + j) % every == 0 and not _refused(name, place[0])
    ]


def _refused(name: str, option: str) -> bool:
    """What has a loss scale of its own takes no other."""
    return option == "loss_scale" and "mixed" in name


class Model:
    """A few variables, of which a table has row-sparse gradients, and what updates them.

    Args:
        name: of the optimizer.
        option: one of the options of the matrix, or the precision of the variables.
        execution: eager, function or xla.
    """

    def __init__(self, name: str, option: str, execution: str):
        options = samples.OPTIONS.get(option, {})
        self.optimizer = optimizers()[name](**options)
        self.dtype = option if option not in samples.OPTIONS else "float32"
        self.variables = [
            tf.Variable(value, name=path, dtype=self.dtype)
            for path, value in model_cells.weights().items()
        ]
        self.optimizer.build(self.variables)
        self.micro_steps = options.get("gradient_accumulation_steps", 1)
        self._apply = self._apply_here
        if execution != "eager":
            self._apply = tf.function(self._apply_here, jit_compile=execution == "xla")

    def _apply_here(self, gradients: dict[str, tf.Tensor]) -> None:
        """One micro-step with the gradients of the loss before it is scaled."""
        scale = tf.cast(self.optimizer.scale_loss(tf.constant(1.0)), self.dtype)
        scaled = {path: gradient * scale for path, gradient in gradients.items()}
        table = model_cells.TABLE
        scaled[table] = samples.slices(IDS, scaled[table], model_cells.SHAPES[table][0])
        self.optimizer.apply(list(scaled.values()), self.variables)

    def update(self, number: int, attack: tuple[str, float] | None = None, at: int = 0) -> None:
        """An update's micro-steps, of which one may be attacked."""
        for micro_step in range(self.micro_steps):
            gradients = samples.gradients(1, GIVEN, seed=number)[0]
            if attack is not None and micro_step == at:
                where, value = attack
                gradients[where][:2] = value  # of the table, the same row twice
            self._apply({path: tf.cast(g, self.dtype) for path, g in gradients.items()})

    def state(self) -> dict[str, np.ndarray]:
        """Every number of model and optimizer."""
        return samples.state_of(self.optimizer, *self.variables)

    def restore(self, values: list[np.ndarray]) -> None:
        """Sets all variables to what `values` returned."""
        for variable, value in zip(self._all(), values, strict=True):
            variable.assign(value)

    def values(self) -> list[np.ndarray]:
        """The values of all variables."""
        return [variable.numpy() for variable in self._all()]

    def _all(self) -> list:
        return [*self.variables, *self.optimizer.variables]


def attacks(every: int) -> Iterator[Result]:
    """The area's attacks."""
    for cell in cells(every):
        model = Model(*cell)
        model.update(1)
        start, before = model.values(), model.state()
        model.update(2)
        expected = model.state()
        for number, (where, (name, value)) in enumerate(itertools.product(PLACES, BAD.items())):
            model.restore(start)
            model.update(3, (where, value), at=number % model.micro_steps)
            wrong = _changed(model.state(), before) or _not_counted(model, before)
            model.update(2)
            wrong = wrong or _changed(model.state(), expected)
            yield Result(f"{', '.join(cell)}, {name} in {where}", wrong)


def _changed(state: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> str | None:
    for name, value in expected.items():
        if name.endswith(COUNTERS) or name.startswith(SCALE):
            continue
        if state[name].tobytes() != value.tobytes():
            poisoned = "" if np.isfinite(state[name]).all() else ", and is not finite"
            return f"{name} differs{poisoned}"
    return None


def _not_counted(model: Model, before: dict[str, np.ndarray]) -> str | None:
    skipped = model.optimizer.skipped_steps.numpy() - before["skipped_steps"]
    return None if skipped == 1 else f"skipped_steps rose by {skipped}"
