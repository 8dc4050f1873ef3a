"""Mixed precision: the loss is scaled, and a step that overflows is not made."""

from typing import Any, Unpack

import keras
import tensorflow as tf

from tf_graft.core import keras_contract, numerics, replicas, write
from tf_graft.core.arguments import Common
from tf_graft.core.checks import shown
from tf_graft.core.parameters import Parameter
from tf_graft.core.registry import register
from tf_graft.core.wrapper import LIFTED, PIPELINE, Around, refuse_built
from tf_graft.scaling import registry
from tf_graft.scaling.master_regularizer import MasterRegularizer
from tf_graft.scaling.scaler import State


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value)


@register
class MixedPrecision(Around, keras_contract.ScalesLoss):
    """An optimizer for losses that are computed in half precision.

    ```
    g = gradient of (scale * loss)          by `scale_loss`; `fit` calls it
    finite(g):   w <- w + step(g / scale)   otherwise nothing moves
    scale <- scaler.update(finite, max |g / scale|)
    ```

    Gradients are summed over replicas, then divided by the scale in float32; whether they are
    finite is judged once for all replicas and variables. float16 and bfloat16 variables have
    float32 masters and slots, as with every optimizer here; float32 variables, as Keras' mixed
    policies have them, need none. bfloat16 needs no scale: leave it at 1.

    From OpenSeq2Seq's `MixedPrecisionOptimizerWrapper`: a fixed scale is judged too, and may be an
    int; clipping sees unscaled gradients, and the scaler sees them before they are clipped.

    Args:
        optimizer: an optimizer of tf_graft or Keras, a name or a config. What it was given for
            clipping, averaging, accumulation and so on is taken over.
        loss_scale: a number for a fixed scale, `"backoff"`, `"logmax"`, a scaler of
            `tf_graft.scaling` or its config; None for 1.
        learning_rate: instead of the optimizer's own, if not None.
        **common: see `tf_graft.core.arguments.Common`; instead of the optimizer's own.

    Raises:
        TypeError: an argument of the wrong type; an optimizer that cannot be wrapped.
        ValueError: an argument out of range; an optimizer that scales the loss itself.

    Row-sparse gradients: as the optimizer's; they are judged by the touched rows.

    Example:
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

    def __init__(
        self,
        optimizer: Any,
        loss_scale: Any = None,
        learning_rate: Any = None,
        **common: Unpack[Common],
    ):
        super().__init__(optimizer, learning_rate, **common)
        self.scaler = registry.get(loss_scale)
        self._scaler_state = {
            role: self._scalar(f"loss_scale/{role}", slot)
            for role, slot in self.scaler.slots().items()
        }

    @property
    def loss_scale_factor(self) -> Any:
        """What scales the loss. Keras' `LossScaleOptimizer` sets it on what it is put around."""
        return getattr(self, "scaler", None)

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: Any) -> None:
        if value is not None:
            raise ValueError(
                f"{type(self).__name__}(loss_scale_factor={shown(value, _short)}): the loss would "
                "be scaled twice; give loss_scale only."
            )
        if hasattr(self, "scaler"):
            raise ValueError(
                f"{type(self).__name__}: it scales the loss itself and must be the outermost "
                "optimizer; do not put it into a LossScaleOptimizer."
            )

    def loss_scale(self) -> tf.Tensor:
        """The scale in use now, a float32 scalar."""
        return self.scaler.scale(self._present())

    def scale_loss(self, loss: Any) -> tf.Tensor:
        """The loss times the scale, in float32 at least. Keras' `fit` calls it."""
        loss = tf.convert_to_tensor(loss)
        loss = tf.cast(loss, numerics.compute_dtype(loss.dtype))
        return loss * tf.cast(self.loss_scale(), loss.dtype)

    def divisor(self) -> Any:
        """The scale; None where it is one for good."""
        scale = self.loss_scale()
        return None if not self._scaler_state and tf.get_static_value(scale) == 1 else scale

    def penalized(self, gradients: list[Any], parameters: list[Parameter], scale: Any) -> list[Any]:
        both = zip(gradients, parameters, strict=True)
        return [MasterRegularizer.added(g, p, scale) for g, p in both]

    def judged(self, gradients: list[Any], scale: Any, finite: tf.Tensor | None) -> None:
        amax = tf.zeros([])
        if self.scaler.needs_amax:
            peaks = [tf.cast(numerics.peak(numerics.values(g)), tf.float32) for g in gradients]
            amax = numerics.divided(tf.reduce_max(tf.stack(peaks)), scale)
        finite = tf.constant(True) if finite is None else finite
        for role, value in self.scaler.update(self._present(), finite, amax).items():
            write.put(self._scaler_state[role], value)

    def handed_over(self, owner: str) -> dict[str, Any]:
        """What it does for its optimizer, as arguments for what is to do it in its place.

        Raises:
            ValueError: it has been built.
        """
        refuse_built(owner, "optimizer", self)
        names = {*PIPELINE, *LIFTED, "weight_decay"} - {"loss_scale_factor"}
        return {name: getattr(self, name) for name in names} | {"loss_scale": self.scaler}

    def get_config(self) -> dict[str, Any]:
        scaler = keras.saving.serialize_keras_object(self.scaler)
        return super().get_config() | {"loss_scale": scaler, "loss_scale_factor": None}

    def _arguments(self) -> dict[str, Any]:
        return super()._arguments() | {"loss_scale": self.scaler, "loss_scale_factor": None}

    def _present(self) -> State:
        return {
            role: tf.convert_to_tensor(replicas.local(variable))
            for role, variable in self._scaler_state.items()
        }
