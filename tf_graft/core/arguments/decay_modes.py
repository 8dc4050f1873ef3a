"""Which entries decay and how fast, which `weight_decay_mode` takes."""

from typing import Any

import keras
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.core.arguments.plain import Plain, configured
from tf_graft.core.checks import shown
from tf_graft.core.tensors import numerics


class DecayMode(Plain):
    """Decoupled weight decay as it is without a mode: `learning_rate * weight_decay * w`.

    Attributes:
        reads_step: whether the decay depends on the optimizer's step.
    """

    reads_step = False

    def rate(self, lr: tf.Tensor) -> tf.Tensor:
        """Returns the factor of the weight decay that comes from the learning rate."""
        return lr

    def acting(self, decay: tf.Tensor, w: tf.Tensor, d: tf.Tensor) -> tf.Tensor:
        """Returns what is taken from the weights.

        Args:
            decay: `rate * weight_decay * w`, of the shape of `w`.
            w: the weights.
            d: the signed step without weight decay, of the same shape.
        """
        return decay


UNCHANGED = DecayMode()


@keras.saving.register_keras_serializable(package="tf_graft")
class CautiousDecay(DecayMode):
    """Weight decay only of entries that the optimizer's own step does not lengthen.

        d = the optimizer's step, without weight decay
        w <- w + d - learning_rate * weight_decay * 1[d * w <= 0] * w

    A step that makes a weight larger is then made in full, so that weight decay does not move the
    minimum that is found. Entries whose step is 0 decay. The mask takes no memory between steps.
    Kernels that work in place do not update variables that decay in this way, because the step must
    be known first. In `tf_graft.Hyperball`, d is the optimizer's step after it is scaled to
    `learning_rate` times the radius.

    Row-sparse gradients: only touched rows decay, as with any weight decay. With `sparse="exact"`
    and `"lazy_decay"`, rows whose step is 0 decay, too.

    Example:
        >>> from tf_graft.optimizers import SGD
        >>> w = tf.Variable([2.0, 2.0])
        >>> optimizer = SGD(0.5, weight_decay=0.5, weight_decay_mode=CautiousDecay())
        >>> optimizer.apply([tf.constant([1.0, -1.0])], [w])  # 2 - 0.5 - 0.5, and 2 + 0.5
        >>> w.numpy().tolist()
        [1.0, 2.5]

    Reference:
        Chen et al., 2025, "Cautious weight decay" (arXiv 2510.12402).
    """

    reads_step = True

    def acting(self, decay: tf.Tensor, w: tf.Tensor, d: tf.Tensor) -> tf.Tensor:
        """Returns the decay, times 0 where the step lengthens the weight."""
        lengthens = tf.sign(d) * tf.sign(w) > 0  # the product of small numbers would be 0
        return decay * tf.cast(tf.logical_not(lengthens), decay.dtype)


@keras.saving.register_keras_serializable(package="tf_graft")
class CorrectedDecay(DecayMode):
    """Weight decay that follows the square of the learning rate's schedule, as in AdamC.

        w <- w + d - learning_rate * (learning_rate / max_learning_rate) * weight_decay * w

    The length of weights before a normalization settles where weight decay and gradients balance,
    which depends on `weight_decay / learning_rate`. As the learning rate falls to 0, plain weight
    decay makes such weights short and their gradients long; with this mode, the ratio stays the
    same. At the highest learning rate the decay is the same as without a mode.

    The paper corrects the weights of layers that a normalization follows, and leaves the last layer
    as it is. A mode applies to all variables of an optimizer: exclude others with
    `exclude_from_weight_decay`, or give them an optimizer of their own in
    `tf_graft.MultiOptimizer`.

    Args:
        max_learning_rate: the highest learning rate of the schedule, above 0. With
            `CosineDecay(0.0, steps, warmup_target=0.003, warmup_steps=100)` of Keras it is 0.003,
            which is reached at the end of the warm-up. The learning rate in the equation contains
            the variable's multiplier, so the ratio of weight decay to learning rate is the same for
            all variables.

    Raises:
        TypeError, ValueError: the argument has the wrong type or is out of range.

    Row-sparse gradients: only touched rows decay, as with any weight decay; all rows decay with
    `sparse="exact"` or `"lazy_decay"`.

    Example:
        >>> from tf_graft.optimizers import SGD
        >>> rate = keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.5, 0.25])
        >>> w, mode = tf.Variable(4.0), CorrectedDecay(max_learning_rate=0.5)
        >>> optimizer = SGD(rate, weight_decay=0.5, weight_decay_mode=mode)
        >>> for _ in range(2):  # 4 - 0.5 * 0.5 * 4, and 3 - 0.25 * (0.25 / 0.5) * 0.5 * 3
        ...     optimizer.apply([tf.constant(0.0)], [w])
        >>> float(w)
        2.8125

    Reference:
        Defazio, 2025, "Why gradients rapidly increase near the end of training" (arXiv 2506.02285).
    """

    def __init__(self, max_learning_rate: float):
        owner, name = "CorrectedDecay", "max_learning_rate"
        self.max_learning_rate = checks.number(owner, name, max_learning_rate, 0, open_low=True)

    def rate(self, lr: tf.Tensor) -> tf.Tensor:
        """Returns the learning rate times its share of the highest one."""
        return lr * numerics.quotient(lr, self.max_learning_rate)


NAMED: dict[str, type[DecayMode]] = {
    "cautious_decay": CautiousDecay,
    "corrected_decay": CorrectedDecay,
}


def checked(owner: str, name: str, given: Any) -> DecayMode | None:
    """Returns a mode of weight decay; None for none.

    Args:
        owner: the optimizer's class.
        name: the argument.
        given: a mode; also its name or config, of Keras or a flat one such as
            `{"name": "corrected_decay", "max_learning_rate": 0.1}`.

    Raises:
        TypeError: the argument is something else.
        ValueError: a name or config describes no mode, or an argument is out of range.
    """
    if given is None or isinstance(given, DecayMode):
        return given
    where = f"{owner}({name}={shown(given)})"
    if isinstance(given, str):
        given = {"name": given}
    if isinstance(given, dict):
        return configured(where, given, DecayMode, "mode of weight decay", NAMED)
    raise TypeError(
        f"{where}: {name} must be None, tf_graft.CautiousDecay() or "
        "tf_graft.CorrectedDecay(max_learning_rate=...)."
    )
