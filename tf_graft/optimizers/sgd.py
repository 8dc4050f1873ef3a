"""Stochastic gradient descent, with momentum."""

from typing import Unpack

import tensorflow as tf

from tf_graft import algorithm as ta
from tf_graft.optimizers.kernels import descend, warn_without_momentum


@ta.register
class SGD(ta.Optimizer):
    """Stochastic gradient descent, with classical or Nesterov momentum.

    ```
    m <- momentum * m - learning_rate * g
    w <- w + m                                       nesterov=False
    w <- w + momentum * m - learning_rate * g        nesterov=True
    ```

    The learning rate is inside the momentum, as in Keras. TensorFlow 1 had it outside; with a
    constant learning rate the two are equal. Without momentum there is no slot. PyTorch's
    `dampening` has no counterpart; in place of its `maximize`, change the sign of the loss.

    Args:
        learning_rate: number, at least 0, or schedule.
        momentum: how much of the momentum is kept; without it there is no slot.
        nesterov: whether to look ahead (Nesterov momentum); without momentum it has no effect.
        **common: see `tf_graft.algorithm.Common`.

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

    namesake = ta.Namesake(("momentum",))

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.01,
        momentum: ta.FractionOrSchedule = 0.0,
        nesterov: ta.Flag = False,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)
        warn_without_momentum(self)
        self.idle = not self.momentum

    def slots(self) -> dict[str, ta.Slot]:
        return {"momentum": ta.Slot()} if self.momentum else {}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: ta.Slots, lr: tf.Tensor, t: tf.Tensor) -> ta.Step:
        if not self.momentum:
            return -lr * g, {}
        momentum = ta.current(self.momentum, t)
        m = momentum * s["momentum"] - lr * g
        return (momentum * m - lr * g if self.nesterov else m), {"momentum": m}

    @ta.in_place(exact=True)
    def kernel(
        self, g: tf.Tensor, w: tf.Variable, s: ta.SlotVariables, lr: tf.Tensor, t: tf.Tensor
    ) -> None:
        momentum = ta.current(self.momentum, t) if self.momentum else None
        descend(g, w, s, lr, momentum, self.nesterov)
