"""Weight decay of rows that no gradient touches, at the cost of the touched rows.

    w_t = (1 - lr_t d_t) w_{t-1}

is an update of a row without a gradient. The logarithms of the factors add up in `decay_sum`, and
each row remembers in `row_decay` the sum that is in its weights. The difference is caught up when a
gradient touches the row next, before the step, and for all rows when the weights are to be read.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_graft.core.pipeline.update import Update
from tf_graft.core.places import replicas
from tf_graft.core.state import write
from tf_graft.core.state.algorithm import decays_itself
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.rule import Rule
from tf_graft.core.state.slots import AVERAGED_WEIGHTS, Slot
from tf_graft.core.state.write import Part, Whole
from tf_graft.core.tensors import numerics
from tf_graft.core.types import VariableLike

CHOICE = "lazy_decay"  # of the argument `sparse`
WITHIN = (-math.inf, 0.0)
SLOTS = {
    "decay_sum": Slot(shape="scalar", dtype="float64", within=WITHIN),
    "row_decay": Slot(shape="rows", dtype="float64", within=WITHIN),
}
LEAST = 1e-300  # a factor below it has the logarithm of this one


def refuse(optimizer: Any, variables: Mapping[str, VariableLike]) -> None:
    """Refuses `sparse="lazy_decay"` where the decay of a row is not a factor of its weights.

    Args:
        optimizer: the optimizer.
        variables: the variables by path.

    Raises:
        ValueError: an optimizer applies weight decay in its own way, or inside another one;
            there are averages, or other copies, of the weights; or there is no master of bfloat16.
    """
    if optimizer.sparse != CHOICE:
        return
    for path, variable in variables.items():
        if (obstacle := _obstacle(optimizer, path, variable)) is not None:
            raise ValueError(
                f"{type(optimizer).__name__}(sparse={CHOICE!r}): the rows of '{path}' cannot catch "
                f'up their weight decay, because {obstacle}; use sparse="lazy" or "exact".'
            )


def _obstacle(optimizer: Any, path: str, variable: VariableLike) -> str | None:
    """Returns why the decay of rows of a variable is no factor of all that is kept of them."""
    if optimizer.use_ema:
        return "averages (use_ema) take rows without a gradient for constant"
    if tf.as_dtype(variable.dtype) == tf.bfloat16 and not optimizer.master_weights:
        return "bfloat16 without a master (master_weights=False) loses the decay of a few updates"
    slots = optimizer.slots_for(path)
    if AVERAGED_WEIGHTS in slots or any(callable(slot.fill) for slot in slots.values()):
        return "the state holds other weights"
    for rule in optimizer.rule.tree(path):
        decays = rule.decays(path)
        if rule.steps_decay(path) or (decays and decays_itself(rule.optimizer)):
            return f"{rule.called} decays weights in a way of its own"
        if decays and rule is not optimizer.rule.decaying(path):
            return f"{rule.called} decays weights inside another optimizer"
    return None


def catch_up(update: Update) -> None:
    """Applies the decay of idle updates to the weights that an update touches."""
    for gradient, parameter in zip(update.gradients, update.parameters, strict=True):
        catch_up_part(parameter, write.part_of(gradient, parameter.rows))


def catch_up_part(parameter: Parameter, part: Part) -> None:
    """Applies the decay of idle updates to a part of a variable."""
    if "row_decay" not in parameter.state:
        return
    total, seen = _sums_of(parameter)
    if isinstance(part, Whole):  # idle only after row-sparse steps
        behind = tf.reduce_max(seen) > total
        write.either(behind, functools.partial(_decay, parameter, part))
    else:
        _decay(parameter, part)


def add(update: Update, rule: Rule, t: tf.Tensor) -> None:
    """Adds the decay of update `t`, which the touched rows have had."""
    for gradient, parameter in zip(update.gradients, update.parameters, strict=True):
        if "row_decay" in parameter.state and rule.decaying(parameter.path).decays(parameter.path):
            total, _ = _sums_of(parameter)
            own = {role: tf.cast(x, parameter.dtype) for role, x in update.rates.items()}
            share = rule.idle_share(parameter.path, own, tf.cast(t, parameter.dtype))
            factor = tf.maximum(1 - tf.cast(share, tf.float64), LEAST)
            write.add(total, tf.math.log(factor))
            settle(parameter, write.part_of(gradient, parameter.rows))


def settle(parameter: Parameter, part: Part) -> None:
    """Notes that the weights of a part have all decay so far."""
    total, seen = _sums_of(parameter)
    before = part.read(seen)
    part.write(seen, tf.zeros_like(before) + total)


def _decay(parameter: Parameter, part: Part) -> None:
    total, seen = _sums_of(parameter)
    weights = parameter.read(part)
    factor = tf.cast(tf.exp(total - part.read(seen)), weights.dtype)
    parameter.replace(weights * numerics.of_rows(factor, weights), part)
    settle(parameter, part)


def _sums_of(parameter: Parameter) -> tuple[tf.Variable, tf.Variable]:
    """Returns the sum of all decay so far, and each row's."""
    return tuple(replicas.local(parameter.state[role]) for role in SLOTS)
