"""Steps into variables: proposed by an algorithm, written where each variable lives."""

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_graft.core.pipeline.update import Update
from tf_graft.core.places import replicas
from tf_graft.core.state import parameters, write
from tf_graft.core.state.algorithm import Algorithm, Delegate
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.point import Point, Step
from tf_graft.core.state.write import Part, Rows, Whole
from tf_graft.core.tensors import memo, numerics
from tf_graft.core.types import Gradient, Rates, Slots

# Variables of so many entries are updated one after the other, so that few steps are in memory.
LARGE = 2**20


class Turns:
    """Large variables in turn: what is made for one is in caches, and gone before the next."""

    def __init__(self) -> None:
        self._before: list[Any] = []
        self.large = False  # whether the present turn is of a large one

    def of(self, parameter: Parameter) -> contextlib.AbstractContextManager[Any]:
        """In its context operations wait for the end of the turn before."""
        self.large = math.prod(parameter.variable.shape) >= LARGE
        return tf.control_dependencies(self._before if self.large else [])

    def ends_with(self, last: Any) -> None:
        """Says what the turn ends with; None eagerly, where one comes after the other anyway."""
        if self.large and last is not None:
            self._before = [last]


class Scalars(NamedTuple):
    """What is the same for all variables of a dtype.

    Args:
        rates: learning rates by role.
        t: number of this update, from 1.
    """

    rates: Rates
    t: tf.Tensor


@dataclass(frozen=True)
class Writer:
    """Writes each variable once: by kernel where there is one, by `step` otherwise.

    Args:
        algorithm: proposes the steps.
        compiles: whether the steps of dense variables are to be compiled by XLA.
        takes_kernels: whether in-place kernels update the variables.
    """

    algorithm: Algorithm
    compiles: bool
    takes_kernels: bool

    def write(self, update: Update, t: tf.Tensor, shared: Mapping[str, keras.Variable]) -> None:
        """Adds the steps of an update to its variables, and applies their constraints.

        Args:
            update: judged and clipped.
            t: its number, from 1.
            shared: the slots that are not of one variable, by role.
        """
        scalars = {
            dtype: Scalars(
                {r: tf.cast(x, dtype) for r, x in update.rates.items()}, tf.cast(t, dtype)
            )
            for dtype in dict.fromkeys(p.dtype for p in update.parameters)
        }
        with memo.for_one_update():
            advanced = self._advanced(shared, update.rates, t)
            self._write_steps(self._write_by_kernels(update, scalars), scalars, advanced)
        for parameter in update.parameters:
            if parameter.variable.constraint is not None:
                parameter.replace(parameter.variable.constraint(parameter.read(Whole())))

    def _advanced(
        self, shared: Mapping[str, keras.Variable], rates: Rates, t: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        present = {role: tf.convert_to_tensor(replicas.local(v)) for role, v in shared.items()}
        new = self.algorithm.advance(present, rates, t)
        for role, value in new.items():
            write.put(shared[role], value)
        return new

    def _write_by_kernels(self, update: Update, scalars: Mapping[tf.DType, Scalars]) -> Update:
        """Updates variables in place; returns what is left of the update."""
        both = list(zip(update.gradients, update.parameters, strict=True))
        found = [self._kernel_of(g, p, scalars[p.dtype].rates) for g, p in both]
        parameters.reconcile([p for p, by in zip(update.parameters, found, strict=True) if by])
        turns = Turns()
        for (gradient, parameter), by in zip(both, found, strict=True):
            if by is not None:
                with turns.of(parameter):
                    gradient = numerics.divided(gradient, update.scale)
                    _write_by_kernel(gradient, parameter, by, scalars[parameter.dtype].t)
                    if turns.large:  # another operation for each small variable would add up
                        turns.ends_with(parameter.moved())
        left = [pair for pair, by in zip(both, found, strict=True) if by is None]
        return update._replace(gradients=[g for g, _ in left], parameters=[p for _, p in left])

    def _kernel_of(self, gradient: Gradient, parameter: Parameter, rates: Rates) -> Delegate | None:
        """Whose kernel updates the variable in place; None where `step` does."""
        if numerics.row_sparse(gradient):
            return None
        found = Delegate(self.algorithm, parameter, rates)
        while (delegate := found.algorithm.delegate(found.parameter, found.rates)) is not None:
            found = delegate
        algorithm = found.algorithm
        if algorithm.kernel is None:
            return None
        decays = algorithm.decays(parameter.path)
        exact = algorithm.exact_kernel and not decays
        serves = self._kernels_serve(parameter.has_master and not exact)
        return found if serves and not (decays and algorithm.kernel_reads) else None

    def _kernels_serve(self, inexact: bool) -> bool:
        """Not where they would not be exact on a master, nor where `step` is to be compiled."""
        return self.takes_kernels and not (self.compiles or inexact)

    def _write_steps(
        self,
        update: Update,
        scalars: Mapping[tf.DType, Scalars],
        shared: Slots,
    ) -> None:
        """Writes what the algorithm proposes: one variable after the other, if they are large."""
        both = list(zip(update.gradients, update.parameters, strict=True))
        parts = [write.part_of(g, p.rows) for g, p in both]
        proposed = self._proposed(
            (
                self._point(numerics.divided(g, update.scale), p, part, scalars[p.dtype], shared)
                for (g, p), part in zip(both, parts, strict=True)
            ),
            compiled=self.compiles and not any(isinstance(part, Rows) for part in parts),
        )
        turns = Turns()
        for parameter, part in zip(update.parameters, parts, strict=True):
            with turns.of(parameter):
                point, (d, slots) = next(proposed)
                turns.ends_with(parameter.move(part, point.w, d))
                for role, value in slots.items():
                    part.write(replicas.local(parameter.slots[role]), value)

    def _point(
        self, gradient: Gradient, parameter: Parameter, part: Part, scalars: Scalars, shared: Slots
    ) -> Point:
        """What the algorithm is shown of a variable, or of its touched rows."""
        slots = {role: replicas.local(slot) for role, slot in parameter.slots.items()}
        in_place = isinstance(part, Whole) and self._kernels_serve(parameter.has_master)
        if not in_place:
            slots = {role: part.read(slot) for role, slot in slots.items()}
        g, w, s = numerics.values(gradient), parameter.read(part), {**slots, **shared}
        rates = dict(scalars.rates)
        return Point(parameter.path, g, w, s, rates, scalars.t, in_place, part.touched)

    def _proposed(self, points: Iterable[Point], compiled: bool) -> Iterator[tuple[Point, Step]]:
        """Each point with the step from there.

        Both are computed when they are asked for, so that what one large variable needs is freed
        before the next; but all at once where XLA compiles the steps.
        """
        points, given = itertools.tee(points)
        if compiled:
            return zip(points, self.algorithm.compiled_proposals(list(given)), strict=True)
        return zip(points, self.algorithm.proposals(given), strict=True)


def _write_by_kernel(gradient: tf.Tensor, parameter: Parameter, by: Delegate, t: tf.Tensor) -> None:
    """Updates a variable, or its master, in place."""
    algorithm, own, rates = by
    lr = rates["learning_rate"]
    if algorithm.decays(parameter.path):
        weights = parameter.read(Whole())
        parameter.move(Whole(), weights, -lr * algorithm.weight_decay * weights)
    slots = {role: replicas.local(slot) for role, slot in own.slots.items()}
    assert algorithm.kernel is not None  # for the type checker
    traits = algorithm.traits(parameter.path)
    algorithm.kernel(gradient, parameter.precise, slots, lr, t, **traits)
    parameter.round()
