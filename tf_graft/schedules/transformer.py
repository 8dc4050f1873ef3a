"""The Transformer's learning rate, also called Noam."""

import keras
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.schedules.schedule import Schedule, precise


@keras.saving.register_keras_serializable(package="tf_graft")
class TransformerSchedule(Schedule):
    """Rises linearly for `warmup_steps` steps, then falls as one over the root of the step.

        n = t + 1
        scale = learning_rate * coefficient * d_model^-0.5
        rate(t) = min(max_lr, scale * min(n * warmup_steps^-1.5, n^-0.5))

    The paper counts steps from 1, Keras from 0, hence n. The peak, `scale * warmup_steps^-0.5`, is
    at t = warmup_steps - 1. `learning_rate`, `coefficient` and `max_lr` are not in the paper.

    Differences from OpenSeq2Seq's `transformer_policy`:
        * All arguments but `learning_rate` are given by name.
        * No `dtype`: there float16 put the rate at 0 from step 65520 on.

    Args:
        learning_rate: A factor, at least 0. Default: 1.
        d_model: Width of the model, at least 1.
        warmup_steps: Length of the warm-up in steps, at least 0; 0 and 1 both mean none.
        max_lr: The rate is cut off at this, above 0. Default: None, no limit.
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

    def __init__(self, learning_rate=1.0, *, d_model, warmup_steps, max_lr=None, coefficient=1.0):
        owner = type(self).__name__
        self.learning_rate = checks.number(owner, "learning_rate", learning_rate, low=0)
        self.d_model = checks.integer(owner, "d_model", d_model, low=1)
        self.warmup_steps = checks.integer(owner, "warmup_steps", warmup_steps, low=0)
        self.max_lr = checks.number(owner, "max_lr", max_lr, low=0, open_low=True, optional=True)
        self.coefficient = checks.number(owner, "coefficient", coefficient, low=0)
        checks.number(owner, "learning_rate * coefficient", self.learning_rate * self.coefficient)

    def rate(self, t):
        """The rate of arXiv:1706.03762, equation 3, scaled and cut off."""
        n = precise(t + 1)
        scale = self.learning_rate * self.coefficient * self.d_model**-0.5
        # 0^-1.5 is no number; from n = 1 on, a warm-up of one step is already over.
        rate = scale * tf.minimum(n * max(self.warmup_steps, 1) ** -1.5, n**-0.5)
        return rate if self.max_lr is None else tf.minimum(rate, self.max_lr)


Noam = TransformerSchedule
