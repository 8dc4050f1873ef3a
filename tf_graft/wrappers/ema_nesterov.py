"""EMA-Nesterov: any optimizer, whose gradients are taken ahead along the mean displacement."""

from typing import Any, Unpack

import tensorflow as tf

from tf_graft.compose.wrapper import Around
from tf_graft.core.arguments.declared import BelowOne, BelowOneOrSchedule
from tf_graft.core.arguments.options import Common
from tf_graft.core.arguments.registry import register
from tf_graft.core.state.point import Point, Step
from tf_graft.core.state.slots import Slot
from tf_graft.core.tensors import numerics
from tf_graft.core.two_weights import TwoWeights
from tf_graft.core.types import RateLike


@register
class EMANesterov(Around, TwoWeights):
    """Takes gradients where the weights will soon be, as the mean of past displacements says.

    ```
    x' = y + the optimizer's step at y
    m <- momentum * m + (1 - momentum) * (x' - x)
    x <- x'                                             the weights to evaluate and save
    y <- x + ahead * m                                  the weights that the gradient is taken at
    ```

    Nesterov's momentum looks ahead along the last steps of SGD. This wrapper looks ahead along a
    mean over many steps, for the steps of any optimizer. Where steps agree, x moves
    `1 / (1 - ahead)` times as far as with the optimizer alone, so a smaller learning rate may
    serve.

    During training the model's variables hold y. At the end of `fit` they hold x, and the next
    `fit` continues from y. `use_evaluation_weights()`, `use_training_weights()` and the context
    `evaluation_weights()` exchange the two in a training loop of your own, and
    `tf_graft.EvaluationWeights` does so for validation and callbacks in `fit`. The exchange is
    exact, except with `master_weights=False`, and a checkpoint contains both. A variable's
    constraint acts on y, not on x. `EMANesterov` must be the outermost optimizer.

    In the authors' record, `ahead` is 0.3 times the learning rate divided by the highest learning
    rate. It is 0 at first, until `m` is a mean, and again in the last quarter. Keras'
    `PiecewiseConstantDecay([300, 1950], [0.0, 0.3, 0.0])` is such a schedule, except that it does
    not follow the learning rate.

    Args:
        optimizer: an optimizer of tf_graft or Keras, a name or a config.
        momentum: decay of the mean displacement.
        ahead: how many mean displacements y is ahead of x: number, from 0 to below 1, or schedule.
        learning_rate: replaces the optimizer's learning rate, if not None.
        **common: see `tf_graft.algorithm.Common`; those given to the optimizer are taken over. Do
            not set `use_ema`, with which `fit` would end with an average of y.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range.

    Row-sparse gradients: with `sparse="lazy"` x, y and the mean displacement of untouched rows stay
    as they are. With `sparse="exact"` an untouched row has a gradient of zero: it still moves on.

    Example:
        >>> from tf_graft.optimizers import SGD
        >>> w = tf.Variable([1.0])
        >>> optimizer = EMANesterov(SGD(0.5), momentum=0.5, ahead=0.5)
        >>> optimizer.apply([tf.constant([1.0])], [w])  # x is 0.5, and m is -0.25
        >>> w.numpy().tolist()
        [0.375]
        >>> optimizer.use_evaluation_weights()
        >>> w.numpy().tolist()
        [0.5]

    Reference:
        "EMA-Nesterov: stabilizing Nesterov's lookahead for accelerated deep learning optimization",
        2026 (arXiv 2605.25395); result 39 of the optimization benchmark of modded-nanogpt
        (github.com/KellerJordan/modded-nanogpt, records/track_3_optimization).
    """

    def __init__(
        self,
        optimizer: Any,
        momentum: BelowOne = 0.99,
        ahead: BelowOneOrSchedule = 0.3,
        learning_rate: RateLike | None = None,
        **common: Unpack[Common],
    ):
        super().__init__(optimizer, learning_rate, **common)
        self.idle = False

    def slots(self) -> dict[str, Slot]:
        return super().slots() | {"displacement": Slot()}

    def outer(self, p: Point, d: tf.Tensor) -> Step:
        total, x, m = (
            tf.convert_to_tensor(p.s[role])
            for role in ("weight_sum", "averaged_weights", "displacement")
        )
        before = tf.where(numerics.of_rows(total > 0, p.w), x, p.w)
        after = p.w + d
        m = numerics.running_mean(m, after - before, self.momentum, p.t)
        slots = {"averaged_weights": after, "weight_sum": total + 1, "displacement": m}
        # a graph would add the weights, `d` and what follows in another order
        return d - -numerics.current(self.ahead, p.t) * m, slots
