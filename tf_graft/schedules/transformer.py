"""The Transformer's learning rate, also called Noam."""

import keras
import tensorflow as tf

from tf_graft.core.arguments.declared import AtLeastZero, Count
from tf_graft.core.checks import number
from tf_graft.schedules.schedule import Schedule, Steps, UpperLimit, precise


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
        learning_rate: a factor.
        d_model: width of the model.
        warmup_steps: length of the warm-up in steps; 0 and 1 both mean none.
        max_lr: the upper limit of the learning rate; None for no limit.
        coefficient: another factor; OpenSeq2Seq advises 0.002 for Adam.

    Example:
        >>> schedule = Noam(d_model=4, warmup_steps=4)
        >>> [float(schedule(step)) for step in (0, 1, 3, 15)]
        [0.0625, 0.125, 0.25, 0.125]

    Reference:
        Vaswani et al., Attention Is All You Need, arXiv:1706.03762, equation 3.
    """

    def __init__(
        self,
        learning_rate: AtLeastZero = 1.0,
        *,
        d_model: Count,
        warmup_steps: Steps,
        max_lr: UpperLimit = None,
        coefficient: AtLeastZero = 1.0,
    ):
        super().__init__()
        factor = self.learning_rate * self.coefficient
        number(type(self).__name__, "learning_rate * coefficient", factor)

    def rate(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the rate of arXiv:1706.03762, equation 3, scaled and limited to `max_lr`."""
        n = precise(t + 1)
        scale = self.learning_rate * self.coefficient * self.d_model**-0.5
        # 0^-1.5 is undefined, and a warm-up of one step is over from n = 1 on.
        rate = scale * tf.minimum(n * max(self.warmup_steps, 1) ** -1.5, n**-0.5)
        return rate if self.max_lr is None else tf.minimum(rate, self.max_lr)


Noam = TransformerSchedule
