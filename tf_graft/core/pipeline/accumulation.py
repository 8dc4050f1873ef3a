"""Gradient accumulation: the sum over several micro-steps, dense or row by row.

A row-sparse gradient is added to its rows of the accumulator, and the rows are marked. The update
then uses the marked rows only.
"""

import tensorflow as tf

from tf_graft.core.places import replicas
from tf_graft.core.state import write
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.slots import Slot
from tf_graft.core.tensors import numerics, rows
from tf_graft.core.types import Gradient

SLOTS = {
    "gradient_accumulator": Slot(),
    "accumulated_rows": Slot(shape="rows", dtype="bool"),
}


def add(gradient: Gradient, parameter: Parameter) -> None:
    """Adds a coalesced gradient to the accumulator."""
    part = write.part_of(gradient, parameter.rows)
    part.add(replicas.local(parameter.state["gradient_accumulator"]), numerics.values(gradient))
    marks = replicas.local(parameter.state["accumulated_rows"])
    part.write(marks, tf.ones_like(part.read(marks)))


def take(gradient: Gradient, parameter: Parameter) -> Gradient:
    """Returns the sum over the micro-steps, in the form of `gradient`; empties the accumulator."""
    accumulator = replicas.local(parameter.state["gradient_accumulator"])
    marks = replicas.local(parameter.state["accumulated_rows"])
    gradient = rows.marked(gradient, marks)
    part = write.part_of(gradient, parameter.rows)
    total = part.read(accumulator)
    write.clear(accumulator, part)
    part.write(marks, tf.zeros_like(part.read(marks)))
    return numerics.like(gradient, total)
