"""A loss scale that shrinks on overflows and grows again after a while."""

from typing import Annotated

import keras
import tensorflow as tf

from tf_graft.core.arguments.checked import Checked
from tf_graft.core.arguments.declared import Count
from tf_graft.core.checks import integer, number
from tf_graft.core.state.slots import COUNTS, Slot
from tf_graft.core.tensors import numerics
from tf_graft.scaling.scaler import SCALES, LossScaler, Scale, State, refuse_crossed


@keras.saving.register_keras_serializable(package="tf_graft")
class BackoffScaler(LossScaler):
    """Shrinks the scale on an overflow and grows it after a window of steps without one.

    ```
    overflow:                                            scale <- scale / step_factor
    step_window steps since an overflow or a growth:     scale <- scale * step_factor
    always:                      scale <- min(max(scale, scale_min), scale_max)
    ```

    The scale starts at `scale_max`. The first `hysteresis` overflows only restart the window; later
    ones shrink the scale. A whole window without an overflow sets their count back to zero.

    Differences from OpenSeq2Seq: `last_overflow_iteration` is always the iteration of the overflow,
    counted from 0; in OpenSeq2Seq it was sometimes the next one. The ranges of arguments are
    checked. Differences from NVIDIA's `DynamicGradScaler` (Megatron-LM): its `hysteresis` includes
    the overflow that shrinks the scale, so `hysteresis=2` there is `hysteresis=1`
    here, and it has no `scale_max`.

    Args:
        scale_min: the least scale, above 0, in [2^-126, 2^126].
        scale_max: the largest scale, at least `scale_min`, at most 2^126. Default 2^14.
        step_factor: the factor by which the scale shrinks and grows.
        step_window: steps without an overflow before the scale grows.
        hysteresis: overflows tolerated before the scale shrinks.

    Example:
        >>> scaler = BackoffScaler(scale_max=64.0)
        >>> s = {role: tf.constant(slot.fill, slot.dtype) for role, slot in scaler.slots().items()}
        >>> s = scaler.update(s, finite=tf.constant(False), amax=tf.constant(0.0))
        >>> float(scaler.scale(s))
        32.0

    Reference:
        OpenSeq2Seq, `automatic_loss_scaler.BackoffScaler` (arXiv:1805.10387); NVIDIA, "Train with
        mixed precision", on choosing a scaling factor.
    """

    def __init__(
        self,
        scale_min: Scale = 1.0,
        scale_max: Scale = 2.0**14,
        step_factor: Annotated[float, Checked(number, 1, open_low=True)] = 2.0,
        step_window: Count = 2000,
        hysteresis: Annotated[int, Checked(integer, 0)] = 0,
    ):
        super().__init__()
        refuse_crossed(type(self).__name__, scale_min, scale_max)

    def slots(self) -> dict[str, Slot]:
        return {
            "scale": Slot(self.scale_max, "scalar", "float32", SCALES),
            "iteration": Slot(0, "scalar", "int64", COUNTS),
            "last_overflow_iteration": Slot(-1, "scalar", "int64", (-1, COUNTS[1])),
            "tolerated": Slot(0, "scalar", "int64", COUNTS),  # overflows since a whole window
        }

    def update(self, s: State, finite: tf.Tensor, amax: tf.Tensor) -> State:
        k, last, tolerated = s["iteration"], s["last_overflow_iteration"], s["tolerated"]
        grows = finite & tf.equal((k - last) % self.step_window, 0)
        shrinks = ~finite & (tolerated >= self.hysteresis)
        scale = tf.where(grows, s["scale"] * self.step_factor, s["scale"])
        scale = tf.where(shrinks, numerics.quotient(s["scale"], self.step_factor), scale)
        counted = tf.where(finite | shrinks, tolerated, tolerated + 1)
        return {
            "scale": tf.clip_by_value(scale, self.scale_min, self.scale_max),
            "iteration": k + 1,
            "last_overflow_iteration": tf.where(finite, last, k),
            "tolerated": tf.where(grows, tf.zeros_like(counted), counted),
        }
