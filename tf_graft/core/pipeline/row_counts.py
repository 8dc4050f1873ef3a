"""Rows that count their own updates: each row's bias correction and multiplier follow its count."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_graft.core.places import replicas
from tf_graft.core.state import write
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.point import Point, multiplied
from tf_graft.core.state.slots import COUNTS, Slot
from tf_graft.core.state.write import Part
from tf_graft.core.tensors import numerics
from tf_graft.core.types import VariableLike

SLOTS = {"row_updates": Slot(shape="rows", dtype="int64", within=COUNTS)}


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
        if callable(factor):
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


def of_each(point: Point, parameter: Parameter, part: Part, factor: Any) -> Point:
    """Returns a point with a number of the update, and rates, for each row.

    Args:
        point: the touched weights of a variable whose rows count.
        parameter: the variable.
        part: the touched part.
        factor: the multiplier of the rates, a number or a schedule.
    """
    w, counts = point.w, part.read(_counts_of(parameter))
    t = numerics.of_rows(tf.cast(counts, w.dtype), w) + 1
    if callable(factor):
        factor = numerics.of_rows(tf.cast(factor(counts), w.dtype), w)
    elif factor == 1:
        return point._replace(t=t)
    return point._replace(t=t, rates=multiplied(point.rates, factor))


def add(parameter: Parameter, part: Part) -> None:
    """Counts an update of each row of a part."""
    counts = _counts_of(parameter)
    part.add(counts, tf.ones_like(part.read(counts)))


def clear(parameter: Parameter, part: Part) -> None:
    """Begins the counts of a part anew."""
    write.clear(_counts_of(parameter), part)


def _counts_of(parameter: Parameter) -> tf.Variable:
    return replicas.local(parameter.state["row_updates"])
