"""MARS: Adam or Lion on gradients with reduced variance."""

from typing import Annotated, Any, Literal, Unpack

import tensorflow as tf

from tf_graft import algorithm as ta


@ta.register
class MARS(ta.Optimizer):
    """MARS: AdamW or Lion, on gradients that are corrected by their change since the last step.

    ```
    c = g + gamma * beta_1 / (1 - beta_1) * (g - last gradient)
    c = c / max(1, ||c||)
    m <- m + (1 - beta_1) * (c - m)
    v <- v + (1 - beta_2) * (c^2 - v)
    w <- w - learning_rate * m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + epsilon)
    mars_type="lion":  w <- w - learning_rate * sign(m)
    ```

    The norm is taken for each variable. Before the first step the last gradient is zero. AdamW
    updates variables with fewer than two axes, with `beta_1_1d` and `beta_2_1d`, unless
    `optimize_1d` is True. This is the approximate MARS, which needs one gradient for each step. For
    the exact method, compute the next batch's gradient at the same weights before each step, too,
    and assign it to the slot `last_gradient` after the step.

    Differences from the authors' program: variables with three or more axes are corrected, too,
    because Keras' attention kernels have three axes. To give vectors another learning rate or no
    weight decay, use `learning_rate_multipliers` and `exclude_from_weight_decay`.

    Args:
        learning_rate: number, at least 0, or schedule.
        beta_1: decay of the mean.
        beta_2: decay of the mean square.
        epsilon: a term added to the root.
        gamma: the strength of the correction.
        mars_type: `"adamw"` or `"lion"`.
        optimize_1d: whether variables with fewer than two axes are corrected, too.
        beta_1_1d: decay of the mean of variables that are not corrected.
        beta_2_1d: decay of the mean square of variables that are not corrected.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: with `sparse="lazy"` the slots of untouched rows stay as they are, so the
    last gradient of a row comes from the last step that touched it. The norm is taken over the
    whole gradient.

    Example:
        >>> w = tf.Variable([[1.0, 1.0]])
        >>> MARS(0.25).apply([tf.constant([[4.0, -0.1]])], [w])  # the first step is nearly Adam's
        >>> [round(x, 3) for x in w[0].numpy().tolist()]
        [0.75, 1.25]

    Reference:
        Yuan et al., 2024, "MARS: unleashing the power of variance reduction for training large
        models" (arXiv 2411.10438), algorithms 2 and 3.
    """

    rowwise = False
    skips_zero_rows = True

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.003,
        beta_1: ta.BelowOne = 0.95,
        beta_2: ta.BelowOne = 0.99,
        epsilon: ta.AboveZero = 1e-8,
        gamma: ta.AtLeastZero = 0.025,
        mars_type: Annotated[Literal["adamw", "lion"], ta.Checked(ta.choice, ("adamw", "lion"))] = (
            "adamw"
        ),
        optimize_1d: ta.Flag = False,
        beta_1_1d: ta.BelowOne = 0.9,
        beta_2_1d: ta.BelowOne = 0.95,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def _corrects(self, path: str) -> bool:
        return self.optimize_1d or len(self.rule.shapes[path]) > 1

    def slots_for(self, path: str) -> dict[str, ta.Slot]:
        corrects = self._corrects(path)
        slots = {"momentum": ta.Slot()}
        if self.mars_type == "adamw" or not corrects:
            slots["velocity"] = ta.Slot(within=ta.NOT_NEGATIVE)
        return slots | ({"last_gradient": ta.Slot()} if corrects else {})

    def traits(self, path: str) -> dict[str, Any]:
        return {"corrects": self._corrects(path)}

    def step(
        self,
        g: tf.Tensor,
        w: tf.Tensor,
        s: ta.Slots,
        lr: tf.Tensor,
        t: tf.Tensor,
        corrects: bool = True,
    ) -> ta.Step:
        beta_1 = self.beta_1 if corrects else self.beta_1_1d
        beta_2 = self.beta_2 if corrects else self.beta_2_1d
        c, new = g, {}
        if corrects:
            c = g + self.gamma * beta_1 / (1 - beta_1) * (g - s["last_gradient"])
            c = ta.quotient(c, tf.maximum(ta.length(c), 1.0))
            new["last_gradient"] = g
        m = new["momentum"] = ta.running_mean(s["momentum"], c, beta_1, t)
        if "velocity" not in s:
            return -lr * tf.sign(m), new
        v = new["velocity"] = ta.running_mean(s["velocity"], c * c, beta_2, t)
        root = tf.sqrt(v / ta.one_minus_power(beta_2, t)) + self.epsilon
        return -lr * (m / ta.one_minus_power(beta_1, t)) / root, new
