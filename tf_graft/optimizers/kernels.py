"""What several optimizers share: operands of TensorFlow's kernels, and a check of arguments."""

import inspect
import warnings
from typing import Any

import tensorflow as tf

from tf_graft import algorithm as ta


def adam_operands(
    g: tf.Tensor, s: ta.SlotVariables, beta_1: ta.NumberLike, beta_2: float, t: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Returns the operands of Adam's kernels except the variable, the learning rate and epsilon.

    The powers are zero, so that the kernels do not correct the learning rate.
    """
    return {
        "m": s["momentum"].handle,
        "v": s["velocity"].handle,
        "beta1_power": ta.scalar(0.0, g.dtype),
        "beta2_power": ta.scalar(0.0, g.dtype),
        "beta1": ta.current(beta_1, t),
        "beta2": ta.current(beta_2, t),
        "grad": g,
    }


def warn_without_momentum(optimizer: Any) -> None:
    """Warns of Nesterov momentum without a momentum, which does nothing; Keras accepts it.

    The constructor calls this function; the warning points to where the optimizer is made.
    """
    if optimizer.nesterov and not optimizer.momentum:
        frames = [frame.frame for frame in inspect.stack(0)[1:]]
        made = next(i for i, frame in enumerate(frames) if frame.f_code.co_name != "__init__")
        warnings.warn(
            f"{type(optimizer).__name__}(nesterov=True): without a momentum it does nothing.",
            stacklevel=2 + made,
        )


def descend(
    g: tf.Tensor,
    w: tf.Variable,
    s: ta.SlotVariables,
    lr: tf.Tensor,
    momentum: tf.Tensor | None,
    nesterov: bool,
) -> None:
    """Runs the equations of `SGD` as one kernel; `momentum` is None for none."""
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
