"""Muon: momentum with all singular values set to one."""

from collections.abc import Sequence
from typing import Any, Unpack

import tensorflow as tf

from tf_graft import algorithm as ta
from tf_graft.optimizers.newton_schulz import (
    QUINTIC,
    Coefficients,
    Orthogonal,
    Precision,
    Scale,
)


@ta.register
class Muon(Orthogonal, ta.MatrixOptimizer):
    """Muon: steps along the momentum of each matrix, with all of its singular values set to one.

    ```
    m <- m + (1 - momentum) * (g - m)
    u = m + (1 - momentum) * (g - m)               nesterov=True;  otherwise u = m
    o = u / (||u|| + epsilon), then `ns_steps` times
    o <- a * o + (b * o o^T + c * (o o^T)^2) o     which comes near the orthogonal factor of u
    w <- w - learning_rate * scale * o
    ```

    It updates the kernels of `Dense`, `EinsumDense`, attention, convolutions and recurrent layers
    as matrices: `tf_graft.axes_of` shows which variables these are, and how they form matrices. The
    optimizer `others` updates embeddings, the last layer, biases and normalizations, with its own
    learning rate, so a schedule or callback for one learning rate does not change the other.
    `table()` shows which optimizer updates each variable.

    Differences from Keras' `Muon`: kernels with three or more axes are matrices, too; the default
    scale is the author's, where Keras has `"match_rms_adamw"`; and you choose the optimizer of the
    other variables, with all its arguments. The momentum is an average, as in the references; Keras
    keeps a sum, which is 20 times as large for the same step. Newton-Schulz runs in float32 (or
    float64), unless you ask for the bfloat16 of the author's program. Difference from optax's:
    optax corrects the bias of Nesterov momentum.

    Args:
        learning_rate: learning rate of the matrices: number, at least 0, or schedule. Default 0.02,
            as in the author's program.
        momentum: decay of the momentum: number, or schedule.
        nesterov: whether the momentum looks one step ahead.
        scale: the factor of each step. `"original"`: sqrt(max(1, outputs / inputs)), as in the
            author's program. `"spectral"`: sqrt(outputs / inputs). `"match_rms_adamw"`: 0.2 *
            sqrt(max(inputs, outputs)), which makes steps as long as AdamW's, so that you can use
            AdamW's learning rate and weight decay. `"none"`: 1.
        ns_steps: the number of Newton-Schulz iterations.
        ns_coefficients: a, b and c, or a list of them for each iteration; or `"polar_express"`,
            those of Amsel et al., which bring singular values to 1 in 8 iterations.
        epsilon: a term added to the norm of each matrix.
        others: updates all other variables: an optimizer of tf_graft or Keras, a name or a config.
        axes: which variables are matrices, and how, by pattern; see `tf_graft.axes_of`.
        heads: `"merged"` or `"apart"`: whether the heads of attention are one matrix or several.
        divide: whether replicas, or the devices of a mesh, divide the work.
        ns_dtype: `"bfloat16"` to multiply matrices in bfloat16 in the iterations, which is faster
            where processors have instructions for it, and changes a step by about 0.02; the
            roundings differ from execution to execution with XLA. None for the precision of the
            update.
        **common: see `tf_graft.algorithm.Common`. `weight_decay` applies to the matrices.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range; or, when the optimizer is built, no variable of the
            model is a matrix.

    Row-sparse gradients: a matrix is updated as with the equal dense gradient; `others` treats its
    own variables as usual.

    Example:
        >>> w = tf.Variable([[3.0, 0.0], [0.0, 0.1]])
        >>> muon = Muon(0.5, ns_coefficients=(1.5, -0.5, 0.0), ns_steps=30)  # to the limit
        >>> muon.apply([tf.constant([[4.0, 0.0], [0.0, -0.2]])], [w])
        >>> [[round(x, 3) for x in row] for row in w.numpy().tolist()]
        [[2.5, 0.0], [0.0, 0.6]]

    Reference:
        Jordan et al., 2024, "Muon: an optimizer for hidden layers in neural networks"
        (kellerjordan.github.io/posts/muon); `"match_rms_adamw"`: Liu et al., 2025, "Muon is
        scalable for LLM training" (arXiv 2502.16982); `"polar_express"`: Amsel et al., 2025, "The
        Polar Express" (arXiv 2505.16932).
    """

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.02,
        momentum: ta.BelowOneOrSchedule = 0.95,
        nesterov: ta.Flag = True,
        scale: Scale = "original",
        ns_steps: ta.Count = 5,
        ns_coefficients: Coefficients = QUINTIC,
        epsilon: ta.AboveZero = 1e-7,
        others: Any = "adamw",
        axes: ta.GivenAxes = None,
        heads: ta.Heads = "merged",
        divide: ta.Flag = True,
        ns_dtype: Precision = None,
        **common: Unpack[ta.Common],
    ):
        super().__init__(learning_rate, others, axes, heads, divide, **common)

    def slots(self) -> dict[str, ta.Slot]:
        return {"momentum": ta.Slot()}

    def moments(self, g: tf.Tensor, s: ta.Slots, t: tf.Tensor) -> tuple[list[tf.Tensor], ta.Slots]:
        m = ta.running_mean(s["momentum"], g, self.momentum, t)
        u = ta.running_mean(m, g, self.momentum, t) if self.nesterov else m
        return [u], {"momentum": m}

    def direction(
        self,
        matrices: list[tf.Tensor],
        s: ta.Slots,
        t: tf.Tensor,
        share: ta.Sharing,
        paths: Sequence[str],
    ) -> ta.Step:
        (u,) = matrices
        return share(self.orthogonal_step, u), {}
