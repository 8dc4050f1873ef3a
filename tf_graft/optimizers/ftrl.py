"""FTRL-Proximal: sparse weights for linear models of many sparse features."""

from typing import Annotated, Any, Unpack

import tensorflow as tf

from tf_graft import algorithm as ta


@ta.register
class Ftrl(ta.Optimizer):
    """FTRL: moves to the weights that minimize the sum of all linearized losses and the penalties.

    ```
    r(n) = n^-learning_rate_power / learning_rate
    z <- z + g + 2 * l2_shrinkage * w - (r(n + g^2) - r(n)) * w;   n <- n + g^2
    w <- (clip(z, -l1, l1) - z) / (r(n) + beta / learning_rate + 2 * l2)
    ```

    Here `l1`, `l2` and `l2_shrinkage` stand for `l1_regularization_strength` and the like. A weight
    whose `z` is within `l1` of 0 is exactly 0, so most weights of rare features are 0. The first
    update does not start from the initial weights, which count only through their part in `z`.

    With a learning rate of 0, as at the start of a warm-up, weights and state stay as they are; in
    Keras they become NaN.

    Args:
        learning_rate: number, at least 0, or schedule.
        learning_rate_power: the power of the sum of squares in the learning rate; 0 for one that
            does not fall.
        initial_accumulator_value: the first value of the sum of squares.
        l1_regularization_strength: the L1 penalty, which makes weights exactly 0.
        l2_regularization_strength: the L2 penalty on the distance of the weights from 0.
        l2_shrinkage_regularization_strength: an L2 penalty on touched weights, in the gradient.
        beta: a term added to the root of the sum of squares.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: with `sparse="lazy"` untouched rows stay as they are, as in other FTRLs.

    Example:
        >>> w = tf.Variable([0.0, 0.0])
        >>> optimizer = Ftrl(0.5, initial_accumulator_value=0.0, l1_regularization_strength=1.0)
        >>> optimizer.apply([tf.constant([4.0, 0.5])], [w])  # 0.5 * (1 - 4) / 4
        >>> w.numpy().tolist()
        [-0.375, 0.0]

    Reference:
        McMahan et al., 2013, "Ad click prediction: a view from the trenches", algorithm 1; McMahan,
        2011, "Follow-the-regularized-leader and mirror descent", section 3.
    """

    namesake = ta.Namesake(("accumulator", "linear"))

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.001,
        learning_rate_power: Annotated[float, ta.Checked(ta.number, -1, 0)] = -0.5,
        initial_accumulator_value: ta.AtLeastZero = 0.1,
        l1_regularization_strength: ta.AtLeastZero = 0.0,
        l2_regularization_strength: ta.AtLeastZero = 0.0,
        l2_shrinkage_regularization_strength: ta.AtLeastZero = 0.0,
        beta: ta.AtLeastZero = 0.0,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        start = ta.Slot(self.initial_accumulator_value, within=ta.NOT_NEGATIVE)
        return {"accumulator": start, "linear": ta.Slot()}

    def decayed(self, p: ta.Point, d: tf.Tensor) -> tf.Tensor:
        return d  # `step` applies the weight decay

    def traits(self, path: str) -> dict[str, Any]:
        return {"decay": self.weight_decay if self.rule.decays(path) else 0.0}

    def step(
        self,
        g: tf.Tensor,
        w: tf.Tensor,
        s: ta.Slots,
        lr: tf.Tensor,
        t: tf.Tensor,
        decay: Any = 0.0,
    ) -> ta.Step:
        moves = tf.cast(lr > 0, lr.dtype)
        rate = tf.maximum(lr, 1 - moves)
        n = s["accumulator"] + moves * g * g
        root, before = self._root(n), self._root(s["accumulator"])
        start = w - lr * ta.current(decay, t) * w if decay else w
        g += 2 * self.l2_shrinkage_regularization_strength * start
        z = s["linear"] + moves * g - ta.quotient(root - before, rate) * start
        l1, l2 = self.l1_regularization_strength, self.l2_regularization_strength
        below = ta.quotient(root + self.beta, rate) + 2 * l2
        new = tf.math.divide_no_nan(tf.clip_by_value(z, -l1, l1) - z, below)
        return moves * (new - w), {"accumulator": n, "linear": z}

    def _root(self, n: tf.Tensor) -> tf.Tensor:
        """Returns the sum of squares to the power with which the learning rate falls."""
        power = -self.learning_rate_power
        return tf.sqrt(n) if power == 0.5 else n**power

    @ta.in_place(replaces=True)  # for NaN by 0; the weights decay before, as in `step`
    def kernel(
        self,
        g: tf.Tensor,
        w: tf.Variable,
        s: ta.SlotVariables,
        lr: tf.Tensor,
        t: tf.Tensor,
        decay: Any = 0.0,
    ) -> None:
        def moved() -> tf.Tensor:
            tf.raw_ops.ResourceApplyFtrlV2(
                var=w.handle,
                accum=s["accumulator"].handle,
                linear=s["linear"].handle,
                grad=g,
                lr=lr,
                l1=ta.scalar(self.l1_regularization_strength, g.dtype),
                l2=self.l2_regularization_strength + self.beta / (2 * lr),
                l2_shrinkage=ta.scalar(self.l2_shrinkage_regularization_strength, g.dtype),
                lr_power=ta.scalar(self.learning_rate_power, g.dtype),
            )
            return tf.constant(True)

        tf.cond(lr > 0, moved, lambda: tf.constant(False))
