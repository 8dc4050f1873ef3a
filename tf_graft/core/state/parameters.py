"""The model variables that an optimizer was built for, each with its state."""

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core.places import mesh_tensors, replicas
from tf_graft.core.state import slots
from tf_graft.core.state.point import Point
from tf_graft.core.state.write import Masked, Part, Rows, Whole
from tf_graft.core.tensors import numerics, rounding
from tf_graft.core.types import Gradient, Key, VariableLike

G = TypeVar("G", bound=Gradient)
T = TypeVar("T")


class once(functools.cached_property[T]):
    """A property that is computed once. Without `__set__`, Sphinx would take it for a method."""

    def __set__(self, instance: object, value: object) -> None:
        raise AttributeError(f"{self.attrname} cannot be set")


def error_of(role: str) -> str:
    """Returns the role, in `state`, of the error term of a slot: see `state_dtype`."""
    return f"{role}_error"


@dataclass(frozen=True, eq=False)
class Parameter:
    """One model variable.

    Attributes:
        variable: the variable as the caller gave it (`keras.Variable` or `tf.Variable`).
        path: the variable's path, such as `dense/kernel`, unique within the optimizer.
        slots: the algorithm's state, by role.
        state: the engine's state, by role (`master`, `average`, `gradient_accumulator` ...).
    """

    variable: Any
    path: str
    slots: dict[str, keras.Variable]
    state: dict[str, keras.Variable]

    def read_slot(self, role: str, part: Part) -> tf.Tensor:
        """Returns the touched part of a slot, in the precision of the update."""
        value = part.read(replicas.local(self.slots[role]))
        if value.dtype != tf.bfloat16:
            return value
        error = self.state.get(error_of(role))
        if error is None:
            return tf.cast(value, tf.float32)
        return rounding.joined(value, part.read(replicas.local(error)))

    def write_slot(self, role: str, part: Part, value: tf.Tensor, point: Point) -> None:
        """Replaces the touched part of a slot, rounded as `state_dtype` says.

        Args:
            role: the slot's role.
            part: the touched part.
            value: its new value.
            point: the weights, the slots and the number of the update before the step.
        """
        slot = replicas.local(self.slots[role])
        if slot.dtype != tf.bfloat16:
            part.write(slot, value)
            return
        error = self.state.get(error_of(role))
        name = role.rpartition("/")[2]  # the same inside of wrappers
        kept = 16 if error is None else 24
        value = rounding.rounded(value, point.s[role], point.w, point.t, name, kept)
        if error is None:
            part.write(slot, tf.cast(value, tf.bfloat16))
            return
        value, missing = rounding.split(value)
        part.write(slot, value)
        part.write(replicas.local(error), missing)

    @once
    def rows(self) -> int:
        """The length of the variable's first dimension; 0 for a scalar."""
        return self.variable.shape[0] if len(self.variable.shape) else 0

    @once
    def layout(self) -> dtensor.Layout | None:
        """The variable's layout, if it is on a mesh."""
        return slots.layout_of(self.variable)

    @once
    def slot_layout(self) -> dtensor.Layout | None:
        """The layout of the variable's slots, if it is on a mesh."""
        return slots.slot_layout_of(self.variable)

    def part_of(self, indices: tf.Tensor) -> Part:
        """Returns the part of the variable that consists of some rows, each given once."""
        layout = self.layout
        if layout is None:
            return Rows(indices, self.rows)
        mask = np.isin(np.arange(self.rows), indices)
        return Masked(
            dtensor.copy_to_mesh(mask, dtensor.Layout.replicated(layout.mesh, 1)), self.rows
        )

    def spread(self, indices: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """Returns values of rows as `part_of(indices)` writes them, in the precision of the update.

        On a mesh they are in a tensor as large as the variable.
        """
        values, layout = tf.cast(values, self.dtype), self.layout
        if layout is None:
            return values
        whole = tf.math.unsorted_segment_sum(values, indices, self.rows)
        return mesh_tensors.to_mesh(whole, layout)

    @once
    def dtype(self) -> tf.DType:
        """The precision in which the update is computed."""
        return numerics.compute_dtype(tf.as_dtype(self.variable.dtype))

    def read(self, part: Part) -> tf.Tensor:
        """Returns the touched weights, in the precision of the update.

        The variable's value decides. In half precision the master, if there is one, adds the lower
        bits, as long as the two agree (they do not after weights were loaded).
        """
        *masters, weights = (part.read(variable) for variable in self.copies())
        return precise(*masters, self.aligned(weights))

    def gathered(self, gradient: Gradient) -> Gradient:
        """Returns a row-sparse gradient on a mesh with all of its rows on each device.

        Its dense sum is then computed where it is needed. Without this, every device would sum its
        own rows, and the sums, as large as the variable, would be sent.
        """
        layout = self.layout
        if layout is None or not isinstance(gradient, tf.IndexedSlices):
            return gradient
        specs = [dtensor.UNSHARDED, *layout.sharding_specs[1:]]
        return tf.IndexedSlices(
            dtensor.relayout(gradient.values, dtensor.Layout(specs, layout.mesh)),
            dtensor.relayout(gradient.indices, dtensor.Layout.replicated(layout.mesh, 1)),
        )

    def aligned(self, gradient: G) -> G:
        """Lays a gradient or weights out as the slots: each device of a mesh has its share."""
        if self.layout == self.slot_layout:
            return gradient
        whole = dtensor.relayout(numerics.values(gradient), self.layout)  # the model's own
        return numerics.like(gradient, dtensor.relayout(whole, self.slot_layout))

    @once
    def has_master(self) -> bool:
        """Whether a variable of the engine keeps the bits below half precision."""
        return "master" in self.state

    @once
    def rounds(self) -> bool:
        """Whether each step is rounded to bfloat16 at random, as there is no master."""
        return not self.has_master and tf.as_dtype(self.variable.dtype) == tf.bfloat16

    @once
    def counts_rows(self) -> bool:
        """Whether each row counts its own updates."""
        return "row_updates" in self.state

    @once
    def needs_step(self) -> bool:
        """Whether only the algorithm's `step` can update the variable, and no kernel."""
        return self.counts_rows or self.rounds

    @property
    def precise(self) -> tf.Variable:
        """The variable of the calling replica that takes the steps, which may be the master."""
        return replicas.local(self.state.get("master", self.variable))

    def copies(self) -> list[tf.Variable]:
        """Returns the variables of the calling replica that hold the weights."""
        return [self.precise, *([replicas.local(self.variable)] if self.has_master else [])]

    def move(self, part: Part, point: Point, step: tf.Tensor) -> Any:
        """Adds a step to the touched weights, rounded to bfloat16 at random if there is no master.

        Many weights are the same number in bfloat16; their gradients give them different noise.

        Args:
            part: the touched part.
            point: the weights, the gradient and the number of the update before the step.
            step: the step.

        Returns:
            The operation for a whole variable; None eagerly.
        """
        if not self.rounds:
            return self.add(part, point.w, step)
        variable = replicas.local(self.variable)
        moved = rounding.rounded(point.w + step, point.g, point.w, point.t, "weights")
        return part.write(variable, tf.saturate_cast(moved, variable.dtype))

    def add(self, part: Part, weights: tf.Tensor, delta: tf.Tensor) -> Any:
        """Adds to the touched weights, whose current value is `weights`.

        Returns:
            The operation for a whole variable; None eagerly.
        """
        variable = replicas.local(self.variable)
        if not self.has_master:
            return part.move(variable, weights, delta)
        moved = weights + delta
        part.write(replicas.local(self.state["master"]), moved)
        return part.write(variable, tf.saturate_cast(moved, variable.dtype))

    def replace(self, weights: tf.Tensor, part: Part | None = None) -> None:
        """Replaces the whole variable, or a part of it."""
        part = part or Whole()
        variable = replicas.local(self.variable)
        if weights.dtype == variable.dtype:
            part.write(variable, weights)
        else:
            part.write(variable, tf.saturate_cast(weights, variable.dtype))
        if self.has_master:
            part.write(replicas.local(self.state["master"]), weights)


class Parameters:
    """The parameters in the order in which they were built, found by the variable's key."""

    def __init__(self, by_key: Mapping[Any, Parameter]):
        self._by_key = by_key

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: Key) -> Parameter | None:
        """Returns the parameter of the variable with that key, if there is one."""
        return self._by_key.get(key)

    def __contains__(self, key: Key) -> bool:
        return key in self._by_key

    def extended(self, others: Mapping[Key, Parameter], order: Sequence[Key]) -> "Parameters":
        """Returns these parameters and others; in the given order if it has all of them."""
        every = {**self._by_key, **others}
        return Parameters({key: every[key] for key in order} if len(order) == len(every) else every)

    def paths_with(self, owner: str, new: Sequence[VariableLike]) -> dict[str, VariableLike]:
        """Returns new variables by path.

        Raises:
            ValueError: a new variable has the name of one of the parameters.
        """
        by_path = dict(zip(paths(new), new, strict=True))
        for parameter in self:
            if parameter.path in by_path:
                raise ValueError(
                    f"{owner}: '{parameter.path}' is the name of a variable that the optimizer was "
                    "built for and of a new one; give the new layer another name, or make a new "
                    "optimizer."
                )
        return by_path


def paths(variables: Sequence[VariableLike]) -> list[str]:
    """Returns a distinct path for each variable: a number distinguishes equal names, in order."""
    given = [getattr(v, "path", None) or re.sub(r":\d+$", "", v.name) for v in variables]
    distinct = set(given)
    free = {path: _numbered(path, distinct) for path in distinct}
    return [next(free[path]) for path in given]


def _numbered(path: str, given: Set[str]) -> Iterator[str]:
    """Yields the path, then the path with each number that no given path has."""
    yield path
    numbered = (f"{path}_{count}" for count in itertools.count(1))
    yield from (name for name in numbered if name not in given)


def precise(*copies: tf.Tensor) -> tf.Tensor:
    """Returns weights in the precision of the update, of the values of `Parameter.copies`."""
    *masters, weights = copies
    if not masters:
        return tf.cast(weights, numerics.compute_dtype(weights.dtype))
    agree = tf.equal(tf.saturate_cast(masters[0], weights.dtype), weights)
    return tf.where(agree, masters[0], tf.cast(weights, masters[0].dtype))


def reconcile(each: Sequence[Sequence[tf.Variable]]) -> None:
    """Assigns masters the values of variables that were assigned from outside, if any was.

    Args:
        each: the `copies` of each parameter.
    """
    with_masters = [copies for copies in each if len(copies) > 1]
    if with_masters:
        agree = tf.reduce_all([_agree(*copies) for copies in with_masters])

        def reconcile_all() -> None:
            for master, weights in with_masters:
                Whole().write(master, precise(*map(tf.convert_to_tensor, (master, weights))))

        tf.cond(agree, lambda: None, reconcile_all)


def _agree(master: tf.Variable, weights: tf.Variable) -> tf.Tensor:
    """Returns whether weights are their master rounded; then `precise` returns the master.

    Here an infinity agrees with a master that is out of range, which saves a pass.
    """
    return tf.reduce_all(tf.equal(tf.cast(master, weights.dtype), weights))


def round_master(copies: Sequence[tf.Variable]) -> None:
    """Assigns the rounded master, if there is one, to the variable; both are a parameter's."""
    if len(copies) > 1:
        master, weights = copies
        Whole().write(weights, tf.saturate_cast(master, weights.dtype))
