"""A round on a worker of parameter servers: read the center, make local steps, push their mean."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_graft.agn.cells import Cell, CellState, parameter_of
from tf_graft.agn.center import divisor
from tf_graft.agn.resident import Resident
from tf_graft.core.nesting import nested
from tf_graft.core.optimizer import Optimizer, apply_coalesced
from tf_graft.core.pipeline import accumulation, matching
from tf_graft.core.pipeline.engine import Engine
from tf_graft.core.pipeline.exchange import Exchange
from tf_graft.core.pipeline.update import Update
from tf_graft.core.state import write
from tf_graft.core.state.optimizer_state import nothing
from tf_graft.core.state.parameters import Parameters
from tf_graft.core.state.point import under, within
from tf_graft.core.state.slots import Slot, first, shared_dtype
from tf_graft.core.tensors import numerics, rows
from tf_graft.core.types import Structure, VariableLike

# Counters of a worker: of the steps for bias corrections, and of micro-steps.
COUNTERS = ("worker_steps", "micro_steps", "spoiled_micro_steps")
SUMS = {"gradient_sum": Slot(), "touched_rows": Slot(shape="rows", dtype="bool")}


class Round(Exchange):
    """The local steps of a round, which the engine makes on cells.

    Args:
        optimizer: proposes the steps, and adds to the slots `SUMS`.
        slots: returns the further slots of the variable of a path; they stay on the worker.
        name: the first part of the names of the variables that stay there.
        others: variables that the model changes itself.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        slots: Callable[[str], Mapping[str, Slot]],
        name: str,
        others: Sequence[VariableLike],
    ):
        self._optimizer, self._others = optimizer, others
        starts = self._starts(slots)
        self._residents = {key: Resident(f"{name}/{key}", x) for key, x in starts.items()}
        self._row_sparse: dict[str, bool] = {}  # by path, of the variables with a gradient
        self._began = tf.convert_to_tensor(optimizer.iterations)  # other workers add to it, too
        self._state = self._begin()
        self._seen, self._loss, *self._held = self._state.others

    def _starts(self, slots: Callable[[str], Mapping[str, Slot]]) -> dict[str, tf.Tensor]:
        """Returns the first values of the variables that stay on the worker between rounds."""
        optimizer = self._optimizer
        starts = dict.fromkeys(COUNTERS, tf.constant(0, tf.int64))
        dtype = shared_dtype([p.dtype for p in optimizer.state.parameters])
        for role, slot in optimizer.shared_slots().items():
            starts[f"shared/{role}"] = first(slot, None, dtype)
        engine = accumulation.SLOTS if optimizer.gradient_accumulation_steps else {}
        for p in optimizer.state.parameters:
            for role, slot in {**under("slots", slots(p.path)), **engine}.items():
                starts[f"{p.path}/{role}"] = first(slot, p.variable, p.dtype)
        return starts

    def _begin(self) -> CellState:
        kept = {key: resident.read() for key, resident in self._residents.items()}
        parameters = {}
        for p in self._optimizer.state.parameters:
            sums = {role: first(slot, p.variable, p.dtype) for role, slot in SUMS.items()}
            here = {"weights": p.variable} | {r: v for r, v in p.state.items() if r == "master"}
            values = {role: tf.convert_to_tensor(variable) for role, variable in here.items()}
            values |= under("slots", sums) | within(p.path, kept)
            parameters[p.path] = parameter_of(p, values)
        counters = {role: kept[role] for role in COUNTERS} | {
            "iteration": self._began,
            "skipped_steps": tf.constant(0, tf.int64),
        }
        others = [tf.constant(0, tf.int64), tf.constant(0.0), *self._others]
        return CellState(
            Parameters(parameters),
            {role: Cell(x) for role, x in within("shared", kept).items()},
            {role: Cell(x) for role, x in counters.items()},
            done="worker_steps",
            others=[Cell(tf.convert_to_tensor(x)) for x in others],
            counts=[inner.iterations for inner in nested(self._optimizer)],
        )

    def run(
        self, engine: Callable[[CellState, Exchange], Engine], loss: Any, batches: Structure
    ) -> tf.Tensor:
        """Makes the local steps and returns the mean loss of the batches that counted.

        Args:
            engine: returns the engine for a state and an exchange.
            loss: takes one batch as its arguments and returns a scalar.
            batches: tensors with the batches along their first dimension.
        """
        on_cells = engine(self._state, self)

        def local_step(number: tf.Tensor, tensors: list[tf.Tensor]) -> tuple[Any, Any]:
            self._state.hold(tensors)
            self._step(on_cells, loss, tf.nest.map_structure(lambda x: x[number], batches))
            return number + 1, self._state.tensors()

        length = tf.shape(tf.nest.flatten(batches)[0])[0]
        start = (tf.constant(0), self._state.tensors())
        _, tensors = tf.while_loop(lambda i, _: i < length, local_step, start)
        self._state.hold(tensors)
        return self._loss.tensor / tf.cast(self._seen.tensor, self._loss.dtype)

    def _step(self, engine: Engine, loss: Callable[..., tf.Tensor], batch: Structure) -> None:
        """Computes a batch's loss at the local copy, and gives its gradients to the engine."""
        optimizer, cells = self._optimizer, list(self._state.parameters)
        local = [p.variable.tensor for p in cells]
        stand_in = [(p.variable, x) for p, x in zip(optimizer.state.parameters, local, strict=True)]
        stand_in += [(v, cell.tensor) for v, cell in zip(self._others, self._held, strict=True)]
        with tf.GradientTape() as tape:
            tape.watch(local)
            with keras.StatelessScope(state_mapping=stand_in) as scope:
                self._batch_loss = loss(*batch)
            scaled = optimizer.scale_loss(self._batch_loss)
        self._changed = [tf.convert_to_tensor(scope.get_current_value(v)) for v in self._others]
        gradients = tape.gradient(scaled, local)
        both = matching.pairs(f"{engine.owner}.round", gradients, cells)
        engine.receive(*both, summed=True, method="round")

    def received(self, update: Update) -> None:
        """Keeps a batch's loss and its changes of other variables if its gradients are used."""
        of_batch = zip(update.gradients, update.parameters, strict=True)
        self._row_sparse |= {p.path: numerics.row_sparse(g) for g, p in of_batch}

        def accept() -> None:
            write.add(self._seen, 1)
            write.add(self._loss, self._batch_loss)
            for cell, value in zip(self._held, self._changed, strict=True):
                write.put(cell, value)

        self._state.either(update.finite, accept, nothing)

    def meet(self, update: Update) -> None:
        """Counts the steps of this worker."""
        write.add(self._state.counters["worker_steps"], update.increment())

    @property
    def skipped(self) -> tf.Tensor:
        """The number of skipped steps of the round."""
        return self._state.count("skipped_steps")

    @property
    def taken(self) -> tf.Tensor:
        """The number of steps that the round made."""
        return self._state.count("iteration") - self._began

    def remember(self, forgets: bool) -> None:
        """Stores on the worker the state that its next round starts from.

        Args:
            forgets: whether to keep only the micro-steps since the last step.
        """
        values: dict[str, Any] = {role: self._state.count(role) for role in COUNTERS}
        values |= under("shared", self._state.shared)
        for p in self._state.parameters:
            values |= under(p.path, {**under("slots", p.slots), **p.state})
        pending = {*COUNTERS[1:], *accumulation.SLOTS}
        for key, resident in self._residents.items():
            if key.rpartition("/")[2] in pending or not forgets:
                resident.write(tf.convert_to_tensor(values[key]))

    def push(self, center: Optimizer, mode: str) -> tf.Tensor:
        """Applies what `mode` pushes to the center; of row-sparse gradients, their rows."""
        taken = self.taken
        real = {p.path: p.variable for p in self._optimizer.state.parameters}
        pushed = [p for p in self._state.parameters if p.path in self._row_sparse]

        def to_center() -> None:
            means, count = [], divisor(mode, taken)
            for p in pushed:
                mean = numerics.divided(p.slots["gradient_sum"].tensor, count)
                touched = p.slots["touched_rows"].tensor
                means.append(rows.of_marked(mean, touched) if self._row_sparse[p.path] else mean)
            apply_coalesced(center, means, [real[p.path] for p in pushed])

        tf.cond(taken > 0, to_center, lambda: None)
        for variable, cell in zip(self._others, self._held, strict=True):
            write.put(variable, cell.tensor)
        return tf.constant(0)
