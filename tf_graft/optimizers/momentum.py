"""Momentum with the learning rate outside."""

from typing import Unpack

import tensorflow as tf

from tf_graft import algorithm as ta


@ta.register
class Momentum(ta.Optimizer):
    """Gradient descent with momentum, with the learning rate outside of it as in TensorFlow 1.

    ```
    m <- momentum * m + g
    w <- w - learning_rate * m                       use_nesterov=False
    w <- w - learning_rate * (g + momentum * m)      use_nesterov=True
    ```

    A change of the learning rate acts on the whole step at once. In `SGD`, as in Keras, the
    learning rate is inside the momentum, so each gradient in it keeps the learning rate of its own
    step. With a constant learning rate the two are equal.

    Args:
        learning_rate: number, at least 0, or schedule.
        momentum: how much of the momentum is kept.
        use_nesterov: whether to look ahead (Nesterov momentum).
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: with `sparse="lazy"` the momentum of untouched rows stays as it is.

    Example:
        >>> w, optimizer = tf.Variable([1.0]), Momentum(0.5, momentum=0.5)
        >>> optimizer.apply([tf.constant([1.0])], [w])
        >>> optimizer.learning_rate = 1.0
        >>> optimizer.apply([tf.constant([0.0])], [w])
        >>> w.numpy().tolist()
        [0.0]

    Reference:
        TensorFlow 1, `tf.train.MomentumOptimizer`; Sutskever et al., 2013, "On the importance of
        initialization and momentum in deep learning", section 2.
    """

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.01,
        momentum: ta.FractionOrSchedule = 0.9,
        use_nesterov: ta.Flag = False,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        return {"momentum": ta.Slot()}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: ta.Slots, lr: tf.Tensor, t: tf.Tensor) -> ta.Step:
        momentum = ta.current(self.momentum, t)
        m = momentum * s["momentum"] + g
        return -lr * (g + momentum * m if self.use_nesterov else m), {"momentum": m}

    @ta.in_place(exact=lambda self: not self.use_nesterov)
    def kernel(
        self, g: tf.Tensor, w: tf.Variable, s: ta.SlotVariables, lr: tf.Tensor, t: tf.Tensor
    ) -> None:
        tf.raw_ops.ResourceApplyMomentum(
            var=w.handle,
            accum=s["momentum"].handle,
            lr=lr,
            grad=g,
            momentum=ta.current(self.momentum, t),
            use_nesterov=self.use_nesterov,
        )
