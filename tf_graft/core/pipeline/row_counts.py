"""Rows that count their own updates: each row's bias correction and multiplier follow its count.

With a `half_life`, a `RowFrequency` has a count of its own, in which updates of long ago fade.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_graft.core.arguments.row_frequency import RowFrequency
from tf_graft.core.places import replicas
from tf_graft.core.state import write
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.point import Point, multiplied
from tf_graft.core.state.slots import COUNTS, Slot
from tf_graft.core.state.write import Part
from tf_graft.core.tensors import numerics
from tf_graft.core.types import VariableLike

SLOTS = {"row_updates": Slot(shape="rows", dtype="int64", within=COUNTS)}
FREQUENCY_SLOTS = {
    "row_frequency": Slot(shape="rows", dtype="float32", within=COUNTS),
    "row_last_update": Slot(shape="rows", dtype="int64", within=COUNTS),
}


def slots_for(factor: Any) -> dict[str, Slot]:
    """Returns the slots of a variable whose rows count, by role.

    Args:
        factor: the multiplier of the rates; None if its rows do not count.
    """
    if factor is None:
        return {}
    fades = isinstance(factor, RowFrequency) and factor.half_life is not None
    return SLOTS | FREQUENCY_SLOTS if fades else SLOTS


def refuse(optimizer: Any, variables: Mapping[str, VariableLike]) -> None:
    """Refuses `count_rows` where rows do not train as variables of their own.

    Args:
        optimizer: the optimizer.
        variables: the variables by path.

    Raises:
        ValueError: the optimizer has state for several rows together, or a schedule does not take
            the counts of several rows.
    """
    owner = type(optimizer).__name__
    for path, variable in variables.items():
        factor = optimizer.rule.row_multiplier(path)
        if factor is None:
            continue
        where = f"{owner}(count_rows=...)"
        own = optimizer.slots_for(path).values()
        together = optimizer.shared_slots() or not all(slot.has_rows(variable) for slot in own)
        if together or optimizer.whole(path):
            raise ValueError(
                f"{where}: the rows of '{path}' cannot be counted, as {owner} has state or steps "
                "of several rows together."
            )
        if callable(factor) and not isinstance(factor, RowFrequency):
            _refuse_schedule(where, factor)


def _refuse_schedule(where: str, schedule: Any) -> None:
    counts = tf.constant([0, 1, 2], tf.int64)
    try:
        fits = tuple(tf.convert_to_tensor(schedule(counts)).shape) == (3,)
    except (TypeError, ValueError, tf.errors.OpError):
        fits = False
    if not fits:
        raise ValueError(
            f"{where}: {type(schedule).__name__} does not take the counts of several rows, a "
            "tensor of shape [k]; use a schedule that is computed entry by entry."
        )


def counted(
    point: Point, parameter: Parameter, part: Part, factor: Any, update: tf.Tensor
) -> Point:
    """Counts an update of each row, and returns a point with its number, and rates, for each row.

    Args:
        point: the touched weights of a variable whose rows count.
        parameter: the variable.
        part: the touched part.
        factor: the multiplier of the rates, a number, a schedule or a `RowFrequency`.
        update: the number of the optimizer's update, from 1, int64.
    """
    w, updates = point.w, _variable(parameter, "row_updates")
    counts = part.read(updates)
    part.add(updates, tf.ones_like(counts))
    t = numerics.of_rows(tf.cast(counts, w.dtype), w) + 1
    if callable(factor):
        if isinstance(factor, RowFrequency):
            counts = _frequency(parameter, part, factor, counts, update)
        factor = numerics.of_rows(tf.cast(factor(counts), w.dtype), w)
    elif factor == 1:
        return point._replace(t=t)
    return point._replace(t=t, rates=multiplied(point.rates, factor))


def clear(parameter: Parameter, part: Part) -> None:
    """Begins the counts of a part anew."""
    for role in parameter.state.keys() & {*SLOTS, *FREQUENCY_SLOTS}:
        write.clear(_variable(parameter, role), part)


def _frequency(
    parameter: Parameter, part: Part, factor: RowFrequency, counts: tf.Tensor, update: tf.Tensor
) -> tf.Tensor:
    """Returns the counts that a `RowFrequency` sees, with this update; keeps them if they fade.

    Args:
        parameter: the variable.
        part: the touched part.
        factor: the `RowFrequency`.
        counts: the numbers of updates of the rows before this one.
        update: the number of the optimizer's update, int64.
    """
    if factor.half_life is None:
        return tf.cast(counts, tf.float32) + 1
    kept, last = (_variable(parameter, role) for role in FREQUENCY_SLOTS)
    since = tf.cast(update - part.read(last), tf.float32)
    frequency = factor.faded(part.read(kept), since) + 1
    part.write(kept, frequency)
    part.write(last, tf.fill(numerics.shape_of(frequency), update))
    return frequency


def _variable(parameter: Parameter, role: str) -> tf.Variable:
    return replicas.local(parameter.state[role])
