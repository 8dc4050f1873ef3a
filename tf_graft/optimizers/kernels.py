"""What several optimizers share: operands of TensorFlow's kernels, and a check of arguments."""

import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_graft.algorithm import NumberLike, SlotVariables, current, scalar


def remembering(role: str) -> Callable[[Callable[..., None]], Any]:
    """Makes a method a kernel that serves if the argument `role`, a decay, is at least 0.5.

    The kernel computes `v + (1 - decay) * (g^2 - v)`, which rounds g^2 away where it is far below v
    and nothing of v remains; `running_mean` does not.
    """

    def declared(kernel: Callable[..., None]) -> Any:
        def served(self: Any) -> Callable[..., None] | None:
            return kernel.__get__(self) if getattr(self, role) >= 0.5 else None

        return property(served, doc=kernel.__doc__)

    return declared


def adam_operands(
    g: tf.Tensor, s: SlotVariables, beta_1: NumberLike, beta_2: float, t: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Returns the operands of Adam's kernels except the variable, the learning rate and epsilon.

    The powers are zero, so that the kernels do not correct the learning rate.
    """
    return {
        "m": s["momentum"].handle,
        "v": s["velocity"].handle,
        "beta1_power": scalar(0.0, g.dtype),
        "beta2_power": scalar(0.0, g.dtype),
        "beta1": current(beta_1, t),
        "beta2": current(beta_2, t),
        "grad": g,
    }


def warn_without_momentum(optimizer: Any) -> None:
    """Warns of Nesterov momentum without a momentum, which does nothing; Keras accepts it."""
    if optimizer.nesterov and not optimizer.momentum:
        warnings.warn(
            f"{type(optimizer).__name__}(nesterov=True): without a momentum it does nothing.",
            stacklevel=4,
        )


def descend(
    g: tf.Tensor,
    w: tf.Variable,
    s: SlotVariables,
    lr: tf.Tensor,
    momentum: tf.Tensor | None,
    nesterov: bool,
) -> None:
    """Runs the equations of `SGD` as one kernel; no momentum is None."""
    if momentum is None:
        tf.raw_ops.ResourceApplyGradientDescent(var=w.handle, alpha=lr, delta=g)
        return
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=w.handle,
        accum=s["momentum"].handle,
        lr=lr,
        grad=g,
        momentum=momentum,
        use_nesterov=nesterov,
    )


def descend_by_root(
    w: tf.Variable, direction: tf.Tensor, v: tf.Variable, lr: tf.Tensor, epsilon: tf.Tensor
) -> None:
    """Takes `lr * direction / (sqrt(v) + epsilon)` from the weights, by one kernel."""
    tf.raw_ops.ResourceApplyAdagradV2(
        var=w.handle, accum=v.handle, lr=lr, epsilon=epsilon, grad=direction, update_slots=False
    )
