"""Schedule-Free SGD, AdamW and RAdam: averages of the weights replace a learning-rate schedule."""

from typing import Annotated, Any, Unpack

import tensorflow as tf

from tf_graft import algorithm as ta
from tf_graft.optimizers.kernels import descend, descend_by_root

Steps = Annotated[int, ta.Checked(ta.integer, 0)]
Share = Annotated[float, ta.Checked(ta.number, 0, 0.999)]


class ScheduleFree(ta.TwoWeights):
    """The base class of the Schedule-Free optimizers, which train y and evaluate x.

    z is not stored: it follows from `y = beta_1 * x + (1 - beta_1) * z`.

    Attributes:
        beta_1: the share of x in y.
        r: the power of `t` in the weights of the average.
        weight_lr_power: the power of the largest learning rate in them.
    """

    beta_1: float
    r: float
    weight_lr_power: float

    def shared_slots(self) -> dict[str, ta.Slot]:
        return super().shared_slots() | {"largest_rate": ta.Slot(within=ta.NOT_NEGATIVE)}

    def warmed(self, lr: tf.Tensor, t: tf.Tensor) -> tf.Tensor:
        """Returns the learning rate of update `t` with the warm-up."""
        raise NotImplementedError

    def direction(self, g: tf.Tensor, s: ta.Slots, t: tf.Tensor) -> ta.Step:
        """Returns minus the step of z at a learning rate of 1, and new slots."""
        raise NotImplementedError

    def advance(self, s: ta.Slots, rates: ta.Rates, t: tf.Tensor) -> dict[str, tf.Tensor]:
        lr = tf.cast(rates["learning_rate"], s["largest_rate"].dtype)
        warmed = self.warmed(lr, tf.cast(t, lr.dtype))
        return {"largest_rate": tf.maximum(s["largest_rate"], warmed)}

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
        lr = self.warmed(lr, t)
        u, slots = self.direction(g, s, t)
        if decay:
            u += ta.current(decay, t) * w
        c, total = self._share(s["weight_sum"], s["largest_rate"], w, t)
        x = _begun(s["averaged_weights"], s["weight_sum"], w)
        from_z = ta.scalar(1 - self.beta_1, g.dtype)
        average = x + c * (ta.quotient(w - x, from_z) - lr * u)
        d = ta.scalar(self.beta_1, g.dtype) * (average - x) - from_z * lr * u
        return d, {"averaged_weights": average, "weight_sum": total, **slots}

    def _share(
        self, sums: tf.Tensor, largest_rate: tf.Tensor, like: tf.Tensor, t: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the share of z in the average of each row, and the new sums of the weights."""
        weight = _weight(largest_rate, t, self.r, self.weight_lr_power)
        return ta.of_rows(ta.quotient(weight, sums + weight), like), sums + weight


def _begun(x: tf.Tensor, sums: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    """Returns the average that a step begins at: the weights in rows that were never updated."""
    return tf.where(ta.of_rows(sums > 0, w), x, w)


@ta.memoized
def _warmed(lr: tf.Tensor, steps: int, t: tf.Tensor) -> tf.Tensor:
    return lr * tf.minimum(ta.quotient(t, ta.scalar(float(steps), t.dtype)), 1.0) if steps else lr


@ta.memoized
def _rectified(lr: tf.Tensor, beta_2: float, silent: bool, t: tf.Tensor) -> tf.Tensor:
    rectified, ratio = ta.rectification(beta_2, 4.0, t)
    return lr * tf.where(rectified, tf.sqrt(ratio), ta.scalar(0.0 if silent else 1.0, t.dtype))


@ta.memoized
def _weight(largest_rate: tf.Tensor, t: tf.Tensor, r: float, power: float) -> tf.Tensor:
    """Returns the weight of z in the average at update `t`."""
    rate = tf.cast(largest_rate, t.dtype)
    return _power(t, r) * _power(rate, power)


def _power(x: tf.Tensor, exponent: float) -> tf.Tensor:
    return x * x if exponent == 2 else tf.pow(x, exponent)  # the same bits in a graph


def _root(v: tf.Tensor, beta_2: float, epsilon: float, t: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(v / ta.one_minus_power(beta_2, t)) + epsilon


@ta.register
class ScheduleFreeSGD(ScheduleFree):
    """Schedule-Free SGD: an average of the weights replaces the decay of the learning rate.

    ```
    rate = learning_rate * min(t / warmup_steps, 1)
    p = t^r * (the largest rate so far)^weight_lr_power,  c = p / (the sum of all p so far)
    y = momentum * x + (1 - momentum) * z          the weights that the gradient is taken at
    z <- z - rate * (g + weight_decay * y)
    x <- (1 - c) * x + c * z                       the weights to evaluate and save
    ```

    During training the model's variables hold y. At the end of `fit` they hold x, and the next
    `fit` continues from y. `use_evaluation_weights()`, `use_training_weights()` and the context
    `evaluation_weights()` exchange the two in a training loop of your own, and
    `tf_graft.EvaluationWeights` does so for validation and callbacks in `fit`. The exchange is
    exact, except with `master_weights=False`, and a checkpoint contains both. An update while the
    variables hold x first assigns y to them, but uses the gradient at x.

    Differences from the authors' program: z is not stored, so SGD keeps one slot, and `momentum`
    may be 0. (The authors' program stores z, and rounds y at each exchange.) Each row of a variable
    sums its own `p`, so a variable that you train later begins its own average. Difference from
    optax: it counts the warm-up from 0, so the learning rate of its first step is 0.

    A variable's constraint acts on y, not on x. Do not set `use_ema`: x is an average already, and
    with `use_ema` `fit` would end with an average of y.

    Args:
        learning_rate: number, at least 0, or schedule. The method is made for a constant learning
            rate that is larger than you would use with a schedule.
        momentum: the share of x in y, at most 0.999: z is computed from the difference of x and y,
            which has too few digits in float32 if they are closer to each other.
        warmup_steps: the updates in which the learning rate rises linearly; 0 for none.
        r: the power of `t` in the weights of the average.
        weight_lr_power: the power of the largest learning rate in the weights of the average.
        **common: see `tf_graft.algorithm.Common`. `weight_decay` is decoupled, and acts at y.

    Row-sparse gradients: with `sparse="lazy"` x, y and z of untouched rows stay as they are, and
    the average of a row is over its own updates; `t` counts all updates of the optimizer. With
    `sparse="exact"` an untouched row has a gradient of zero: its x and y still move toward its z.

    Example:
        >>> w = tf.Variable([1.0])
        >>> optimizer = ScheduleFreeSGD(0.5)
        >>> optimizer.apply([tf.constant([1.0])], [w])  # x, y and z are the same
        >>> optimizer.apply([tf.constant([1.0])], [w])  # z is 0 and x is 0.25
        >>> [round(x, 3) for x in w.numpy().tolist()]
        [0.225]
        >>> optimizer.use_evaluation_weights()
        >>> w.numpy().tolist()
        [0.25]

    Reference:
        Defazio et al., 2024, "The road less scheduled" (arXiv 2405.15682), algorithm 1; the weights
        of the average are those of the authors' `schedulefree`.
    """

    def __init__(
        self,
        learning_rate: ta.RateLike = 1.0,
        momentum: Share = 0.9,
        warmup_steps: Steps = 0,
        r: ta.AtLeastZero = 0.0,
        weight_lr_power: ta.AtLeastZero = 2.0,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    @property
    def beta_1(self) -> float:  # type: ignore[override]
        """The share of x in y."""
        return self.momentum

    def warmed(self, lr: tf.Tensor, t: tf.Tensor) -> tf.Tensor:
        return _warmed(lr, self.warmup_steps, t)

    def direction(self, g: tf.Tensor, s: ta.Slots, t: tf.Tensor) -> ta.Step:
        return g, {}


@ta.register
class ScheduleFreeAdamW(ScheduleFree):
    """Schedule-Free AdamW: an average of the weights replaces the decay of the learning rate.

    ```
    v <- v + (1 - beta_2) * (g^2 - v)
    u = g / (sqrt(v / (1 - beta_2^t)) + epsilon)
    ```

    The rest is as in `tf_graft.ScheduleFreeSGD`, with u in place of g and `beta_1` in place of
    `momentum`; see there for how to exchange the two kinds of weights. Schedule-Free AdamW keeps as
    many numbers as Adam.

    Keras' `ScheduleFreeAdamW` computes something else, so you cannot load its files here. On
    TensorFlow it recovers x from the z after the update, so its steps are wrong from the second on.
    It averages with the weights 1 / t, whatever the learning rate. Its weight decay moves y but not
    z. You cannot evaluate or save x with it.

    Args:
        learning_rate: number, at least 0, or schedule.
        beta_1: the share of x in y, at most 0.999.
        beta_2: decay of the mean square.
        epsilon: a term added to the root.
        warmup_steps: the updates in which the learning rate rises linearly; 0 for none.
        r: the power of `t` in the weights of the average.
        weight_lr_power: the power of the largest learning rate in the weights of the average.
        **common: see `tf_graft.algorithm.Common`. `weight_decay` is decoupled, and acts at y.

    Row-sparse gradients: as in `tf_graft.ScheduleFreeSGD`; with `sparse="lazy"` the mean square of
    untouched rows stays as it is too.

    Example:
        >>> w = tf.Variable([1.0, 1.0])
        >>> ScheduleFreeAdamW(0.25).apply([tf.constant([4.0, -0.1])], [w])
        >>> [round(x, 3) for x in w.numpy().tolist()]
        [0.75, 1.25]

    Reference:
        Defazio et al., 2024, "The road less scheduled" (arXiv 2405.15682), section 4.2.
    """

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.0025,
        beta_1: Share = 0.9,
        beta_2: ta.BelowOne = 0.999,
        epsilon: ta.AboveZero = 1e-8,
        warmup_steps: Steps = 0,
        r: ta.AtLeastZero = 0.0,
        weight_lr_power: ta.AtLeastZero = 2.0,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        return super().slots() | {"velocity": ta.Slot(within=ta.NOT_NEGATIVE)}

    def warmed(self, lr: tf.Tensor, t: tf.Tensor) -> tf.Tensor:
        return _warmed(lr, self.warmup_steps, t)

    def direction(self, g: tf.Tensor, s: ta.Slots, t: tf.Tensor) -> ta.Step:
        v = ta.running_mean(s["velocity"], g * g, self.beta_2, t)
        return g / _root(v, self.beta_2, self.epsilon, t), {"velocity": v}

    @ta.in_place(serves=lambda self: not self.weight_decay, replaces=True)
    def kernel(
        self,
        g: tf.Tensor,
        w: tf.Variable,
        s: ta.SlotVariables,
        lr: tf.Tensor,
        t: tf.Tensor,
        decay: Any = 0.0,
    ) -> None:
        v, sums, average = s["velocity"], s["weight_sum"], s["averaged_weights"]
        from_z = ta.scalar(1 - self.beta_1, g.dtype)
        c, total = self._share(sums.value(), s["largest_rate"], g, t)
        x = tf.cond(
            tf.reduce_all(sums > 0),
            average.value,
            lambda: _begun(average.value(), sums.value(), w.value()),
        )
        ta.put(v, ta.running_mean(v.value(), g * g, self.beta_2, t))
        root = tf.sqrt(ta.one_minus_power(self.beta_2, t))
        rate = from_z * self.warmed(lr, t)
        # y moves with z first, so that (y - x) / (1 - beta_1) is the distance from x to the new z
        with tf.control_dependencies([x]):
            descend_by_root(w, g, v, rate * root, self.epsilon * root)
        moved = x + ta.quotient(c, from_z) * (w.value() - x)
        descend(x - moved, w, s, ta.scalar(self.beta_1, g.dtype), momentum=None, nesterov=False)
        ta.put(average, moved)
        ta.put(sums, total)


@ta.register
class ScheduleFreeRAdam(ScheduleFree):
    """Schedule-Free RAdam: Schedule-Free AdamW with RAdam's rectification in place of a warm-up.

    ```
    v <- v + (1 - beta_2) * (g^2 - v)
    n = 2 / (1 - beta_2) - 1,  l = n - 2 * t * beta_2^t / (1 - beta_2^t)
    if l > 4:   u = g / (sqrt(v / (1 - beta_2^t)) + epsilon)
                rate = learning_rate * sqrt((l - 4) * (l - 2) * n / ((n - 4) * (n - 2) * l))
    otherwise:  u = g,  rate = 0 if silent_sgd_phase else learning_rate
    ```

    The rest is as in `tf_graft.ScheduleFreeSGD`, with u in place of g, this learning rate, and
    `beta_1` in place of `momentum`; see there for how to exchange the two kinds of weights. With
    the default `beta_2` the first four updates only update `v`.

    Args:
        learning_rate: number, at least 0, or schedule.
        beta_1: the share of x in y, at most 0.999.
        beta_2: decay of the mean square, above 0.6, because up to 0.6 no step would be rectified.
        epsilon: a term added to the root.
        r: the power of `t` in the weights of the average.
        weight_lr_power: the power of the largest learning rate in the weights of the average.
        silent_sgd_phase: whether the weights stay unchanged until `l` is above 4; if False, they
            move by SGD until then.
        **common: see `tf_graft.algorithm.Common`. `weight_decay` is decoupled, and acts at y.

    Row-sparse gradients: as in `tf_graft.ScheduleFreeSGD`; with `sparse="lazy"` the mean square of
    untouched rows stays as it is too.

    Example:
        >>> w = tf.Variable([1.0, 1.0])
        >>> optimizer = ScheduleFreeRAdam(0.25, silent_sgd_phase=False)
        >>> optimizer.apply([tf.constant([4.0, -0.1])], [w])  # the first step is the gradient's
        >>> [round(x, 3) for x in w.numpy().tolist()]
        [0.0, 1.025]

    Reference:
        `RAdamScheduleFree` of the authors' `schedulefree`; Liu et al., 2020, "On the variance of
        the adaptive learning rate and beyond" (arXiv 1908.03265).
    """

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.0025,
        beta_1: Share = 0.9,
        beta_2: Annotated[
            float, ta.Checked(ta.number, 0.6, 1, open_low=True, open_high=True)
        ] = 0.999,
        epsilon: ta.AboveZero = 1e-8,
        r: ta.AtLeastZero = 0.0,
        weight_lr_power: ta.AtLeastZero = 2.0,
        silent_sgd_phase: ta.Flag = True,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, **common)

    def slots(self) -> dict[str, ta.Slot]:
        return super().slots() | {"velocity": ta.Slot(within=ta.NOT_NEGATIVE)}

    def warmed(self, lr: tf.Tensor, t: tf.Tensor) -> tf.Tensor:
        return _rectified(lr, self.beta_2, self.silent_sgd_phase, t)

    def direction(self, g: tf.Tensor, s: ta.Slots, t: tf.Tensor) -> ta.Step:
        v = ta.running_mean(s["velocity"], g * g, self.beta_2, t)
        rectified, _ = ta.rectification(self.beta_2, 4.0, t)
        # 1 and 0, as DTensor cannot choose between tensors by a scalar
        divided = tf.cast(rectified, g.dtype)
        root = _root(v, self.beta_2, self.epsilon, t)
        return g / (divided * root + (1 - divided)), {"velocity": v}
