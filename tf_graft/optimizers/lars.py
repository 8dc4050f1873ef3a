"""LARS: momentum, with a learning rate for each layer in proportion to the norm of its weights."""

from collections.abc import Sequence
from typing import Unpack

import tensorflow as tf

from tf_graft import algorithm as ta
from tf_graft.optimizers.kernels import descend, warn_without_momentum
from tf_graft.optimizers.layerwise import Layerwise, ratio


@ta.register
class LARS(Layerwise):
    """LARS: momentum, with a learning rate for each variable in proportion to its weights' norm.

    ```
    g <- g + weight_decay_rate * w
    r = eeta * ||w|| / (||g|| + epsilon)             1 where ||w|| or ||g|| is zero
    m <- momentum * m - learning_rate * r * g
    w <- w + m                                       nesterov=False
    w <- w + momentum * m - learning_rate * r * g    nesterov=True
    ```

    With `classic_momentum=False` the learning rates are outside of the momentum:
    `m <- momentum * m + g`, `u` is `m` (nesterov: `momentum * m + g`),
    `w <- w - learning_rate * r * u`, and `r` is computed from `||u||`. With `sum_of_norms=True` the
    denominator is the paper's, `||g|| + weight_decay_rate * ||w||` with `g` before weight decay.

    Differences from Model Garden's: row-sparse gradients are supported; the config contains the
    exclusions, and each pattern is searched for in the variables' paths (`dense/bias`, no `:0`); an
    empty `exclude_from_layer_adaptation` excludes nothing. For the LARS of tf.contrib, set
    `sum_of_norms=True`; its `skip_list` is `exclude_from_weight_decay` here.

    Args:
        learning_rate: number, at least 0, or schedule.
        momentum: how much of the momentum is kept; without it there is no slot.
        weight_decay_rate: weight decay inside the ratio; the common `weight_decay` applies in
            addition.
        eeta: the paper's trust coefficient.
        nesterov: whether to look ahead (Nesterov momentum); without momentum it has no effect.
        classic_momentum: whether the learning rates are inside the momentum.
        exclude_from_weight_decay: regular expressions; neither weight decay applies to a variable
            whose path contains a match.
        exclude_from_layer_adaptation: regular expressions of variables with `r = 1`. None means
            those of `exclude_from_weight_decay`.
        sum_of_norms: whether the denominator of the ratio is the sum of the two norms, as in the
            paper.
        epsilon: a term added to the denominator of the ratio.
        **common: see `tf_graft.algorithm.Common`.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range, which the message
            names; `sum_of_norms` without `classic_momentum`.

    Row-sparse gradients: the norms are those of the touched rows; with `sparse="lazy"` the momentum
    of the other rows stays as it is.

    Example:
        >>> w = tf.Variable([3.0, 4.0])  # of norm 5
        >>> LARS(1.0, eeta=0.5).apply([tf.constant([0.0, 100.0])], [w])
        >>> w.numpy().tolist()
        [3.0, 1.5]

    Reference:
        You, Gitman and Ginsburg, 2017, "Large batch training of convolutional networks" (arXiv
        1708.03888), algorithm 1.
    """

    def __init__(  # type: ignore[misc]  # a common argument with a default of its own
        self,
        learning_rate: ta.RateLike = 0.01,
        momentum: ta.FractionOrSchedule = 0.9,
        weight_decay_rate: float = 0.0,
        eeta: ta.AboveZero = 0.001,
        nesterov: ta.Flag = False,
        classic_momentum: ta.Flag = True,
        exclude_from_weight_decay: Sequence[str] | None = None,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        sum_of_norms: ta.Flag = False,
        epsilon: ta.AtLeastZero = 0.0,
        **common: Unpack[ta.Common],
    ):
        lists = (exclude_from_weight_decay, exclude_from_layer_adaptation)
        super().__init__(learning_rate, weight_decay_rate, *lists, **common)
        warn_without_momentum(self)
        if self.sum_of_norms and not self.classic_momentum:
            raise ValueError(
                "LARS(sum_of_norms=True, classic_momentum=False): the paper's sum of norms is of "
                "gradients, not of momentum; give one of the two."
            )
        self.idle = not (self.momentum or self.weight_decay_rate)

    def slots(self) -> dict[str, ta.Slot]:
        return {"momentum": ta.Slot()} if self.momentum else {}

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
        if not self.classic_momentum:
            u, slots = self._gathered(_decayed(g, w, decay), s, t)
            return -self._rate(lr, w, u, 0.0, adapts) * u, slots
        decayed, rate = self._classic(g, w, lr, decay, adapts)
        return self._gathered(-rate * decayed, s, t)

    # With the new momentum the variable's rate depends on what the kernel computes.
    @ta.in_place(exact=True, reads_weights=True, serves=lambda self: self.classic_momentum)
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
        decayed, rate = self._classic(g, w.value(), lr, decay, adapts)
        momentum = ta.current(self.momentum, t) if self.momentum else None
        descend(decayed, w, s, rate, momentum, self.nesterov)

    def _classic(
        self, g: tf.Tensor, w: tf.Tensor, lr: tf.Tensor, decay: float, adapts: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the gradient with weight decay, and the variable's rate inside the momentum."""
        decayed = _decayed(g, w, decay)
        measured, more = (g, decay) if self.sum_of_norms else (decayed, 0.0)
        return decayed, self._rate(lr, w, measured, more, adapts)

    def _rate(
        self, lr: tf.Tensor, w: tf.Tensor, d: tf.Tensor, decay: float, adapts: bool
    ) -> tf.Tensor:
        if not adapts:
            return lr
        w_norm, d_norm = ta.length(w), ta.length(d)
        below = d_norm + decay * w_norm + self.epsilon
        return lr * ratio(self.eeta * w_norm, tf.where(d_norm > 0, below, d_norm))

    def _gathered(self, x: tf.Tensor, s: ta.Slots, t: tf.Tensor) -> ta.Step:
        if not self.momentum:
            return x, {}
        momentum = ta.current(self.momentum, t)
        m = momentum * s["momentum"] + x
        return (momentum * m + x if self.nesterov else m), {"momentum": m}


def _decayed(g: tf.Tensor, w: tf.Tensor, decay: float) -> tf.Tensor:
    return g + decay * w if decay else g
