"""The Transformer's learning rate, also called Noam."""

import keras
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.schedules.schedule import Schedule, precise


@keras.saving.register_keras_serializable(package="tf_graft")
class TransformerSchedule(Schedule):
    """Rises linearly for `warmup_steps` steps, then falls as the inverse root of the step.

        n = t + 1
        scale = learning_rate * coefficient * d_model^-0.5
        rate(t) = min(max_lr, scale * min(n * warmup_steps^-1.5, n^-0.5))

    The paper counts steps from 1 and Keras from 0, so n is t + 1. The peak,
    `scale * warmup_steps^-0.5`, is at t = warmup_steps - 1. The paper has no `learning_rate`,
    `coefficient` or `max_lr`.

    Differences from OpenSeq2Seq's `transformer_policy`:
        * All arguments but `learning_rate` are keyword-only.
        * There is no `dtype`; there, float16 made the rate 0 from step 65520 on.

    Args:
        learning_rate: A factor, at least 0. Default: 1.
        d_model: Width of the model, at least 1.
        warmup_steps: Length of the warm-up in steps, at least 0; 0 and 1 both mean none.
        max_lr: The upper limit of the learning rate, above 0. Default: None, no limit.
        coefficient: Another factor, at least 0; OpenSeq2Seq advises 0.002 for Adam. Default: 1.

    Raises:
        TypeError: If an argument is not of its type.
        ValueError: If an argument lies outside its range.

    Example:
        >>> schedule = Noam(d_model=4, warmup_steps=4)
        >>> [float(schedule(step)) for step in (0, 1, 3, 15)]
        [0.0625, 0.125, 0.25, 0.125]

    Reference:
        Vaswani et al., Attention Is All You Need, arXiv:1706.03762, equation 3.
    """

    def __init__(
        self,
        learning_rate: float = 1.0,
        *,
        d_model: int,
        warmup_steps: int,
        max_lr: float | None = None,
        coefficient: float = 1.0,
    ):
        owner = type(self).__name__
        self.learning_rate = checks.number(owner, "learning_rate", learning_rate, low=0)
        self.d_model = checks.integer(owner, "d_model", d_model, low=1)
        self.warmup_steps = checks.integer(owner, "warmup_steps", warmup_steps, low=0)
        self.max_lr = checks.number(owner, "max_lr", max_lr, low=0, open_low=True, optional=True)
        self.coefficient = checks.number(owner, "coefficient", coefficient, low=0)
        checks.number(owner, "learning_rate * coefficient", self.learning_rate * self.coefficient)

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the rate of arXiv:1706.03762, equation 3, scaled and limited to `max_lr`."""
        n = precise(t + 1)
        scale = self.learning_rate * self.coefficient * self.d_model**-0.5
        # 0^-1.5 is undefined, and a warm-up of one step is over from n = 1 on.
        rate = scale * tf.minimum(n * max(self.warmup_steps, 1) ** -1.5, n**-0.5)
        return rate if self.max_lr is None else tf.minimum(rate, self.max_lr)


Noam = TransformerSchedule
