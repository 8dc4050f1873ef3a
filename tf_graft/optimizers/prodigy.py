"""Prodigy: Adam whose learning rate is an estimate of the distance to the solution."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Unpack

import tensorflow as tf

from tf_graft import algorithm as ta

SHARED = ("distance", "largest_distance", "numerator")


@ta.register
class Prodigy(ta.Optimizer):
    """Prodigy: Adam that estimates its learning rate, one for all variables.

    ```
    m <- beta_1 * m + (1 - beta_1) * d * g
    v <- beta_2 * v + (1 - beta_2) * (d * g)^2
    a  = d * learning_rate
    s <- beta_3 * s + d / d0 * a * g
    n <- beta_3 * n + d / d0 * a * <g, w0 - w>
    d <- max(d, d_coef * n / ||s||_1)                at most growth_rate * d
    w <- w - a * m / (sqrt(v) + d * epsilon)         with the former d in a, the new one here
    ```

    All variables share `d` and `n`; `<,>` and `||.||_1` are sums over all variables of the call;
    `w0` are the weights when the optimizer was built. With `use_bias_correction`, `a` contains
    Adam's bias correction. The estimate needs all gradients before any weight moves, so the new
    slots of all variables are in memory at once. Prodigy keeps four numbers for each weight.

    Difference from Optax': Optax always corrects the bias. Difference from the authors' program:
    updates before the first gradient that is not zero count, which changes only the bias
    correction; and all entries are measured, as with `slice_p=1` there.

    Args:
        learning_rate: number, at least 0, or schedule: multiplies the estimate. Leave it at 1, or
            use a schedule with a largest value of 1.
        beta_1: decay of the mean.
        beta_2: decay of the mean square.
        beta_3: decay of the sums; None for the root of `beta_2`.
        epsilon: a term added to the root, times `d`.
        d0: the first estimate; choose a small number.
        d_coef: multiplies the estimates; to tune the method, try 0.5 to 2.
        growth_rate: the largest factor by which the estimate grows in one update; None for no
            limit.
        use_bias_correction: whether to correct the bias as Adam does.
        safeguard_warmup: whether to leave the learning rate out of `s`; use it with a long warm-up.
        decouple: whether weight decay is decoupled, by `a * weight_decay * w`; otherwise
            `weight_decay * w` is added to the gradient.
        **common: see `tf_graft.algorithm.Common`; `weight_decay` is multiplied by the estimate.

    Row-sparse gradients: with `sparse="lazy"` the slots of untouched rows stay as they are, and the
    norm includes their `s`.

    Example:
        >>> w = tf.Variable([1.0, 1.0])
        >>> optimizer = Prodigy(d0=0.25)
        >>> optimizer.apply([tf.constant([4.0, -0.1])], [w])  # 0.25 * 0.1 / sqrt(0.001)
        >>> [round(x, 3) for x in w.numpy().tolist()]
        [0.209, 1.791]

    Reference:
        Mishchenko and Defazio, 2023, "Prodigy: an expeditiously adaptive parameter-free learner"
        (arXiv 2306.06101), algorithm 4.
    """

    finds_rate = True
    rowwise = False
    skips_zero_rows = True
    _precision = "float32"

    def __init__(
        self,
        learning_rate: ta.RateLike = 1.0,
        beta_1: ta.BelowOne = 0.9,
        beta_2: ta.BelowOne = 0.999,
        beta_3: Annotated[
            float | None, ta.Checked(ta.number, 0, 1, open_high=True, optional=True)
        ] = None,
        epsilon: ta.AboveZero = 1e-8,
        d0: ta.AboveZero = 1e-6,
        d_coef: ta.AboveZero = 1.0,
        growth_rate: Annotated[float | None, ta.Checked(ta.number, 1, optional=True)] = None,
        use_bias_correction: ta.Flag = False,
        safeguard_warmup: ta.Flag = False,
        decouple: ta.Flag = True,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        norm = ta.Slot(shape="scalar", within=ta.NOT_NEGATIVE)
        square = {"velocity": ta.Slot(within=ta.NOT_NEGATIVE), "gradient_norm": norm}
        first = ta.Slot(tf.convert_to_tensor)
        return {"momentum": ta.Slot(), "gradient_sum": ta.Slot(), "initial": first, **square}

    def prepare(self, variables: Mapping[str, Any]) -> None:
        if any(tf.as_dtype(variable.dtype) == tf.float64 for variable in variables.values()):
            self._precision = "float64"

    def shared_slots(self) -> dict[str, ta.Slot]:
        distance = ta.Slot(self.d0, dtype=self._precision, within=ta.NOT_NEGATIVE)
        return dict(zip(SHARED, (distance, distance, ta.Slot(dtype=self._precision)), strict=True))

    def decayed(self, p: ta.Point, d: tf.Tensor) -> tf.Tensor:
        if not self.decouple or not self.rule.decays(p.path):
            return d
        rate = self._rate(p, tf.convert_to_tensor(p.s["distance"]))
        with self.rule.at(p.rates):
            return d - self.rule.decay(p.w, rate, p.t)

    def propose(self, points: Iterable[ta.Point]) -> Iterator[ta.Step]:
        points = list(points)
        if points:
            with self.rule.at(points[0].rates):
                steps = self._steps(points)
            yield from steps

    def _steps(self, points: Sequence[ta.Point]) -> list[ta.Step]:
        """Returns the steps from all points, which share an estimate."""
        states = [p.state() for p in points]
        before = [states[0][role] for role in SHARED]
        averaged = [self._averaged(p, s, before[0]) for p, s in zip(points, states, strict=True)]
        total = before[0].dtype
        gain = tf.add_n([tf.cast(gain, total) for _, gain, _ in averaged])
        norm = tf.add_n([tf.cast(new["gradient_norm"], total) for _, _, new in averaged])
        shared = self._estimated(before, gain, norm)
        distance, steps = shared["distance"], []
        for p, (a, _, new) in zip(points, averaged, strict=True):
            d = tf.cast(distance, p.w.dtype)
            step = -a * ta.quotient(new["momentum"], tf.sqrt(new["velocity"]) + d * self.epsilon)
            steps.append((step, new | shared))
            shared = {}  # written once
        return steps

    def _averaged(self, p: ta.Point, s: ta.Slots, distance: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns a variable's `a`, its share of the growth of `n`, and its new slots."""
        d, t = tf.cast(distance, p.w.dtype), p.t
        g = p.g
        if not self.decouple and self.rule.decays(p.path):
            g += self.rule.decay(p.w, tf.ones_like(t), t)
        a = self._rate(p, distance)
        scale, dg = ta.quotient(d, self.d0), d * g
        m = self.beta_1 * s["momentum"] + (1 - self.beta_1) * dg
        v = self.beta_2 * s["velocity"] + (1 - self.beta_2) * dg * dg
        total = self._beta_3 * s["gradient_sum"] + scale * (d if self.safeguard_warmup else a) * g
        grown = tf.reduce_sum(tf.abs(total)) - tf.reduce_sum(tf.abs(s["gradient_sum"]))
        norm = tf.maximum(s["gradient_norm"] + grown, 0.0)
        new = {"momentum": m, "velocity": v, "gradient_sum": total, "gradient_norm": norm}
        return a, scale * a * tf.reduce_sum(g * (s["initial"] - p.w)), new

    def _rate(self, p: ta.Point, distance: tf.Tensor) -> tf.Tensor:
        """Returns the rate `a` of a variable's step."""
        a = tf.cast(distance, p.w.dtype) * p.lr
        if self.use_bias_correction:
            t = p.t
            a *= tf.sqrt(ta.one_minus_power(self.beta_2, t)) / ta.one_minus_power(self.beta_1, t)
        return a

    def _estimated(self, before: Sequence[tf.Tensor], gain: tf.Tensor, norm: tf.Tensor) -> ta.Slots:
        """Returns the new shared slots."""
        d, largest, numerator = before
        numerator = self._beta_3 * numerator + gain
        found = self.d_coef * ta.quotient(numerator, norm)
        largest = tf.maximum(largest, found)
        new = largest
        if self.growth_rate is not None:
            first = tf.where(d > self.d0, d, tf.maximum(d, found))
            new = tf.minimum(largest, self.growth_rate * first)
        return dict(zip(SHARED, (new, largest, numerator), strict=True))

    @property
    def _beta_3(self) -> float:
        return math.sqrt(self.beta_2) if self.beta_3 is None else self.beta_3
