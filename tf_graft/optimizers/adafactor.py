"""Adafactor: mean squares of a matrix kept as one number for each row and each column."""

import math
from typing import Annotated, Any, Literal, Unpack

import tensorflow as tf

from tf_graft import algorithm as ta


def _unlike_keras(self: Any) -> dict[str, str]:
    found = {}
    if self.weight_decay:
        found["weight_decay"] = "Keras takes the size of weights that have decayed already"
    if not self.relative_step:
        found["relative_step"] = "it has no effect in Keras"
    return found


@ta.register
class Adafactor(ta.Optimizer):
    """Adafactor: factored mean squares, and steps relative to the size of the weights.

    ```
    b = 1 - t^beta_2_decay
    r <- b * r + (1 - b) * (mean of g^2 + epsilon_1 over columns)
    c <- b * c + (1 - b) * (mean of g^2 + epsilon_1 over rows)
    u = g / sqrt(r * c / mean(c))
    u = u / max(1, RMS(u) / clip_threshold)
    rho = min(learning_rate, 1 / sqrt(t))                      relative_step=False: learning_rate
    w <- w - max(epsilon_2, RMS(w)) * rho * u
    ```

    A matrix of n x m weights keeps n + m numbers instead of Adam's 2 n m. A vector keeps the mean
    square of each entry, and so does a variable if one of the two axes to factor is shorter than
    `min_dim_size_to_factor`. If a variable has more than two axes, `factored_axes="last"` factors
    the last two, as Keras does, so that you can load Keras' files. `"largest"` factors the two
    longest, as Optax does, which needs less memory: for an attention kernel of shape (512, 8, 64)
    it keeps 0.02 numbers for each weight instead of 0.14.

    Differences from Keras': no slot has the variable's shape if the mean squares are factored, and
    `relative_step=False` has an effect: Keras always limits the learning rate to `1 / sqrt(t)`.

    Args:
        learning_rate: number, at least 0, or schedule. It is relative to the weights' size.
        beta_2_decay: the exponent of `t` in the decay `b` of the mean squares, below 0.
        epsilon_1: a term added to the squares.
        epsilon_2: the lower limit of the weights' size.
        clip_threshold: the largest root mean square of `u`.
        relative_step: whether the learning rate is at most `1 / sqrt(t)`.
        beta_1: decay of a running mean of the steps, which replaces the step; 0 for none.
        multiply_by_parameter_scale: whether to multiply the step by the weights' size.
        min_dim_size_to_factor: the least length of both axes that are factored.
        factored_axes: `"last"` or `"largest"`.
        **common: see `tf_graft.algorithm.Common`.

    Row-sparse gradients: with `sparse="lazy"` all means are taken over the touched rows alone, and
    other rows keep their `r`. All rows share `c`, and only its proportions matter. A square table
    is updated as with a dense gradient.

    Example:
        >>> w = tf.Variable([[1.0, 1.0], [1.0, 1.0]])
        >>> g = tf.constant([[1.0, 2.0], [2.0, 4.0]])  # of rank 1: the factors are exact
        >>> Adafactor(0.5).apply([g], [w])
        >>> [round(x, 3) for x in w[0].numpy().tolist()]
        [0.5, 0.5]

    Reference:
        Shazeer and Stern, 2018, "Adafactor: adaptive learning rates with sublinear memory cost"
        (arXiv 1804.04235), algorithms 4 and 5.
    """

    rowwise = False
    skips_zero_rows = True
    namesake = ta.Namesake(("row", "column", "velocity"), gaps=True, unlike=_unlike_keras)

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.001,
        beta_2_decay: Annotated[float, ta.Checked(ta.number, None, 0, open_high=True)] = -0.8,
        epsilon_1: ta.AboveZero = 1e-30,
        epsilon_2: ta.AboveZero = 1e-3,
        clip_threshold: ta.AboveZero = 1.0,
        relative_step: ta.Flag = True,
        beta_1: ta.BelowOne = 0.0,
        multiply_by_parameter_scale: ta.Flag = True,
        min_dim_size_to_factor: ta.Count = 1,
        factored_axes: Annotated[
            Literal["last", "largest"], ta.Checked(ta.choice, ("last", "largest"))
        ] = "last",
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def axes(self, path: str) -> tuple[int, int] | None:
        """Returns the two axes of a variable that are factored; None if none are."""
        shape = self.rule.shapes[path]
        if len(shape) < 2:
            return None
        order = list(range(len(shape)))
        if self.factored_axes == "largest":
            order.sort(key=lambda axis: shape[axis])
        first, second = sorted(order[-2:])
        least = min(shape[first], shape[second])
        return (first, second) if least >= self.min_dim_size_to_factor else None

    def slots_for(self, path: str) -> dict[str, ta.Slot]:
        # Rows that exist are never zero, unlike those that pad them: see `_rows`.
        rows = ta.Slot(self.epsilon_1, within=ta.NOT_NEGATIVE)
        slots = {"momentum": ta.Slot()} if self.beta_1 else {}
        axes = self.axes(path)
        if axes is None:
            return {"velocity": rows, **slots}
        first, second = axes
        column = ta.Slot(shape=lambda shape: _without(shape, first), within=ta.NOT_NEGATIVE)
        row = rows._replace(shape=lambda shape: _without(shape, second))
        return {"row": row, "column": column, **slots}

    def whole(self, path: str) -> bool:
        shape, axes = self.rule.shapes[path], self.axes(path)
        return axes is not None and axes[0] == 0 and shape[0] == shape[1]

    def traits(self, path: str) -> dict[str, Any]:
        return {"axes": self.axes(path)}

    def step(
        self,
        g: tf.Tensor,
        w: tf.Tensor,
        s: ta.Slots,
        lr: tf.Tensor,
        t: tf.Tensor,
        axes: tuple[int, int] | None = None,
    ) -> ta.Step:
        fresh = _fresh(self.beta_2_decay, t)
        square = g * g
        count = _rows(s["velocity" if axes is None else "row"])
        rows = tf.maximum(count, 1.0)
        if axes is None:
            v = s["velocity"] + fresh * (square + self.epsilon_1 - s["velocity"])
            u, new = ta.quotient(g, tf.sqrt(v)), {"velocity": v}
        else:
            first, second = axes
            over_columns = tf.reduce_mean(square, second)
            over_rows = tf.reduce_mean(square, first) if first else tf.reduce_sum(square, 0) / rows
            r = s["row"] + fresh * (over_columns + self.epsilon_1 - s["row"])
            fresh *= tf.minimum(count, 1.0)
            c = s["column"] + fresh * (over_rows + self.epsilon_1 - s["column"])
            share = c / tf.reduce_mean(c, second - 1, keepdims=True)  # mean(c) is mean(r)
            u = ta.quotient(g, tf.sqrt(tf.expand_dims(r, second)))
            u = ta.quotient(u, tf.sqrt(tf.expand_dims(share, first)))
            new = {"row": r, "column": c}
        entries = rows * math.prod(w.shape[1:])
        u = ta.quotient(u, tf.maximum(ta.quotient(_rms(u, entries), self.clip_threshold), 1.0))
        rho = tf.minimum(lr, tf.math.rsqrt(t)) if self.relative_step else lr
        if self.multiply_by_parameter_scale:
            scale = _rms(w, entries)
            scale = tf.where(tf.math.is_finite(scale), scale, 0)  # weights above 1e19
            rho *= tf.maximum(scale, self.epsilon_2)
        d = -rho * u
        if self.beta_1:
            d = new["momentum"] = ta.running_mean(s["momentum"], d, self.beta_1, t)
        return d, new


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


@ta.memoized
def _fresh(decay: float, t: tf.Tensor) -> tf.Tensor:
    """Returns the share of the present square in the mean squares at a step."""
    return t**decay


def _rows(kept: tf.Tensor) -> tf.Tensor:
    """Returns the number of rows, without those of zeros that XLA or a mesh adds."""
    return tf.reduce_sum(tf.cast(kept > 0, kept.dtype)) / math.prod(kept.shape[1:])


def _rms(x: tf.Tensor, entries: tf.Tensor) -> tf.Tensor:
    """Returns the root mean square of so many entries, the others being zero.

    It is infinite if the squares overflow.
    """
    return ta.length(x) / tf.sqrt(entries)
