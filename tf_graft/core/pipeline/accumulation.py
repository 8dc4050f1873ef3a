"""Gradient accumulation: the sum over several micro-steps, dense or row by row.

A row-sparse gradient is added to its rows of the accumulator, and the rows are marked. The update
then uses the marked rows only.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import keras_contract
from tf_graft.core.places import replicas
from tf_graft.core.state import write
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.slots import NOT_NEGATIVE, Slot
from tf_graft.core.state.write import Masked, Part, Whole
from tf_graft.core.tensors import numerics, rows
from tf_graft.core.types import Gradient, OptionalGradient

SLOTS = {
    "gradient_accumulator": Slot(),
    "accumulated_rows": Slot(shape="rows", dtype="bool"),
}
TIMES = {"accumulated_times": Slot(shape="rows", dtype="float32", within=NOT_NEGATIVE)}


def add(gradient: Gradient, parameter: Parameter, times: tf.Tensor | None = None) -> None:
    """Adds a coalesced gradient to the accumulator, and how often its rows occurred.

    Args:
        gradient: the gradient.
        parameter: its variable.
        times: how often each row occurred; None if that is not kept.
    """
    part = write.part_of(gradient, parameter.rows)
    total = _times_of(parameter)
    if total is not None:
        part.add(total, times)
    part.add(replicas.local(parameter.state["gradient_accumulator"]), numerics.values(gradient))
    _mark(_marks_of(parameter), part, True)


def with_left(
    gradients: Sequence[Gradient],
    parameters: Sequence[Parameter],
    every: Sequence[Parameter],
    sum_of: Callable[[Parameter], Gradient],
    run: Callable[[Sequence[Gradient], Sequence[Parameter]], None],
    either: Callable[[tf.Tensor, Callable[[], None], Callable[[], None]], None],
) -> None:
    """Calls `run` with gradients and parameters, and with what earlier micro-steps left of others.

    Of those others, what no micro-step had a gradient for stays as it is.

    Args:
        gradients: the gradients of the last micro-step.
        parameters: the variables of the gradients.
        every: all variables that can have a gradient.
        sum_of: returns what the micro-steps left of a variable; see `left_of`.
        run: called with gradients and their variables.
        either: runs one of two functions, on all replicas the same.
    """
    given = {p.path for p in parameters}
    left = [p for p in every if p.path not in given]
    if not left:
        run(gradients, parameters)
        return

    def run_with_left() -> None:
        run([*gradients, *map(sum_of, left)], [*parameters, *left])

    marks = [tf.reduce_any(_marks_of(p)) for p in left]
    either(~tf.reduce_any(marks), lambda: run(gradients, parameters), run_with_left)


def left_of(parameter: Parameter, optional: bool) -> Gradient:
    """Returns the sum over the micro-steps, of the rows that they marked.

    Args:
        parameter: the variable with its accumulator.
        optional: whether it has to be an `OptionalGradient`, as for an update that acts on all rows
            if there is a gradient.
    """
    total = tf.convert_to_tensor(replicas.local(parameter.state["gradient_accumulator"]))
    marks = tf.convert_to_tensor(_marks_of(parameter))
    kept = (parameter.variable, *parameter.slots.values())
    by_row = all(write.has_rows(variable, parameter.rows) for variable in kept)
    if optional or keras_contract.in_xla() or parameter.layout is not None or not by_row:
        return OptionalGradient(total, marks)
    return rows.of_marked(total, marks)


def with_marked(
    gradients: Sequence[Gradient],
    parameters: Sequence[Parameter],
    times: int,
    run: Callable[[list[Gradient]], None],
    either: Callable[[tf.Tensor, Callable[[], None], Callable[[], None]], None],
) -> None:
    """Calls `run` with the gradients, their rows being those to `take` from the accumulators.

    XLA has room for a fixed number of rows. If more are marked, as after larger micro-steps, all
    rows of the variables are updated under a mask.

    Args:
        gradients: the gradients of the last micro-step.
        parameters: the variables of the gradients.
        times: the number of micro-steps.
        run: called with the gradients.
        either: runs one of two functions, on all replicas the same.
    """
    marks = [_marks_of(p) for p in parameters]
    both = list(zip(gradients, marks, strict=True))
    found, complete = zip(*(rows.marked(g, m, times) for g, m in both), strict=True)
    checks = [each for each in complete if each is not None]
    if not checks:
        run(list(found))
        return
    either(
        tf.reduce_all(checks),
        lambda: run(list(found)),
        lambda: run([rows.masked(g, m) for g, m in both]),
    )


def take(gradient: Gradient, parameter: Parameter) -> Gradient:
    """Returns the sum over the micro-steps, in the form of `gradient`; empties the accumulator."""
    accumulator = replicas.local(parameter.state["gradient_accumulator"])
    part = write.part_of(gradient, parameter.rows)
    if isinstance(part, Masked):
        part = Whole()  # the other rows are zero, and so are their marks
    total = part.read(accumulator)
    clear(parameter, part)
    return numerics.like(gradient, total)


def times(gradient: Gradient, parameter: Parameter) -> tf.Tensor | None:
    """Returns how often the rows of `gradient` occurred in the micro-steps; None if not kept."""
    total = _times_of(parameter)
    return None if total is None else write.part_of(gradient, parameter.rows).read(total)


def clear(parameter: Parameter, part: Part) -> None:
    """Empties a part of the accumulator."""
    total = _times_of(parameter)
    if total is not None:
        write.clear(total, part)
    write.clear(replicas.local(parameter.state["gradient_accumulator"]), part)
    _mark(_marks_of(parameter), part, False)


def _times_of(parameter: Parameter) -> tf.Variable | None:
    total = parameter.state.get("accumulated_times")
    return None if total is None else replicas.local(total)


def _marks_of(parameter: Parameter) -> tf.Variable:
    return replicas.local(parameter.state["accumulated_rows"])


def _mark(marks: tf.Variable, part: Part, mark: bool) -> None:
    if isinstance(part, Whole) and not isinstance(marks, dtensor.DVariable):
        part.write(marks, numerics.filled(tuple(marks.shape), mark))
    else:
        like = tf.ones_like if mark else tf.zeros_like
        part.write(marks, like(part.read(marks)))
