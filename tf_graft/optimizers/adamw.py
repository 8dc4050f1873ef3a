"""AdamW: Adam with decoupled weight decay."""

from typing import Unpack

from tf_graft import algorithm as ta
from tf_graft.optimizers.adam import Adam


@ta.register
class AdamW(Adam):
    """AdamW: Adam with decoupled weight decay, which does not pass through the gradient.

    ```
    w <- w - learning_rate * weight_decay * w - alpha * m / (sqrt(v) + epsilon)
    ```

    `alpha`, `m` and `v` are those of `Adam`. The paper multiplies the decay by the schedule alone,
    not by the learning rate. Here, as in Keras, the decay is multiplied by the whole learning rate.

    Args:
        learning_rate: number, at least 0, or schedule.
        weight_decay: decoupled weight decay; not None.
        beta_1: decay of the mean.
        beta_2: decay of the mean square.
        epsilon: a term added to the root.
        amsgrad: whether to divide by the largest mean square so far.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: with `sparse="lazy"` untouched rows neither move nor decay.

    Example:
        >>> import tensorflow as tf
        >>> w = tf.Variable([2.0])
        >>> AdamW(0.25, weight_decay=0.5).apply([tf.constant([3.0])], [w])  # 2 - 0.25 - 0.25
        >>> round(float(w[0]), 3)
        1.5

    Reference:
        Loshchilov and Hutter, 2019, "Decoupled weight decay regularization", algorithm 2.
    """

    def __init__(  # type: ignore[misc]  # a common argument with a default of its own
        self,
        learning_rate: ta.RateLike = 0.001,
        weight_decay: ta.AtLeastZeroOrSchedule = 0.004,
        beta_1: ta.NumberLike = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **common: Unpack[ta.Common],
    ):
        if weight_decay is None:
            raise ValueError("AdamW(weight_decay=None): weight_decay must be a number.")
        super().__init__(
            learning_rate, beta_1, beta_2, epsilon, amsgrad, weight_decay=weight_decay, **common
        )
