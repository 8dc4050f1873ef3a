"""LARC: scales the gradients of another optimizer layer by layer."""

from typing import Annotated, Any, Unpack

import tensorflow as tf

from tf_graft.compose.wrapper import Around
from tf_graft.core import checks, patterns
from tf_graft.core.arguments import options
from tf_graft.core.arguments.checked import Checked
from tf_graft.core.arguments.declared import AboveZero, AtLeastZero, Fraction, Patterns
from tf_graft.core.arguments.registry import register
from tf_graft.core.state.point import Point
from tf_graft.core.tensors import numerics
from tf_graft.core.tensors.shared_functions import call_shared

MODES = ("clip", "scale")


@register
class LARC(Around):
    """LARC: scales each variable's gradient by a ratio of norms, then applies another optimizer.

    ```
    local = eta * ||w|| / (||g|| + epsilon)
    r = min(max(local / learning_rate, min_update), 1)           mode="clip"
    r = max(local, min_update)                                   mode="scale"
    g <- r * g                                       then the step of `optimizer`
    ```

    Plain SGD therefore has the learning rate `min(learning_rate, local)`, or
    `learning_rate * local`. LARC hardly changes an optimizer whose steps do not depend on the
    length of gradients, such as Adam.

    LARC has no learning rate of its own: `learning_rate` reads and sets that of the optimizer, for
    callbacks too. Around an `AdaGraft` or `LayerwiseRates`, the learning rate in `r` is the product
    of that optimizer's own rate and the rate inside it: the magnitude optimizer's, or that of the
    wrapped optimizer times the variable's factor.

    Differences from OpenSeq2Seq's: where `||w||` is zero, `r` is 1, so that a bias that starts at
    zero is not frozen (there `r` is `min_update`); a learning rate of zero gives no NaN; a NaN
    gradient, if it is applied, stays in its entry; variables can be excluded; clipping is possible
    too, before the ratio. OpenSeq2Seq's Momentum had the learning rate outside of the momentum;
    with a constant learning rate the two are equal.

    Args:
        optimizer: an optimizer of tf_graft or Keras, a name or a config.
        eta: the trust coefficient.
        mode: `"clip"` or `"scale"`.
        min_update: the least ratio.
        epsilon: a term added to the norm of the gradient.
        exclude_from_layer_adaptation: regular expressions; a variable whose path contains a match
            has `r = 1`.
        learning_rate: sets the optimizer's learning rate, if not None: a number, at least 0, or
            schedule. A number cannot be set in place of a schedule.
        **common: see `tf_graft.algorithm.Common`; those given to the optimizer are taken over.
            `weight_decay` sets the optimizer's; exclusions from it add up.

    Raises:
        TypeError: an argument of the wrong type; an optimizer that cannot be wrapped.
        ValueError: an argument out of range.

    Row-sparse gradients: the norms are those of the touched rows.

    Example:
        >>> from tf_graft.optimizers import SGD
        >>> w = tf.Variable([3.0, 4.0])  # of norm 5: at most a tenth of that a step
        >>> LARC(SGD(1.0), eta=0.1).apply([tf.constant([0.0, 100.0])], [w])
        >>> [round(x, 4) for x in w.numpy().tolist()]
        [3.0, 3.5]

    Reference:
        You, Gitman and Ginsburg, 2017, "Large batch training of convolutional networks" (arXiv
        1708.03888), algorithm 1, on gradients, as in NVIDIA's OpenSeq2Seq.
    """

    def __init__(
        self,
        optimizer: Any,
        eta: AboveZero = 0.02,
        mode: Annotated[str, Checked(checks.choice, MODES)] = "clip",
        min_update: Fraction = 1e-7,
        epsilon: AtLeastZero = 1e-7,
        exclude_from_layer_adaptation: Patterns = None,
        learning_rate: Any = None,
        **common: Unpack[options.Common],
    ):
        super().__init__(optimizer, learning_rate, **common)
        self.rowwise = False

    def inner(self, p: Point) -> Point:
        inner = super().inner(p)
        if not self.adapts(p.path):
            return inner
        rate = self.optimizer.rule.step_rate(inner)
        ratio = call_shared(self.ratio, p.g, p.w, rate, of=lambda: ("ratio", self.rule))
        return inner._replace(g=numerics.product(p.g, ratio))

    def adapts(self, path: str) -> bool:
        """Returns whether the variable of a path is not excluded."""
        return not patterns.matches(path, self.exclude_from_layer_adaptation)

    def ratio(self, g: tf.Tensor, w: tf.Tensor, lr: tf.Tensor) -> tf.Tensor:
        """Returns `r` for a gradient, weights and the learning rate, a scalar."""
        w_norm = numerics.length(w)
        local = numerics.quotient(self.eta * w_norm, numerics.length(g) + self.epsilon)
        one = tf.ones_like(local)
        if self.mode == "clip":
            # a learning rate of at most `local`, such as zero, is not clipped
            clipped = tf.maximum(numerics.quotient(local, lr), self.min_update)
            result = tf.where(local < lr, clipped, one)
        else:
            result = tf.maximum(local, self.min_update)
        return tf.where((w_norm > 0) & tf.math.is_finite(local), result, one)
