"""Gradients of a loss, as an optimizer that may scale it takes them."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tf_graft.core import checks, keras_contract, matching
from tf_graft.core.types import Gradient, VariableLike


def gradients(
    owner: str,
    scale_loss: Callable[[tf.Tensor], tf.Tensor],
    loss: Any,
    var_list: Any,
    tape: tf.GradientTape | None,
) -> list[tuple[Gradient | None, VariableLike]]:
    """Pairs of gradient and variable: see `Optimizer.compute_gradients`.

    Args:
        owner: class and method, for messages.
        scale_loss: the optimizer's.
        loss: a function without arguments, or a tensor.
        var_list: variables, or a function that returns them.
        tape: records, or has recorded, the loss.
    """
    if isinstance(var_list, tf.Variable | keras.Variable):
        raise TypeError(f"{owner}: var_list is a single variable; put it in a list.")
    known = [] if callable(var_list) else matching.variables(owner, var_list)
    if callable(loss):
        tape = tf.GradientTape() if tape is None else tape
        with tape:
            tape.watch([keras_contract.storage(variable) for variable in known])
            loss = matching.as_loss(owner, loss())
    elif tape is None:
        what = "a tensor" if tf.is_tensor(loss) else checks.shown(loss)
        raise ValueError(
            f"{owner}: the loss is {what}; give the tape that recorded it, or a function that "
            "computes the loss."
        )
    variables = matching.variables(owner, var_list()) if callable(var_list) else known
    scale = tf.cast(scale_loss(tf.ones_like(loss)), loss.dtype)
    found = tape.gradient(loss, variables, output_gradients=scale)
    return list(zip(found, variables, strict=True))
