"""Averages of the weights, at the cost of the touched rows.

    a_t = m a_{t-1} + (1 - m) w_t,    m = 0 at the first step

A row that no gradient touches has constant weights, so its average after k idle steps is
`w + m^k (a - w)`, with the product of the factors if `m` changes. Each row remembers the last step
of its average. The idle steps are added when the row is touched next, and for all rows before the
averages are read. The average of weights that were never averaged is the weights themselves.
"""

from collections.abc import Sequence

import tensorflow as tf

from tf_graft.core.arguments.averages import Averages
from tf_graft.core.pipeline.turns import Turns
from tf_graft.core.places import replicas
from tf_graft.core.state import write
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.slots import COUNTS, Slot
from tf_graft.core.state.write import Part, Rows, Whole
from tf_graft.core.tensors import numerics, shared_functions
from tf_graft.core.tensors.memo import memoized

SLOTS = {
    "average": Slot(),
    "average_step": Slot(shape="rows", dtype="int64", within=COUNTS),
}


def catch_up(
    parameters: Sequence[Parameter],
    parts: Sequence[Part],
    step: tf.Tensor,
    averages: Averages,
    since: tf.Tensor,
) -> None:
    """Adds the idle steps: the touched averages become those of step number `step`.

    Args:
        parameters: the variables.
        parts: the touched part of each.
        step: the number of an update.
        averages: how much of an average is kept.
        since: whole variables are idle if the last step of an entry's average is before this one.
    """
    whole, some = [], []
    for parameter, part in zip(parameters, parts, strict=True):
        if isinstance(part, Rows):
            some.append((parameter, part))
        else:
            whole.append(parameter)

    def catch_up_rows() -> None:
        for parameter, part in some:
            _catch_up(*_averages_of(parameter), parameter.read(part), part, step, averages)

    if some:
        read = [(v, part) for parameter, part in some for v in parameter.copies()]
        write.before(read, catch_up_rows, always=step >= 0)
    if whole:  # these are idle only after row-sparse steps, or steps without a gradient
        oldest = [numerics.least(replicas.local(p.state["average_step"])) for p in whole]

        def catch_up_one(weights: tf.Tensor, average: tf.Variable, stamp: tf.Variable) -> None:
            _catch_up(average, stamp, weights, Whole(), step, averages)

        def catch_up_all() -> None:
            for parameter in whole:
                weights = parameter.read(Whole())
                shared_functions.call_shared(catch_up_one, weights, *_averages_of(parameter))

        write.either(tf.reduce_min(tf.stack(oldest)) < since, catch_up_all)


def update(
    parameters: Sequence[Parameter],
    parts: Sequence[Part],
    step: tf.Tensor,
    averages: Averages,
    in_place: bool,
) -> None:
    """Averages the weights just written at step number `step` into the touched averages.

    Args:
        parameters: the variables.
        parts: the touched part of each.
        step: the number of the update.
        averages: how much of an average is kept.
        in_place: whether in-place kernels can update the averages; the result is bit-identical.
    """
    turns = Turns()
    for parameter, part in zip(parameters, parts, strict=True):
        average, stamp = _averages_of(parameter)
        with turns.of(parameter.variable):
            weights = parameter.read(part)
            kept, rest = _shares(averages, step, weights.dtype)
            if in_place and isinstance(part, Whole):
                part.write(average, kept * part.read(average))
                turns.ends_with(write.add_product(average, rest, weights))
                part.write(stamp, numerics.filled(tuple(stamp.shape), step))
            else:
                turns.ends_with(part.write(average, kept * part.read(average) + rest * weights))
                _stamp(stamp, part, step)


def restart(parameter: Parameter, part: Part, step: tf.Tensor) -> None:
    """Begins a part of an average anew with the present weights, as of an update."""
    average, stamp = _averages_of(parameter)
    part.write(average, parameter.read(part))
    _stamp(stamp, part, step)


@memoized
def _shares(averages: Averages, step: tf.Tensor, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the shares of the previous average and of the weights in the new one."""
    kept = averages.kept_at(step, dtype) * tf.cast(step > 1, dtype)
    return kept, 1 - kept


def _averages_of(parameter: Parameter) -> tuple[tf.Variable, tf.Variable]:
    """Returns the average of a variable, and the steps of its entries' last averages."""
    return tuple(replicas.local(parameter.state[role]) for role in SLOTS)


def _catch_up(
    average: tf.Variable,
    average_step: tf.Variable,
    weights: tf.Tensor,
    part: Part,
    step: tf.Tensor,
    averages: Averages,
) -> None:
    stamp = part.read(average_step)
    last = tf.reshape(stamp, [-1] + [1] * (weights.shape.rank - 1)) if weights.shape.rank else stamp
    stale = part.read(average)
    fresh = weights + averages.kept(last, step, weights.dtype) * (stale - weights)
    never = last == 0
    fresh = tf.where(never, weights, fresh)
    part.write(average, tf.where((step > last) | never, fresh, stale))
    _stamp(average_step, part, step)


def _stamp(stamp: tf.Variable, part: Part, step: tf.Tensor) -> None:
    before = part.read(stamp)
    # No step is negative. XLA does not know this: it writes after it has read, without a copy.
    part.write(stamp, tf.where(before < 0, before, step))
