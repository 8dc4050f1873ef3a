"""`minimize` and `compute_gradients`: the gradients of a loss that the optimizer may scale."""

from collections.abc import Iterable
from typing import Any, Protocol

import keras
import tensorflow as tf

from tf_graft.core import checks, keras_contract, matching
from tf_graft.core.types import Gradient, VariableLike

Pairs = list[tuple[Gradient | None, VariableLike]]


class Applies(Protocol):
    """What the two methods ask of their optimizer."""

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """The loss times the loss scale."""

    def apply_gradients(self, grads_and_vars: Iterable[Any]) -> keras.Variable:
        """Updates the variables."""


def minimize(
    self: Applies, loss: Any, var_list: Any, tape: tf.GradientTape | None = None
) -> keras.Variable:
    """`apply_gradients` of `compute_gradients`; returns `iterations`.

    Example:
        >>> from tf_graft.optimizers import SGD
        >>> w = tf.Variable(2.0)
        >>> int(SGD(0.25).minimize(lambda: w * w, [w])), float(w)
        (1, 1.0)
    """
    return self.apply_gradients(compute_gradients(self, loss, var_list, tape))


def compute_gradients(  # noqa: D417 - a method
    self: Applies, loss: Any, var_list: Any, tape: tf.GradientTape | None = None
) -> Pairs:
    """Pairs of gradient and variable, as `apply_gradients` takes them.

    They are those of `scale_loss(loss)`: with a loss scale, times the scale, which
    `apply_gradients` divides them by.

    Args:
        loss: a function without arguments that returns the loss; or the loss, a tensor, with the
            tape that recorded it.
        var_list: the variables; or a function that returns them, for variables that are made when
            `loss` is called for the first time.
        tape: records a `loss` that is a function; a new one when None.

    Raises:
        TypeError: `var_list` is no list of variables; the loss is not floating point.
        ValueError: a loss that is a tensor, without its tape.
    """
    owner = f"{type(self).__name__}.compute_gradients"
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
    scale = tf.cast(self.scale_loss(tf.ones_like(loss)), loss.dtype)
    gradients = tape.gradient(loss, variables, output_gradients=scale)
    return list(zip(gradients, variables, strict=True))
