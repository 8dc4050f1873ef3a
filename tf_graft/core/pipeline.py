"""What happens to gradients until they are in the variables, in one order, once."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_graft.core import (
    accumulation,
    averaging,
    clipping,
    judge,
    numerics,
    replicas,
    rows,
    write,
)
from tf_graft.core.algorithm import Algorithm
from tf_graft.core.checks import shown
from tf_graft.core.judge import Update
from tf_graft.core.parameters import Parameter
from tf_graft.core.types import MaskedGradient
from tf_graft.core.write import Part, Whole


class Pipeline(Algorithm):
    """The way of the gradients, in each replica's own context: to be read from top to bottom."""

    def _receive(self, gradients: list[Any], parameters: list[Parameter], summed: bool) -> None:
        """Aggregate, coalesce, judge. Each is unscaled when it is wanted, still in the caches."""
        gradients = in_precision(gradients, parameters)
        gradients = gradients if summed else self.aggregate(gradients, parameters)
        with self._ready(gradients, parameters) as ready:
            scale = self.divisor()
            ready = self.penalized(ready, parameters, scale)
            update = Update(ready, parameters, scale, self.rates())
            update, checks = judge.judged(update, self.nonfinite, self._clips, self._where("apply"))
            with tf.control_dependencies(checks):
                self._accept(update)

    outermost = False  # whether it has hooks of its own here, so that it can be no child

    def aggregate(self, gradients: list[Any], parameters: list[Parameter]) -> list[Any]:
        """The gradients that are acted on, of those that this replica was given: their sum over
        all replicas.
        """
        return replicas.summed(gradients, [p.rows for p in parameters])

    def meet(
        self, gradients: list[Any], parameters: list[Parameter], finite: tf.Tensor | None
    ) -> None:
        """Called after each update, and where one was skipped: on all replicas alike.

        Args:
            gradients: of the update, times the loss scale; each row once.
            parameters: what they are for.
            finite: whether it was made; None when it was not asked.
        """

    _watcher: Callable[[list[Any], list[Parameter]], None] | None = None

    def watch(self, watcher: Callable[[list[Any], list[Parameter]], None]) -> None:
        """Has a function told the gradients of each update, before they are clipped.

        It is called in each replica's context with the gradients (summed over replicas, unscaled,
        each row once, the means of accumulation) and the parameters that they are for; also where
        the update is then skipped. To be called before the first step is traced.
        """
        if not callable(watcher):
            raise TypeError(f"{type(self).__name__}.watch: {shown(watcher)} is no function.")
        self._watcher = watcher

    def loss_scale(self) -> Any:
        """What `scale_loss` multiplies by; None for nothing."""
        return self.loss_scale_factor

    def divisor(self) -> Any:
        """What gradients are divided by; None for nothing."""
        return self.loss_scale()

    def penalized(self, gradients: list[Any], parameters: list[Parameter], scale: Any) -> list[Any]:
        """The gradients, times `scale`, with what the loss they come from left out."""
        return gradients

    def judged(self, gradients: list[Any], scale: Any, finite: tf.Tensor | None) -> None:
        """Told the gradients of each update, times `scale`, and whether they are finite, before."""

    @contextlib.contextmanager
    def _ready(self, gradients: list[Any], parameters: list[Parameter]) -> Iterator[list[Any]]:
        """Gradients with each row once, dense where they are to act so.

        What is done with them waits until every row was found to exist. After it the layers' reads
        of the variables share their memory again.
        """
        ready, checks = self._coalesced(gradients, parameters)
        with tf.control_dependencies(checks):
            yield ready
        for gradient, parameter in zip(gradients, parameters, strict=True):
            if numerics.row_sparse(gradient) and self.mesh is None:
                rows.share(replicas.local(parameter.variable))

    def _coalesced(
        self, gradients: list[Any], parameters: list[Parameter]
    ) -> tuple[list[Any], list[tf.Operation]]:
        """Gradients with each row once, dense where they are to act so; and assertions that every
        row exists.
        """
        both = list(zip(gradients, parameters, strict=True))
        owner = type(self).__name__
        on_mesh = self.mesh is not None
        each = [rows.range_checks(owner, g, p.path, p.rows, on_mesh) for g, p in both]
        checks = list(itertools.chain.from_iterable(each))
        once = [(rows.once(g, p.rows, masked=on_mesh), p) for g, p in both]
        with tf.control_dependencies(checks):
            ready = [rows.densify(g, p.rows) if self._acts_dense(g, p) else g for g, p in once]
        return ready, checks

    def _acts_dense(self, gradient: Any, parameter: Parameter) -> bool:
        if not numerics.row_sparse(gradient):
            return False
        exact_on_rows = self.idle and self.rowwise and not self.decays(parameter.path)
        return self.whole(parameter.path) or (self.sparse == "exact" and not exact_on_rows)

    @property
    def _clips(self) -> tuple[float | None, float | None, float | None]:
        return self.clipvalue, self.clipnorm, self.global_clipnorm

    def _where(self, method: str) -> str:
        return f"{type(self).__name__}.{method}"

    def _skip(self) -> None:
        replicas.local(self.skipped_steps).assign_add(1, read_value=False)

    def _accept(self, update: Update) -> None:
        """Accumulate: an update now, or at the last micro-step."""
        steps = self.gradient_accumulation_steps
        if not steps:
            self._decide(update)
            return
        both = list(zip(update.gradients, update.parameters, strict=True))

        def add() -> None:
            for gradient, parameter in both:
                accumulation.add(numerics.divided(gradient, update.scale), parameter)

        def spoil() -> None:
            replicas.local(self.spoiled_micro_steps).assign_add(1, read_value=False)

        if self.nonfinite == "skip":
            tf.cond(update.finite, add, spoil)
        else:
            add()

        def decide() -> None:
            means = [accumulation.take(g, p, steps) for g, p in both]
            finite = self._unspoiled()
            self._decide(update._replace(gradients=means, scale=None, finite=finite))

        taken = replicas.local(self.micro_steps).assign_add(1)
        tf.cond(taken % steps == 0, decide, lambda: None)

    def _unspoiled(self) -> tf.Tensor | None:
        """Whether no micro-step since the last update was spoiled; forgets those that were."""
        if self.nonfinite != "skip":
            return None
        spoiled = replicas.local(self.spoiled_micro_steps)
        result = tf.equal(spoiled.value(), 0)
        spoiled.assign(0, read_value=False)
        return result

    def _decide(self, update: Update) -> None:
        """An update, unless it cannot be made."""
        gradients, parameters, scale, _, finite = update
        if self._watcher is not None:
            self._watcher([numerics.divided(g, scale) for g in gradients], parameters)
        self.judged(gradients, scale, finite)
        if self.nonfinite == "skip":
            tf.cond(finite, lambda: self._update(update), self._skip)
        else:
            self._update(update)
        self.meet(gradients, parameters, finite)

    def _update(self, update: Update) -> None:
        """Clip, propose, write, average, count."""
        gradients, parameters, scale, rates, _ = update
        count = replicas.local(self.iterations)
        done = self._done()
        parts = self._parts(gradients, parameters)
        if self.use_ema:
            averaging.catch_up(parameters, parts, done, self.ema_momentum)
        if any(clip is not None for clip in self._clips):
            unscaled = [numerics.divided(gradient, scale) for gradient in gradients]
            gradients, scale = clipping.clipped(unscaled, *self._clips), None
        self._write(gradients, parameters, scale, rates)
        if self.use_ema:
            averaging.update(parameters, parts, done + 1, self.ema_momentum)
            self._overwrite_when_due(done + 1)
        count.assign_add(1, read_value=False)

    def _parts(self, gradients: list[Any], parameters: list[Parameter]) -> list[Part]:
        return [
            # an average of a whole variable is as good, and a mask would save nothing
            Whole() if isinstance(g, MaskedGradient) else write.part_of(g, p.rows)
            for g, p in zip(gradients, parameters, strict=True)
        ]

    def _overwrite_when_due(self, step: tf.Tensor) -> None:
        frequency = self.ema_overwrite_frequency
        if frequency:
            everything = list(self._parameters)
            tf.cond(step % frequency == 0, lambda: self._overwrite(everything, step), lambda: None)

    def _overwrite(self, parameters: list[Parameter], step: tf.Tensor) -> None:
        averaging.catch_up(parameters, [Whole()] * len(parameters), step, self.ema_momentum)
        for parameter in parameters:
            average = replicas.local(parameter.state["average"])
            parameter.replace(tf.convert_to_tensor(average))


def in_precision(gradients: list[Any], parameters: list[Parameter]) -> list[Any]:
    """The gradients in the precision of the update, before anything is summed in a lower one."""
    return [numerics.cast(g, p.dtype) for g, p in zip(gradients, parameters, strict=True)]
