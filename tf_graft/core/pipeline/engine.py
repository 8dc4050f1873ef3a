"""The pipeline from gradients to variables; read it from top to bottom."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tf_graft.core import keras_contract
from tf_graft.core.arguments.options import Options
from tf_graft.core.pipeline import (
    accumulation,
    averaging,
    clipping,
    judge,
    row_clipping,
    row_counts,
    row_decay,
    skips,
)
from tf_graft.core.pipeline.exchange import Exchange
from tf_graft.core.pipeline.scale import Scaling
from tf_graft.core.pipeline.skips import Skips
from tf_graft.core.pipeline.update import Update
from tf_graft.core.pipeline.writer import Writer
from tf_graft.core.places import replicas
from tf_graft.core.state import slots, write
from tf_graft.core.state.optimizer_state import OptimizerState, nothing
from tf_graft.core.state.parameters import Parameter, error_of
from tf_graft.core.state.rule import Rule
from tf_graft.core.state.write import Part, Whole
from tf_graft.core.tensors import memo, numerics, rows, shared_functions
from tf_graft.core.types import Gradient, MaskedGradient

Watcher = Callable[[list[Gradient], list[Parameter]], None]


@dataclass(eq=False)
class Engine:
    """The pipeline, in each replica's own context; an optimizer has one.

    Args:
        owner: the class name that messages show.
        rule: proposes the steps.
        present: returns the common arguments; they are read once an update.
        state: the variables.
        scaling: scales the loss, and knows the scale of its gradients.
        exchange: communicates between replicas.
        watchers: callbacks that receive each update's gradients, by name.
        skips: finds that many updates in a row were skipped.
    """

    owner: str
    rule: Rule
    present: Callable[[], Options]
    state: OptimizerState
    scaling: Scaling = field(default_factory=Scaling)
    exchange: Exchange = field(default_factory=Exchange)
    watchers: dict[str, Watcher] = field(default_factory=dict)
    skips: Skips = field(default_factory=Skips)

    def __post_init__(self) -> None:
        self.options = self.present()

    def watch(self, watcher: Watcher, name: str = "watcher") -> None:
        """Registers a callback that receives each update's gradients, before they are clipped.

        The callback is called in each replica's context with the gradients (summed over replicas,
        unscaled, each row once, the means of accumulation) and their parameters, even if the update
        is then skipped. It replaces an earlier callback of the same name. Register it before the
        first step is traced.
        """
        self.watchers = {**self.watchers, name: watcher}

    @tf.autograph.experimental.do_not_convert
    @memo.for_one_update()
    def receive(
        self, gradients: list[Any], parameters: list[Parameter], summed: bool, method: str = "apply"
    ) -> None:
        """Aggregates, coalesces and judges gradients; the rest of the pipeline follows.

        Each gradient is divided by the loss scale only where it is read next, while it is in the
        processor's caches; this saves a separate pass.

        Args:
            gradients: the gradients given to this replica, times the loss scale.
            parameters: the variables of the gradients.
            summed: whether the gradients are already summed over the replicas.
            method: the method that was called, for messages.
        """
        self.options, where = self.present(), f"{self.owner}.{method}"
        self.exchange.begin()
        gradients = in_precision(gradients, parameters)
        gradients = gradients if summed else self.exchange.aggregate(gradients, parameters)
        sharing = shared_functions.among(parameters if self.state.mesh is None else [])
        with sharing, self._coalesced(gradients, parameters) as (ready, given):
            scale = self.scaling.divisor()
            ready = self.scaling.penalized(ready, parameters, scale)
            times = row_clipping.occurrences(self.options.clip_rows, given, ready, parameters)
            rates = self.state.rates(self.rule)
            update = Update(ready, parameters, scale, rates, times=times)
            update, checks = judge.judged(update, self.options, where)
            with tf.control_dependencies(checks):
                self.exchange.received(update)
                self._accumulate(update)

    @contextlib.contextmanager
    def _coalesced(
        self, gradients: list[Any], parameters: list[Parameter]
    ) -> Iterator[tuple[list[Gradient], list[Gradient]]]:
        """Returns gradients with each row once, dense if they must act so, laid out as the slots.

        Also returns them as they came. Later operations run only after every row index is checked.
        """
        both = [(p.gathered(g), p) for g, p in zip(gradients, parameters, strict=True)]
        on_mesh, sparse = self.state.mesh is not None, self.options.sparse
        each = [rows.range_checks(self.owner, g, p.path, p.rows, on_mesh) for g, p in both]
        once = [(rows.coalesced(g, p.rows, on_mesh, p.layout), p) for g, p in both]
        with tf.control_dependencies(list(itertools.chain.from_iterable(each))):
            ready = [
                p.aligned(
                    rows.acting_dense(g, p.rows)
                    if numerics.row_sparse(g) and self.rule.acts_dense(p.path, sparse)
                    else g
                )
                for g, p in once
            ]
            yield ready, [g for g, _ in both]
        for gradient, parameter in both:
            if numerics.row_sparse(gradient):
                self.state.release(parameter)

    def _accumulate(self, update: Update) -> None:
        """Accumulates gradients, and makes an update of the sums at the last micro-step.

        Without accumulation every call makes an update. The sums are divided by the number of
        micro-steps later, where they are read.
        """
        steps = self.options.gradient_accumulation_steps
        if not steps:
            self._decide(update)
            return
        both = list(zip(update.gradients, update.parameters, strict=True))

        def add() -> None:
            for (gradient, parameter), times in zip(both, update.times, strict=True):
                accumulation.add(numerics.divided(gradient, update.scale), parameter, times)

        self.state.either(update.finite, add, lambda: self._count("spoiled_micro_steps"))
        self._count("micro_steps")
        last = tf.equal(self.state.count("micro_steps") % steps, 0)
        self.state.periodically(last, lambda: self._conclude(update, steps), nothing)

    def _conclude(self, update: Update, steps: int) -> None:
        """Makes an update of the sums, also of variables without a gradient in this micro-step."""

        def conclude(gradients: Sequence[Gradient], parameters: Sequence[Parameter]) -> None:
            def decide(marked: list[Gradient]) -> None:
                both = list(zip(marked, parameters, strict=True))
                times = [accumulation.times(g, p) for g, p in both]
                sums = [accumulation.take(g, p) for g, p in both]
                finite = None if update.finite is None else self._unspoiled()
                self._decide(Update(sums, [*parameters], steps, update.rates, finite, times=times))

            accumulation.with_marked(gradients, parameters, steps, decide, self._either)

        accumulation.with_left(
            update.gradients,
            update.parameters,
            [p for p in self.state.parameters if not self.rule.freezes(p.path)],
            self._left_of,
            conclude,
            self._either,
        )

    def _left_of(self, parameter: Parameter) -> Gradient:
        """Returns the sum over the micro-steps of a variable without a gradient in the last one."""
        dense = self.rule.acts_dense(parameter.path, self.options.sparse)
        left = accumulation.left_of(parameter, optional=dense)
        return rows.acting_dense(left, parameter.rows) if dense else left

    def _either(
        self, condition: tf.Tensor, then: Callable[[], None], other: Callable[[], None]
    ) -> None:
        """Runs the same one of two functions on all replicas."""
        self.state.periodically(self.exchange.agreed(condition), then, other)

    def _unspoiled(self) -> tf.Tensor:
        """Returns whether every micro-step since the last update was added; resets the count."""
        result = tf.equal(self.state.count("spoiled_micro_steps"), 0)
        write.put(self.state.counters["spoiled_micro_steps"], tf.constant(0, tf.int64))
        return result

    def _decide(self, update: Update) -> None:
        """Applies or skips an update, and informs the watcher, the loss scale and the exchange."""
        for watcher in self.watchers.values():
            watcher(update.unscaled(), update.parameters)
        self.scaling.judged(update)
        self.state.either(update.finite, lambda: self._apply(update), lambda: self._skip(update))
        self.exchange.meet(update)

    def _skip(self, update: Update) -> None:
        """Counts a skipped update; eagerly, warns if there were many in a row."""
        self._count("skipped_steps")
        if tf.executing_eagerly() and self.skips.found(self.state.counters, skipping=True):
            skips.warn(self.owner, judge.obstacle(update, self.options))

    def _apply(self, update: Update) -> None:
        """Clips, proposes, writes, averages and counts an update."""
        options, parameters, done = self.options, update.parameters, self.state.updates()
        both = list(zip(update.gradients, parameters, strict=True))
        parts = [_averaged_part(g, p) for g, p in both]
        if options.use_ema:
            averaging.catch_up(parameters, parts, done, options.averages, since=done)
        if options.sparse == row_decay.CHOICE:
            row_decay.catch_up(update)
        if options.clip_rows:
            update = row_clipping.clipped(update, options.clip_rows)
        if any(clip is not None for clip in options.clips):
            update = clipping.clipped(update, *options.clips)
        self._write(update, self.exchange.alike, judged=not judge.applies(options.nonfinite))
        if options.sparse == row_decay.CHOICE:
            row_decay.add(update, self.rule, done + 1)
        if options.use_ema:
            in_place = self.state.takes_kernels
            averaging.update(parameters, parts, done + 1, options.averages, in_place)
            self._overwrite_when_due(done + 1)
        self._count("iteration")

    def _write(self, update: Update, alike: bool, judged: bool) -> None:
        compiles = self.options.jit_compile is True and self.state.compiles
        takes_kernels = self.state.takes_kernels and self.options.state_dtype is None
        writer = Writer(self.rule, compiles, takes_kernels, alike, judged)
        writer.write(update, self.state.updates() + 1, self.state.shared)

    def _count(self, role: str) -> None:
        write.add(self.state.counters[role], keras_contract.opaque(1))

    @memo.for_one_update()
    def update_alone(
        self, gradients: list[Any], parameters: list[Parameter], rate: tf.Tensor
    ) -> None:
        """Writes steps at a given learning rate, without any other stage of the pipeline."""
        self.options = self.present()
        rates = {**self.state.rates(self.rule), "learning_rate": rate}
        gradients = in_precision(gradients, parameters)
        with self._coalesced(gradients, parameters) as (ready, _):
            self._write(Update(ready, parameters, None, rates), alike=False, judged=False)

    def reset_rows(
        self, parameters: list[Parameter], indices: tf.Tensor, weights: tf.Tensor | None = None
    ) -> None:
        """Gives rows of a variable the state that they had at the start.

        Args:
            parameters: the variable, in a list.
            indices: the rows, each once, an int64 tensor of shape [k].
            weights: the weights that they get, of shape [k, ...]; None keeps those that they have.
        """
        (parameter,), self.options = parameters, self.present()
        variable, part = parameter.variable, parameter.part_of(indices)
        if weights is not None:
            parameter.replace(parameter.spread(indices, weights), part)
        for role, slot in self.rule.optimizer.slots_for(parameter.path).items():
            if slot.has_rows(variable):
                slots.refill(parameter.slots[role], slot, variable, part)
                error = parameter.state.get(error_of(role))
                if error is not None:
                    write.clear(replicas.local(error), part)
        if parameter.counts_rows:
            row_counts.clear(parameter, part)
        if "row_decay" in parameter.state:
            row_decay.settle(parameter, part)
        if self.options.gradient_accumulation_steps:
            accumulation.clear(parameter, part)
        if self.options.use_ema:
            averaging.restart(parameter, part, self.state.updates())
        self.state.release(parameter)

    def catch_up_decay(self, parameters: list[Parameter]) -> None:
        """Applies the decay of idle updates to all rows of variables."""
        for parameter in parameters:
            row_decay.catch_up_part(parameter, Whole())

    def _overwrite_when_due(self, step: tf.Tensor) -> None:
        frequency = self.options.ema_overwrite_frequency
        if frequency:
            everything = list(self.state.parameters)
            due = tf.equal(step % frequency, 0)
            self.state.either(due, lambda: self.overwrite(everything, step), nothing)

    def overwrite(self, parameters: list[Parameter], step: tf.Tensor | None = None) -> None:
        """Assigns variables their averages as of an update; None for the last one."""
        self.synchronize(parameters, step)
        for parameter in parameters:
            average = replicas.local(parameter.state["average"])
            parameter.replace(tf.convert_to_tensor(average))

    def synchronize(self, parameters: list[Parameter], step: tf.Tensor | None = None) -> None:
        """Brings the averages of variables up to an update; None for the last one."""
        self.options = self.present()
        step = self.state.updates() if step is None else step
        whole: list[Part] = [Whole()] * len(parameters)
        # before the first update there are no idle steps, but no average either
        since = tf.maximum(step, 1)
        averaging.catch_up(parameters, whole, step, self.options.averages, since)


def in_precision(gradients: list[Any], parameters: list[Parameter]) -> list[Any]:
    """Returns gradients in the precision of the update, so that no sum has a lower one."""
    return [numerics.cast(g, p.dtype) for g, p in zip(gradients, parameters, strict=True)]


def _averaged_part(gradient: Gradient, parameter: Parameter) -> Part:
    """Returns the part to average; the whole for a masked gradient, as a mask saves nothing."""
    if isinstance(gradient, MaskedGradient):
        return Whole()
    return write.part_of(gradient, parameter.rows)
