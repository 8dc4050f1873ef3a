"""Mixed precision: scales the loss and skips steps that overflow."""

from typing import Any, Unpack

import keras

from tf_graft.compose.to_keras import Parts, parts, refused
from tf_graft.compose.wrapper import OF_THE_OPTIMIZER, Around
from tf_graft.core import keras_contract
from tf_graft.core.arguments.options import Common
from tf_graft.core.arguments.registry import register
from tf_graft.core.checks import shown
from tf_graft.core.keras_optimizer import written
from tf_graft.core.types import Config, OptimizerLike, RateLike
from tf_graft.scaling import registry
from tf_graft.scaling.fixed import FixedScaler
from tf_graft.scaling.loss_scaling import LossScaling, ScaledOnce, variables_of
from tf_graft.scaling.scaler import LossScaler


@register
class MixedPrecision(Around, keras_contract.ScalesLoss):
    """An optimizer for losses that are computed in half precision.

    ```
    g = gradient of (scale * loss)          by `scale_loss`; `fit` calls it
    finite(g):   w <- w + step(g / scale)   otherwise nothing moves
    scale <- scaler.update(finite, max |g / scale|)
    ```

    Gradients are summed over replicas, then divided by the scale in float32. One check for overflow
    covers all replicas and variables. float16 and bfloat16 variables have float32 masters and
    slots, as with every optimizer here; float32 variables, which Keras' mixed policies use, need no
    masters. bfloat16 needs no loss scale: give 1.

    Differences from OpenSeq2Seq's `MixedPrecisionOptimizerWrapper`: steps under a fixed scale are
    checked too, and the scale may be an int; clipping acts on unscaled gradients, and the scaler
    sees gradients before they are clipped.

    Args:
        optimizer: an optimizer of tf_graft or Keras, a name or a config. This optimizer takes over
            its options for clipping, averaging, accumulation and so on.
        loss_scale: a number for a fixed scale, `"backoff"`, `"logmax"`, a scaler of
            `tf_graft.scaling` or its config; None for 1. Default `"backoff"`, which suits float16.
        learning_rate: replaces the optimizer's learning rate, if not None.
        **common: see `tf_graft.algorithm.Common`; these replace the given optimizer's options.
            `weight_decay` replaces its weight decay; exclusions from weight decay add up.

    Raises:
        TypeError: an argument of the wrong type; an optimizer that cannot be wrapped.
        ValueError: an argument out of range; an optimizer that scales the loss itself.

    Row-sparse gradients: as in the given optimizer; the check for overflow reads only the touched
    rows.

    Example:
        >>> import tensorflow as tf
        >>> from tf_graft.optimizers import SGD
        >>> w = tf.Variable([1.0])
        >>> optimizer = MixedPrecision(SGD(0.5), loss_scale=8)
        >>> float(optimizer.scale_loss(tf.constant(2.0)))
        16.0
        >>> optimizer.apply([tf.constant([8.0])], [w])
        >>> w.numpy().tolist()
        [0.5]

    Reference:
        Micikevicius et al., 2018, "Mixed precision training", section 3; NVIDIA's OpenSeq2Seq
        (arXiv 1805.10387).
    """

    column = "mixed"
    reshapes = False
    loss_scale_factor: Any = ScaledOnce()

    def __init__(
        self,
        optimizer: OptimizerLike | str | Config,
        loss_scale: Any = "backoff",
        learning_rate: RateLike | None = None,
        **common: Unpack[Common],
    ):
        super().__init__(optimizer, learning_rate, **common)
        self.scaler = _scaler(type(self).__name__, loss_scale)
        held = variables_of(self.scaler, self.state.add_scalar)
        self.engine.scaling = LossScaling(self.scaler, held)

    def get_config(self) -> Config:
        scaler = keras.saving.serialize_keras_object(self.scaler)
        return super().get_config() | {"loss_scale": scaler, "loss_scale_factor": None}

    def __repr__(self) -> str:
        scaled = {"loss_scale": self.scaler, "loss_scale_factor": None}
        return written(self, OF_THE_OPTIMIZER | scaled)


@parts.register
def _(optimizer: MixedPrecision) -> Parts:
    """Returns the parts for `to_keras`."""
    scaler = optimizer.scaler
    if not isinstance(scaler, FixedScaler):
        why = (
            "the scale of Keras' LossScaleOptimizer has no limits; give a fixed one, or put that "
            "class around to_keras of the optimizer inside"
        )
        raise refused(optimizer, "loss_scale", scaler, why)
    scale = None if scaler.loss_scale == 1 else scaler.loss_scale
    return Parts(optimizer, optimizer.optimizer, "optimizer", scale)


def _scaler(owner: str, given: Any) -> LossScaler:
    try:
        return registry.get(given)
    except (TypeError, ValueError) as error:
        where = f"{owner}(loss_scale={shown(given)})"
        raise type(error)(f"{where}: {error}") from None
