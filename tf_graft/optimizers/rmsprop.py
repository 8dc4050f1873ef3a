"""RMSprop: gradients divided by the root of their recent mean square."""

import contextlib
from typing import Any, Unpack

import tensorflow as tf

from tf_graft import algorithm as ta


@ta.register
class RMSprop(ta.Optimizer):
    """RMSprop: divides the gradient by its root mean square; optionally centered, with momentum.

    ```
    v <- rho * v + (1 - rho) * g^2
    a <- rho * a + (1 - rho) * g                     centered=True, else a = 0
    x  = learning_rate * g / sqrt(max(v - a^2, 0) + epsilon)
    m <- momentum * m + x                            w <- w - m
    ```

    Without momentum `w <- w - x`. PyTorch adds `epsilon` to the root, not inside it. The maximum is
    ours: by rounding, the variance of a gradient that stays the same for long may be negative.

    Args:
        learning_rate: number, at least 0, or schedule.
        rho: decay of the averages.
        momentum: how much of the momentum is kept.
        epsilon: a term inside the root.
        centered: whether to divide by the root of the variance, not of the mean square.
        initial_velocity: the first value of `v`; 0 in Keras, and 1 in TensorFlow 1.
        **common: see `tf_graft.algorithm.Common`.

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

    namesake = ta.Namesake(("velocity",), ("momentum",), ("average_gradient",))

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.001,
        rho: ta.Fraction = 0.9,
        momentum: ta.FractionOrSchedule = 0.0,
        epsilon: ta.AboveZero = 1e-7,
        centered: ta.Flag = False,
        initial_velocity: ta.AtLeastZero = 0.0,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        roles = {"momentum": self.momentum, "average_gradient": self.centered}
        zeros = {role: ta.Slot() for role, wanted in roles.items() if wanted}
        return {"velocity": ta.Slot(self.initial_velocity, within=ta.NOT_NEGATIVE)} | zeros

    def step(self, g: tf.Tensor, w: tf.Tensor, s: ta.Slots, lr: tf.Tensor, t: tf.Tensor) -> ta.Step:
        variance = ta.running_mean(s["velocity"], g * g, self.rho, t)
        new = {"velocity": variance}
        if self.centered:
            a = new["average_gradient"] = ta.running_mean(s["average_gradient"], g, self.rho, t)
            variance = tf.maximum(variance - a * a, 0.0)  # which rounding makes negative
        x = ta.quotient(lr * g, tf.sqrt(variance + self.epsilon))
        if self.momentum:
            x = new["momentum"] = ta.current(self.momentum, t) * s["momentum"] + x
        return -x, new

    def _serves(self) -> bool:
        """Returns False where TensorFlow's kernel does not do what `step` does.

        With `centered`, the kernel's variance may be negative; with decay and no momentum, `step`
        and decay are summed.
        """
        remembered = bool(self.momentum) or not self.weight_decay
        return remembered and not self.centered and ta.remembers("rho")(self)

    @ta.in_place(exact=True, serves=_serves)
    def kernel(
        self, g: tf.Tensor, w: tf.Variable, s: ta.SlotVariables, lr: tf.Tensor, t: tf.Tensor
    ) -> None:
        # TensorFlow's kernels require a momentum
        kept: Any = (
            contextlib.nullcontext(s["momentum"]) if self.momentum else ta.scratch_variable(g)
        )
        with kept as momentum:
            tf.raw_ops.ResourceApplyRMSProp(
                var=w.handle,
                ms=s["velocity"].handle,
                mom=momentum.handle,
                lr=lr,
                rho=ta.scalar(self.rho, g.dtype),
                momentum=ta.current(self.momentum, t),
                epsilon=ta.scalar(self.epsilon, g.dtype),
                grad=g,
            )
