"""RMSprop: gradients divided by the root of their recent mean square."""

import contextlib
from typing import Any, Unpack

import tensorflow as tf

from tf_graft.algorithm import (
    NOT_NEGATIVE,
    AboveZero,
    AtLeastZero,
    Common,
    Flag,
    Fraction,
    FractionOrSchedule,
    Namesake,
    Optimizer,
    RateLike,
    Slot,
    Slots,
    SlotVariables,
    Step,
    current,
    in_place,
    quotient,
    register,
    remembers,
    running_mean,
    scalar,
    scratch_variable,
)


@register
class RMSprop(Optimizer):
    """RMSprop: divides the gradient by its root mean square; optionally centered, with momentum.

    ```
    v <- rho * v + (1 - rho) * g^2
    a <- rho * a + (1 - rho) * g                     centered=True, else a = 0
    x  = learning_rate * g / sqrt(v - a^2 + epsilon)
    m <- momentum * m + x                            w <- w - m
    ```

    Without momentum `w <- w - x`.

    Args:
        learning_rate: number, at least 0, or schedule.
        rho: decay of the averages.
        momentum: how much of the momentum is kept.
        epsilon: a term inside the root.
        centered: whether to divide by the variance in place of the mean square.
        initial_velocity: the first value of `v`; 0 in Keras, and 1 in TensorFlow 1.
        **common: see `tf_graft.algorithm.Common`.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; the message names it.

    Row-sparse gradients: with `sparse="lazy"` the averages and the momentum of untouched rows stay
    as they are.

    Example:
        >>> w = tf.Variable([1.0])
        >>> RMSprop(0.5, rho=0.0).apply([tf.constant([3.0])], [w])  # 1 - 0.5 * 3 / sqrt(9)
        >>> round(float(w[0]), 3)
        0.5

    Reference:
        Tieleman and Hinton, 2012, "Lecture 6.5", slide 29; centered: Graves, 2013, "Generating
        sequences with recurrent neural networks", equations 38 to 45.
    """

    namesake = Namesake(("velocity",), ("momentum",), ("average_gradient",))

    def __init__(
        self,
        learning_rate: RateLike = 0.001,
        rho: Fraction = 0.9,
        momentum: FractionOrSchedule = 0.0,
        epsilon: AboveZero = 1e-7,
        centered: Flag = False,
        initial_velocity: AtLeastZero = 0.0,
        **common: Unpack[Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, Slot]:
        roles = {"momentum": self.momentum, "average_gradient": self.centered}
        zeros = {role: Slot() for role, wanted in roles.items() if wanted}
        return {"velocity": Slot(self.initial_velocity, within=NOT_NEGATIVE)} | zeros

    def step(self, g: tf.Tensor, w: tf.Tensor, s: Slots, lr: tf.Tensor, t: tf.Tensor) -> Step:
        variance = running_mean(s["velocity"], g * g, self.rho, t)
        new = {"velocity": variance}
        if self.centered:
            a = new["average_gradient"] = running_mean(s["average_gradient"], g, self.rho, t)
            variance -= a * a
        x = quotient(lr * g, tf.sqrt(variance + self.epsilon))
        if self.momentum:
            x = new["momentum"] = current(self.momentum, t) * s["momentum"] + x
        return -x, new

    def _serves(self) -> bool:
        """Returns False with decay and no momentum, because `step` and decay are then summed."""
        remembered = bool(self.momentum) or not self.weight_decay
        return remembered and remembers("rho")(self)

    @in_place(exact=True, serves=_serves)
    def kernel(
        self, g: tf.Tensor, w: tf.Variable, s: SlotVariables, lr: tf.Tensor, t: tf.Tensor
    ) -> None:
        # TensorFlow's kernels require a momentum
        kept: Any = contextlib.nullcontext(s["momentum"]) if self.momentum else scratch_variable(g)
        with kept as momentum:
            operands = {
                "var": w.handle,
                "ms": s["velocity"].handle,
                "mom": momentum.handle,
                "lr": lr,
                "rho": scalar(self.rho, g.dtype),
                "momentum": current(self.momentum, t),
                "epsilon": scalar(self.epsilon, g.dtype),
                "grad": g,
            }
            if self.centered:
                mean = s["average_gradient"].handle
                tf.raw_ops.ResourceApplyCenteredRMSProp(**operands, mg=mean)
            else:
                tf.raw_ops.ResourceApplyRMSProp(**operands)
