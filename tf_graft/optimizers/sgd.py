"""Stochastic gradient descent, with momentum."""

from typing import Unpack

import tensorflow as tf

from tf_graft.algorithm import (
    Common,
    Flag,
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
    register,
)
from tf_graft.optimizers.kernels import descend, warn_without_momentum


@register
class SGD(Optimizer):
    """Stochastic gradient descent, with classical or Nesterov momentum.

    ```
    m <- momentum * m - learning_rate * g
    w <- w + m                                       nesterov=False
    w <- w + momentum * m - learning_rate * g        nesterov=True
    ```

    The learning rate is inside the momentum, as in Keras. TensorFlow 1 had it outside; with a
    constant learning rate the two are equal. Without momentum there is no slot.

    Args:
        learning_rate: number, at least 0, or schedule.
        momentum: how much of the momentum is kept; without it there is no slot.
        nesterov: whether to look ahead (Nesterov momentum); it does nothing without one.
        **common: see `tf_graft.algorithm.Common`.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; the message names it.

    Row-sparse gradients: without momentum the result equals that of the dense gradient. With
    momentum and `sparse="lazy"`, the momentum of untouched rows stays as it is.

    Example:
        >>> w = tf.Variable([1.0, 2.0])
        >>> SGD(0.5).apply([tf.constant([1.0, -1.0])], [w])
        >>> w.numpy().tolist()
        [0.5, 2.5]

    Reference:
        Sutskever et al., 2013, "On the importance of initialization and momentum in deep
        learning", equations 1 to 4.
    """

    namesake = Namesake(("momentum",))

    def __init__(
        self,
        learning_rate: RateLike = 0.01,
        momentum: FractionOrSchedule = 0.0,
        nesterov: Flag = False,
        **common: Unpack[Common],
    ):
        super().__init__(learning_rate, **common)
        warn_without_momentum(self)
        self.idle = not self.momentum

    def slots(self) -> dict[str, Slot]:
        return {"momentum": Slot()} if self.momentum else {}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: Slots, lr: tf.Tensor, t: tf.Tensor) -> Step:
        if not self.momentum:
            return -lr * g, {}
        momentum = current(self.momentum, t)
        m = momentum * s["momentum"] - lr * g
        return (momentum * m - lr * g if self.nesterov else m), {"momentum": m}

    @in_place(exact=True)
    def kernel(
        self, g: tf.Tensor, w: tf.Variable, s: SlotVariables, lr: tf.Tensor, t: tf.Tensor
    ) -> None:
        momentum = current(self.momentum, t) if self.momentum else None
        descend(g, w, s, lr, momentum, self.nesterov)
