"""AGN's exchange between replicas: the mean of a period's gradients, once a period."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import keras
import tensorflow as tf

from tf_graft.agn.center import center_of, divisor
from tf_graft.core.optimizer import Optimizer, apply_coalesced
from tf_graft.core.pipeline import accumulation
from tf_graft.core.pipeline.exchange import Exchange
from tf_graft.core.pipeline.update import Update
from tf_graft.core.places import collectives, replicas
from tf_graft.core.state import write
from tf_graft.core.state.optimizer_state import OptimizerState
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.slots import refill
from tf_graft.core.state.write import Whole
from tf_graft.core.tensors import numerics, rows
from tf_graft.core.types import Gradient


class Pushing(Protocol):
    """The interface that the exchange requires of the optimizer.

    Attributes:
        leads: whether the optimizer gives the center its first values.
        optimizer: makes the local steps.
        center_optimizer: updates the center.
        state: the variables.
        local_step: counts the local steps, for the period.
        accumulated_steps: counts the gradients in the slot `gradient_sum`.
        communication_period: local steps between two pushes.
        mode: what is pushed.
        reset_local_state: whether the state of `optimizer` starts anew after each push.
    """

    leads: bool
    optimizer: Optimizer
    center_optimizer: Optimizer
    state: OptimizerState
    local_step: keras.Variable
    accumulated_steps: keras.Variable
    communication_period: int
    mode: str
    reset_local_state: bool

    def start_center(self) -> None:
        """Gives the center its first values."""


class PeriodicPush(Exchange):
    """Local steps on each replica, with a push to the center and a pull from it once a period.

    Args:
        agn: the optimizer with its variables, center, counters and period.
    """

    alike = False

    def __init__(self, agn: Pushing):
        self._agn = agn

    def begin(self) -> None:
        if self._agn.leads:
            self._agn.start_center()

    def aggregate(
        self, gradients: Sequence[Gradient], parameters: Sequence[Parameter]
    ) -> list[Gradient]:
        """Returns this replica's estimate of the whole gradient."""
        count = replicas.count()
        if count == 1:
            return list(gradients)
        return [numerics.like(g, numerics.values(g) * count) for g in gradients]

    def meet(self, update: Update) -> None:
        taken = update.increment()
        # Replicas must communicate at the same step: with several, a skipped step counts, too.
        counted = taken if replicas.count() == 1 else tf.constant(1, tf.int64)
        step = _read(self._agn.local_step) + counted
        write.put(self._agn.local_step, step)
        write.put(self._agn.accumulated_steps, _read(self._agn.accumulated_steps) + taken)
        due = (step % self._agn.communication_period == 0) & (counted > 0)
        write.either(due, lambda: self._communicate(update))

    def agreed(self, condition: tf.Tensor) -> tf.Tensor:
        """Returns whether a condition on a replica's own gradients holds on all replicas."""
        votes = [tf.cast(condition, tf.float32)]
        (total,) = collectives.summed(votes, [0], self._agn.local_step)
        return numerics.values(total) >= replicas.count()

    def _communicate(self, update: Update) -> None:
        """Pushes the mean of the accumulated gradients, and pulls the center."""
        period = self._agn.communication_period
        every = {p.path: p for p in self._agn.state.parameters}

        def push(gradients: Sequence[Gradient], sums: Sequence[Parameter]) -> None:
            parameters = [every[each.path] for each in sums]
            exchange = functools.partial(self._exchange, parameters)
            accumulation.with_marked(gradients, sums, period, exchange, self._either)

        accumulation.with_left(
            update.gradients,
            [_sums(p) for p in update.parameters],
            [_sums(p) for p in every.values()],
            self._left_of,
            push,
            self._either,
        )

    def _left_of(self, parameter: Parameter) -> Gradient:
        """Returns the sum of a variable without a gradient in the last local step."""
        local, center = self._agn.optimizer, self._agn.center_optimizer
        dense = local.rule.acts_dense(parameter.path, "lazy") or center.rule.acts_dense(
            parameter.path, center.sparse
        )
        return accumulation.left_of(parameter, optional=dense)

    def _either(
        self, condition: tf.Tensor, then: Callable[[], None], other: Callable[[], None]
    ) -> None:
        write.either(self.agreed(condition), then, other)

    def _exchange(self, parameters: Sequence[Parameter], marked: Sequence[Gradient]) -> None:
        steps = tf.cast(_read(self._agn.accumulated_steps), tf.float32)
        count = divisor(self._agn.mode, steps) * replicas.count()
        count = tf.where(steps > 0, count, math.nan)  # the center's optimizer refuses the NaN
        both = zip(marked, parameters, strict=True)
        means = [numerics.divided(accumulation.take(g, _sums(p)), count) for g, p in both]
        means = collectives.summed(means, [p.rows for p in parameters], self._agn.local_step)
        means = [
            rows.coalesced(m, p.rows, masked=False) for m, p in zip(means, parameters, strict=True)
        ]
        apply_coalesced(self._agn.center_optimizer, means, [center_of(p) for p in parameters])
        for mean, p in zip(means, parameters, strict=True):
            part = write.part_of(mean, p.rows)
            p.replace(part.read(replicas.local(center_of(p))), part)
            if self._agn.reset_local_state:
                for role, slot in self._agn.optimizer.slots_for(p.path).items():
                    refill(p.slots[f"optimizer/{role}"], slot, p.variable, part)
        if self._agn.reset_local_state:
            for role, slot in self._agn.optimizer.shared_slots().items():
                refill(self._agn.state.shared[f"optimizer/{role}"], slot, None, Whole())
        write.put(self._agn.accumulated_steps, tf.constant(0, tf.int64))


def _read(scalar: keras.Variable) -> tf.Tensor:
    return tf.convert_to_tensor(replicas.local(scalar))


def _sums(parameter: Parameter) -> Parameter:
    """Returns a parameter whose accumulator is the sum of a period."""
    state = {
        "gradient_accumulator": parameter.slots["gradient_sum"],
        "accumulated_rows": parameter.slots["touched_rows"],
    }
    return dataclasses.replace(parameter, state=state)
