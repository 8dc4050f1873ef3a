"""SOAP-Muon: SOAP's steps with all singular values set to one."""

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
from tf_graft.optimizers.soap import SOAP


@ta.register
class SOAPMuon(Orthogonal, SOAP):
    """SOAP-Muon: steps along the orthogonal factor of SOAP's step, in place of the momentum's.

    ```
    u = U (U^T M Z / (sqrt(V) + epsilon)) Z^T           with M, V, U and Z as in `SOAP`
    o = u / (||u|| + epsilon), then `ns_steps` times
    o <- a * o + (b * o o^T + c * (o o^T)^2) o          as in `Muon`
    W <- W - learning_rate * scale * o
    ```

    `Muon` takes the orthogonal factor of the momentum. Where some directions of a matrix have much
    larger gradients than others, the step of `SOAP` is more even across them to begin with. It
    keeps as many numbers as SOAP, and costs a step of SOAP and the products of Muon. Learning rates
    are those of `Muon`. The first update moves no matrix, as in SOAP.

    Difference from the record of modded-nanogpt: the second moments `V` are those of the gradients,
    as in SOAP, not of the momentum.

    Args:
        learning_rate: learning rate of the matrices: number, at least 0, or schedule.
        beta_1: decay of the momentum.
        beta_2: decay of the mean square.
        shampoo_beta: decay of the second moments of the matrices.
        epsilon: a term added to the root, and to the norm of each matrix.
        precondition_frequency: the number of updates from one new basis of a matrix to the next.
        max_size: the longest side that gets a basis.
        scale: the factor of each step, as in `Muon`.
        ns_steps: the number of Newton-Schulz iterations.
        ns_coefficients: as in `Muon`.
        others: updates all other variables: an optimizer of tf_graft or Keras, a name or a config.
        axes: which variables are matrices, and how; see `tf_graft.axes_of`.
        heads: `"merged"` or `"apart"`: see `tf_graft.axes_of`.
        divide: whether replicas, or the devices of a mesh, divide the work.
        spread: whether the matrices take turns to get new bases, as in `SOAP`.
        ns_dtype: as in `Muon`.
        **common: see `tf_graft.algorithm.Common`. `weight_decay` applies to the matrices.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; a basis of more than
            4 GiB; the message says which.

    Row-sparse gradients: a matrix is updated as with the equal dense gradient.

    Example:
        >>> w = tf.Variable(tf.zeros([2, 2]))
        >>> optimizer = SOAPMuon(0.5, ns_coefficients=(1.5, -0.5, 0.0), ns_steps=30)  # to the limit
        >>> for _ in range(2):
        ...     optimizer.apply([tf.constant([[3.0, 0.0], [0.0, -8.0]])], [w])
        >>> [[round(x, 3) for x in row] for row in w.numpy().tolist()]
        [[-0.5, 0.0], [0.0, 0.5]]

    Reference:
        Vyas, "SOAP-Muon" (nikhilvyas.github.io/SOAP_Muon.pdf); result 44 of the optimization
        benchmark of modded-nanogpt (github.com/KellerJordan/modded-nanogpt,
        records/track_3_optimization).
    """

    divided_from = 1  # the products of the iterations cost more than the gathers

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.02,
        beta_1: ta.BelowOne = 0.95,
        beta_2: ta.BelowOne = 0.95,
        shampoo_beta: ta.BelowOne = 0.95,
        epsilon: ta.AboveZero = 1e-8,
        precondition_frequency: ta.Count = 10,
        max_size: ta.Count = 10000,
        scale: Scale = "original",
        ns_steps: ta.Count = 5,
        ns_coefficients: Coefficients = QUINTIC,
        others: Any = "adamw",
        axes: ta.GivenAxes = None,
        heads: ta.Heads = "merged",
        divide: ta.Flag = True,
        spread: ta.Flag = True,
        ns_dtype: Precision = None,
        **common: Unpack[ta.Common],
    ):
        own = (beta_1, beta_2, shampoo_beta, epsilon, precondition_frequency, max_size)
        super().__init__(learning_rate, *own, others, axes, heads, divide, spread, **common)

    def direction(
        self,
        matrices: list[tf.Tensor],
        s: ta.Slots,
        t: tf.Tensor,
        share: ta.Sharing,
        paths: Sequence[str],
    ) -> ta.Step:
        u, slots = super().direction(matrices, s, t, share, paths)
        return share(self.orthogonal_step, u), slots
