"""Writes the steps that an algorithm proposes into the variables, where each variable is."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_graft.core.pipeline import row_counts
from tf_graft.core.pipeline.turns import Turns
from tf_graft.core.pipeline.update import Update
from tf_graft.core.places import replicas
from tf_graft.core.state import parameters, write
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.point import Point, Step, multiplied
from tf_graft.core.state.rule import Delegate, Rule
from tf_graft.core.state.write import Part, Rows, Whole
from tf_graft.core.tensors import numerics, shared_functions
from tf_graft.core.types import Gradient, Rates, Slots


class Scalars(NamedTuple):
    """The scalars of a variable's update, in its dtype unless another is named.

    Args:
        rates: the learning rates by role.
        t: the number of this update, from 1.
        update: the same number, int64.
    """

    rates: Rates
    t: tf.Tensor
    update: tf.Tensor


@dataclass(frozen=True)
class Writer:
    """Writes each variable once: by kernel if there is one, by `step` otherwise.

    Args:
        rule: proposes the steps.
        compiles: whether XLA compiles the steps of dense variables.
        takes_kernels: whether in-place kernels update the variables.
        alike: whether all replicas write the same steps.
        judged: whether the gradients are known to be finite.
    """

    rule: Rule
    compiles: bool
    takes_kernels: bool
    alike: bool
    judged: bool

    def write(self, update: Update, t: tf.Tensor, shared: Mapping[str, keras.Variable]) -> None:
        """Adds the steps of an update to its variables, and applies their constraints.

        Args:
            update: the update, judged and clipped.
            t: the update's number, from 1.
            shared: the slots that do not belong to one variable, by role.
        """
        scalars = self._scalars(update, t)
        advanced = self._advanced(shared, update.rates, t)
        left = self._write_by_kernels(update, scalars, advanced)
        self._write_steps(left, scalars, advanced, shared)
        for parameter in update.parameters:
            if parameter.variable.constraint is not None:
                parameter.replace(parameter.variable.constraint(parameter.read(Whole())))

    def _scalars(self, update: Update, t: tf.Tensor) -> dict[str, Scalars]:
        """Returns the scalars for each variable, by path.

        Variables of the same dtype and the same multiplier share their tensors.
        """
        made: dict[tuple[tf.DType, str | None], Scalars] = {}
        keys = {p.path: (p.dtype, self.rule.multiplier_role(p.path)) for p in update.parameters}
        for dtype, role in dict.fromkeys(keys.values()):
            rates = {r: tf.cast(x, dtype) for r, x in update.rates.items()}
            rates = rates if role is None else multiplied(rates, rates[role])
            made[dtype, role] = Scalars(rates, tf.cast(t, dtype), t)
        return {path: made[key] for path, key in keys.items()}

    def _advanced(
        self, shared: Mapping[str, keras.Variable], rates: Rates, t: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        present = {role: tf.convert_to_tensor(replicas.local(v)) for role, v in shared.items()}
        new = self.rule.advance(present, rates, t)
        for role, value in new.items():
            write.put(shared[role], value)
        return {**present, **new}

    def _write_by_kernels(
        self, update: Update, scalars: Mapping[str, Scalars], shared: Slots
    ) -> Update:
        """Updates variables in place; returns the rest of the update."""
        both = list(zip(update.gradients, update.parameters, strict=True))
        found = [self._kernel_of(g, p, scalars[p.path].rates, shared) for g, p in both]
        served = [p for p, by in zip(update.parameters, found, strict=True) if by is not None]
        together = [p.copies() for p in served if not shared_functions.shares(p.variable)]
        parameters.reconcile(together)
        turns = Turns()
        for (gradient, parameter), by in zip(both, found, strict=True):
            if by is not None:
                with turns.of(parameter.variable):
                    gradient = numerics.divided(gradient, update.scale)
                    _write_by_kernel(gradient, parameter, by, scalars[parameter.path].t)
                    turns.ends_after(parameter.precise)
        left = [pair for pair, by in zip(both, found, strict=True) if by is None]
        return update._replace(gradients=[g for g, _ in left], parameters=[p for _, p in left])

    def _kernel_of(
        self, gradient: Gradient, parameter: Parameter, rates: Rates, shared: Slots
    ) -> Delegate | None:
        """Returns the owner of the kernel that updates the variable; None if `step` does."""
        if numerics.row_sparse(gradient) or parameter.needs_step:
            return None
        own = {role: replicas.local(slot) for role, slot in parameter.slots.items()}
        given = dataclasses.replace(parameter, slots={**own, **shared})
        found = Delegate(self.rule, given, rates)
        while (delegate := found.rule.delegate(found.parameter, found.rates)) is not None:
            found = delegate
        kernel = found.rule.kernel_for(parameter.path)
        if kernel is None or (kernel.replaces and not self.judged):
            return None
        exact = kernel.exact and not found.rule.decays(parameter.path)
        return found if self._kernels_serve(parameter.has_master and not exact) else None

    def _kernels_serve(self, inexact: bool) -> bool:
        """Returns False if kernels were inexact on a master, or if `step` is to be compiled."""
        return self.takes_kernels and not (self.compiles or inexact)

    def _write_steps(
        self,
        update: Update,
        scalars: Mapping[str, Scalars],
        advanced: Slots,
        shared: Mapping[str, keras.Variable],
    ) -> None:
        """Writes the steps that the algorithm proposes; large variables one after the other."""
        both = list(zip(update.gradients, update.parameters, strict=True))
        parts = [write.part_of(g, p.rows) for g, p in both]
        proposed = self._proposed(
            (
                self._point(numerics.divided(g, update.scale), p, part, scalars[p.path], advanced)
                for (g, p), part in zip(both, parts, strict=True)
            ),
            compiled=self.compiles and not any(isinstance(part, Rows) for part in parts),
        )
        turns = Turns()
        for parameter, part in zip(update.parameters, parts, strict=True):
            with turns.of(parameter.variable):
                point, (d, slots) = next(proposed)
                turns.ends_with(parameter.move(part, point, d))
                for role, value in slots.items():
                    if role in shared:
                        write.put(shared[role], value)
                        continue
                    parameter.write_slot(role, part, value, point)

    def _point(
        self, gradient: Gradient, parameter: Parameter, part: Part, scalars: Scalars, shared: Slots
    ) -> Point:
        """Returns the data of a variable, or of its touched rows, for the algorithm.

        Rows that count their own updates count this one.
        """
        inexact = parameter.has_master or parameter.needs_step
        in_place = isinstance(part, Whole) and self._kernels_serve(inexact)
        slots: dict[str, Any] = {
            role: replicas.local(slot) if in_place else parameter.read_slot(role, part)
            for role, slot in parameter.slots.items()
        }
        g, w, s = numerics.values(gradient), parameter.read(part), {**slots, **shared}
        rates = dict(scalars.rates)
        t, touched = scalars.t, part.touched
        point = Point(parameter.path, g, w, s, rates, t, in_place, touched, self.alike)
        if not parameter.counts_rows:
            return point
        factor = self.rule.row_multiplier(parameter.path)
        return row_counts.counted(point, parameter, part, factor, scalars.update)

    def _proposed(self, points: Iterable[Point], compiled: bool) -> Iterator[tuple[Point, Step]]:
        """Yields each point with the step from there.

        Both are computed when they are requested, so that the memory of one large variable is freed
        before the next. If XLA compiles the steps, all are computed at once.
        """
        points, given = itertools.tee(points)
        if compiled:
            return zip(points, self.rule.compiled_proposals(list(given)), strict=True)
        return zip(points, self.rule.proposals(given), strict=True)


def _write_by_kernel(gradient: tf.Tensor, parameter: Parameter, by: Delegate, t: tf.Tensor) -> None:
    """Updates a variable, or its master, in place."""
    rule, own, rates = by
    lr = rates["learning_rate"]
    with rule.at(rates):
        if rule.decays(parameter.path):
            weights = parameter.read(Whole())
            parameter.add(Whole(), weights, -rule.decay(weights, lr, t))
        traits = rule.optimizer.traits(parameter.path)

    # what all variables share is no argument: numbers that depend on it alone are computed once
    variables = {r: slot for r, slot in own.slots.items() if isinstance(slot, tf.Variable)}
    shared = {r: slot for r, slot in own.slots.items() if r not in variables}

    def run(g: tf.Tensor, s: Slots, *copies: tf.Variable) -> None:
        if shared_functions.shares(parameter.variable):
            parameters.reconcile([copies])
        with rule.at(rates):
            rule.optimizer.kernel.run(g, copies[0], {**s, **shared}, lr, t, **traits)
        parameters.round_master(copies)

    def kind() -> tuple[Any, ...]:
        return "kernel", lr, t, *shared.values(), *rule.kind(parameter.path, rates)

    shared_functions.call_shared(run, gradient, variables, *parameter.copies(), of=kind)
