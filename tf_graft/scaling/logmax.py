"""A loss scale from the statistics of the gradients' largest magnitudes."""

import math
import sys
from typing import Annotated, TypeAlias

import keras
import tensorflow as tf

from tf_graft.core.arguments.checked import Checked
from tf_graft.core.checks import number
from tf_graft.core.state.slots import COUNTS, NOT_NEGATIVE, Slot
from tf_graft.core.tensors import numerics
from tf_graft.scaling.scaler import LARGEST, SCALES, LossScaler, Scale, State, refuse_crossed

LEAST_NORMAL = 2.0**-126  # TensorFlow mostly flushes smaller float32 numbers to zero
Beta: TypeAlias = Annotated[float, Checked(number, 0, 1, open_high=True, float64=True)]


@keras.saving.register_keras_serializable(package="tf_graft")
class LogMaxScaler(LossScaler):
    """Chooses a scale at which the gradients' largest magnitude is unlikely to reach `2^log_max`.

    ```
    x = log2(amax), log_max on an overflow
    mu = average of x by beta1
    sigma^2 = average of x^2 - (average of x)^2, both by beta2
    scale <- min(max(2^(log_max - (mu + overflow_std_dev * sigma)), scale_min), scale_max)
    ```

    The averages are exponential and bias-corrected. A gradient of zeros, or of magnitudes below
    float32's smallest normal number, changes nothing. The scale starts at 1, or at the nearest
    bound.

    Differences from OpenSeq2Seq: an overflow adds `log_max` to the averages; OpenSeq2Seq added
    `2^log_max`, which held the scale at `scale_min` for thousands of steps. `log_max` is the
    target; there the target was always 16. A gradient of zeros is ignored; there it made the scale
    NaN for good. Averages and variance are stored with bias correction, so that no digits are lost.
    The ranges of arguments are checked. NVIDIA's apex and Megatron-LM have no such scaler.

    Args:
        scale_min: the least scale, above 0, in [2^-126, 2^126].
        scale_max: the largest scale, at least `scale_min`, at most 2^126. Default 2^14.
        log_max: log2 of the magnitude that gradients should not reach; 16 for float16, 128 for
            bfloat16.
        beta1: decay of the average mu.
        beta2: decay of the averages in sigma.
        overflow_std_dev: the margin in units of sigma, in [0, 2^126]. Default 3.09: if x is
            normally distributed, one x in a thousand exceeds it.

    Example:
        >>> scaler = LogMaxScaler()
        >>> s = {role: tf.constant(slot.fill, slot.dtype) for role, slot in scaler.slots().items()}
        >>> s = scaler.update(s, finite=tf.constant(True), amax=tf.constant(64.0))  # 2^6
        >>> round(float(scaler.scale(s)), 2)  # 2^(16 - 6)
        1024.0

    Reference:
        OpenSeq2Seq, `automatic_loss_scaler.LogMaxScaler` (arXiv:1805.10387); variance without
        cancellation: Welford, 1962, weighted as in West, 1979.
    """

    needs_amax = True

    def __init__(
        self,
        scale_min: Scale = 1.0,
        scale_max: Scale = 2.0**14,
        log_max: Annotated[float, Checked(number, -126, 128, float64=True)] = 16.0,
        beta1: Beta = 0.99,
        beta2: Beta = 0.999,
        overflow_std_dev: Annotated[float, Checked(number, 0, LARGEST, float64=True)] = 3.09,
    ):
        super().__init__()
        refuse_crossed(type(self).__name__, scale_min, scale_max)

    def slots(self) -> dict[str, Slot]:
        start = min(max(1.0, self.scale_min), self.scale_max)
        return {
            "scale": Slot(start, "scalar", "float32", SCALES),
            "iteration": Slot(0, "scalar", "int64", COUNTS),  # of updates that were not ignored
            "mean": Slot(0, "scalar", "float32"),
            "slow_mean": Slot(0, "scalar", "float32"),
            "variance": Slot(0, "scalar", "float32", NOT_NEGATIVE),
        }

    def update(self, s: State, finite: tf.Tensor, amax: tf.Tensor) -> State:
        fits = finite & (amax < math.inf)  # False for NaN
        measured = fits & (amax >= LEAST_NORMAL)
        x = tf.where(measured, _log2(tf.where(measured, amax, 1.0)), self.log_max)

        iteration = s["iteration"] + 1
        t = tf.cast(iteration, tf.float32)
        mu = s["mean"] + _share(self.beta1, t) * (x - s["mean"])
        a, d = _share(self.beta2, t), x - s["slow_mean"]
        variance = (1.0 - a) * (s["variance"] + a * d * d)
        # Grouped so that a tf.function, which folds constants, computes the same.
        exponent = (self.log_max - mu) - self.overflow_std_dev * tf.sqrt(variance)
        new = {
            "scale": tf.clip_by_value(tf.pow(2.0, exponent), self.scale_min, self.scale_max),
            "iteration": iteration,
            "mean": mu,
            "slow_mean": s["slow_mean"] + a * d,
            "variance": variance,
        }
        zero = fits & ~measured
        return {role: tf.where(zero, s[role], value) for role, value in new.items()}


def _share(beta: float, t: tf.Tensor) -> tf.Tensor:
    """`(1 - beta) / (1 - beta^t)`: the newest entry's weight in a bias-corrected average."""
    log_beta = math.log(max(beta, sys.float_info.min))
    return tf.minimum(numerics.quotient(1.0 - beta, -tf.math.expm1(t * log_beta)), 1.0)


def _log2(x: tf.Tensor) -> tf.Tensor:
    return tf.math.log(x) * (1.0 / math.log(2.0))
