"""LAMB: Adam, with a learning rate for each layer in proportion to the norm of its weights."""

import functools
from collections.abc import Sequence
from typing import Any, Unpack

import tensorflow as tf

from tf_graft import algorithm as ta
from tf_graft.optimizers.kernels import adam_operands
from tf_graft.optimizers.layerwise import Layerwise, ratio


def _unlike_keras(self: Any) -> dict[str, str]:
    found = {}
    if self.weight_decay:
        found["weight_decay"] = "Keras takes the norm of weights that have decayed already"
    if self.exclude_from_layer_adaptation is None and self.decay_exclusions:
        found["exclude_from_weight_decay"] = (
            "Keras adapts the learning rate of these layers, too, as "
            "exclude_from_layer_adaptation=[] does here"
        )
    return found


@ta.register
class LAMB(Layerwise):
    """LAMB: Adam's direction, with a step length that follows the norm of each variable's weights.

    ```
    m <- m + (1 - beta_1) * (g - m)
    v <- v + (1 - beta_2) * (g^2 - v)
    u = (m / (1 - beta_1^t)) / (sqrt(v / (1 - beta_2^t)) + epsilon) + weight_decay_rate * w
    w <- w - learning_rate * r * u,  r = ||w|| / ||u||           1 where either is zero
    ```

    Differences from Keras' `Lamb`: weight decay is inside the ratio, you can exclude variables, and
    epsilon is 1e-6; with the common `weight_decay`, Keras takes the ratio of weights that have
    decayed already. Differences from Model Garden's: the config contains the exclusions, and each
    pattern is searched for in the variables' paths; an empty `exclude_from_layer_adaptation`
    excludes nothing; betas are not rounded to float32. Differences from cybertronai's program for
    PyTorch: the bias is corrected, and norms of weights are not limited to 10.

    Args:
        learning_rate: number, at least 0, or schedule.
        beta_1: decay of the mean.
        beta_2: decay of the mean square.
        epsilon: a term added to the root.
        weight_decay_rate: weight decay inside the ratio; the common `weight_decay` applies in
            addition.
        exclude_from_weight_decay: regular expressions; neither weight decay applies to a variable
            whose path contains a match.
        exclude_from_layer_adaptation: regular expressions of variables with `r = 1`. None means
            those of `exclude_from_weight_decay`.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: the norms are those of the touched rows; with `sparse="lazy"` the averages
    of the other rows stay as they are. Model Garden's acts as with `sparse="exact"`.

    Example:
        >>> w = tf.Variable([6.0, 8.0])  # of norm 10, moved by a tenth of that
        >>> LAMB(0.1).apply([tf.constant([0.0, 3.0])], [w])
        >>> [round(x, 3) for x in w.numpy().tolist()]
        [6.0, 7.0]

    Reference:
        You et al., 2020, "Large batch optimization for deep learning: training BERT in 76 minutes"
        (arXiv 1904.00962), algorithm 2.
    """

    namesake = ta.Namesake(("momentum", "velocity"), unlike=_unlike_keras)

    def __init__(  # type: ignore[misc]  # a common argument with a default of its own
        self,
        learning_rate: ta.RateLike = 0.001,
        beta_1: ta.BelowOneOrSchedule = 0.9,
        beta_2: ta.BelowOne = 0.999,
        epsilon: ta.AboveZero = 1e-6,
        weight_decay_rate: float = 0.0,
        exclude_from_weight_decay: Sequence[str] | None = None,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        **common: Unpack[ta.Common],
    ):
        lists = (exclude_from_weight_decay, exclude_from_layer_adaptation)
        super().__init__(learning_rate, weight_decay_rate, *lists, **common)

    def slots(self) -> dict[str, ta.Slot]:
        return {"momentum": ta.Slot(), "velocity": ta.Slot(within=ta.NOT_NEGATIVE)}

    def step(
        self,
        g: tf.Tensor,
        w: tf.Tensor,
        s: ta.Slots,
        lr: tf.Tensor,
        t: tf.Tensor,
        decay: float = 0.0,
        adapts: bool = True,
    ) -> ta.Step:
        m = ta.running_mean(s["momentum"], g, self.beta_1, t)
        v = ta.running_mean(s["velocity"], g * g, self.beta_2, t)
        root = tf.sqrt(ta.one_minus_power(self.beta_2, t))
        u = root / ta.one_minus_power(self.beta_1, t) * m / (tf.sqrt(v) + self.epsilon * root)
        if decay:
            u += decay * w
        if adapts:
            lr *= ratio(ta.length(w), ta.length(u))
        return -lr * u, {"momentum": m, "velocity": v}

    @ta.in_place(exact=True, reads_weights=True, serves=ta.remembers("beta_2"))
    def kernel(
        self,
        g: tf.Tensor,
        w: tf.Variable,
        s: ta.SlotVariables,
        lr: tf.Tensor,
        t: tf.Tensor,
        decay: float,
        adapts: bool,
    ) -> None:
        root = tf.sqrt(ta.one_minus_power(self.beta_2, t))
        adam = functools.partial(
            tf.raw_ops.ResourceApplyAdam,
            **adam_operands(g, s, self.beta_1, self.beta_2, t),
            lr=-root / ta.one_minus_power(self.beta_1, t),
            epsilon=self.epsilon * root,
        )
        u = ta.added_by(g, lambda moved: adam(var=moved.handle))
        if decay:
            u += decay * w.value()
        if adapts:
            lr *= ratio(ta.length(w.value()), ta.length(u))
        tf.raw_ops.ResourceApplyGradientDescent(var=w.handle, alpha=lr, delta=u)
