"""Operands that several optimizers pass to TensorFlow's kernels."""

import tensorflow as tf

from tf_graft.algorithm import SlotVariables, scalar


def adam_operands(
    g: tf.Tensor, s: SlotVariables, beta_1: float, beta_2: float
) -> dict[str, tf.Tensor]:
    """Returns the operands of Adam's kernels except the variable, the learning rate and epsilon.

    The powers are zero, so that the kernels do not correct the learning rate.
    """
    return {
        "m": s["momentum"].handle,
        "v": s["velocity"].handle,
        "beta1_power": scalar(0.0, g.dtype),
        "beta2_power": scalar(0.0, g.dtype),
        "beta1": scalar(beta_1, g.dtype),
        "beta2": scalar(beta_2, g.dtype),
        "grad": g,
    }


def descend(
    g: tf.Tensor, w: tf.Variable, s: SlotVariables, lr: tf.Tensor, momentum: float, nesterov: bool
) -> None:
    """Runs the equations of `SGD` as one kernel."""
    if not momentum:
        tf.raw_ops.ResourceApplyGradientDescent(var=w.handle, alpha=lr, delta=g)
        return
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=w.handle,
        accum=s["momentum"].handle,
        lr=lr,
        grad=g,
        momentum=scalar(momentum, g.dtype),
        use_nesterov=nesterov,
    )
