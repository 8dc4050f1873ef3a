"""KL-SOAP: SOAP whose second moments of each side are whitened by the other side."""

from typing import Any, Unpack

import tensorflow as tf

from tf_graft import algorithm as ta
from tf_graft.optimizers import factors, roots
from tf_graft.optimizers.soap import SOAP, begun


@ta.register
class KLSOAP(SOAP):
    """KL-SOAP: Adam's step in the eigenvectors of the best estimate of the gradients' covariance.

    ```
    W is updated as by `SOAP`, where U and Z are the eigenvectors of
    L <- L + (1 - shampoo_beta) * (G Z D^-1 Z^T G^T / outputs - L),  D = diag(Z^T R Z)
    R <- R + (1 - shampoo_beta) * (G^T U C^-1 U^T G / inputs - R),   C = diag(U^T L U)
    ```

    G has the shape [inputs, outputs]. The entries of `C` and `D` estimate the eigenvalues of `L`
    and `R`; those below `shampoo_epsilon` times the largest one of a matrix are raised to that
    value. In the first update, `C` and `D` are `sqrt(mean(G^2)) * I`; for a side longer than
    `max_size`, which is not rotated, they are `I`. The product of `L` and `R` tends to the
    covariance that has the least Kullback-Leibler divergence from that of the gradients; the
    product of the `L` and `R` of `SOAP` does not.

    Differences from the authors' code: the eigenvalues are those of `L` and `R`, not running means
    of their own that begin with 0.1, and their floor is relative, so that multiplying all gradients
    by a number does not change the bases. The differences that `SOAP` names apply, too.

    Args:
        learning_rate: learning rate of the matrices: number, at least 0, or schedule.
        beta_1: decay of the momentum.
        beta_2: decay of the mean square.
        shampoo_beta: decay of the second moments of the matrices.
        shampoo_epsilon: the least eigenvalue that is inverted, in units of the largest.
        epsilon: a term added to the root of the mean square.
        precondition_frequency: the number of updates from one new basis of a matrix to the next.
        max_size: the longest side that gets a basis.
        others: updates all other variables: an optimizer of tf_graft or Keras, a name or a config.
        axes: which variables are matrices, and how; see `tf_graft.axes_of`.
        heads: `"merged"` or `"apart"`: see `tf_graft.axes_of`.
        divide: whether replicas, or the devices of a mesh, divide the work; replicas do so for
            matrices from 512 x 512.
        spread: whether the matrices take turns to get new bases, as in `SOAP`.
        **common: see `tf_graft.algorithm.Common`. `weight_decay` applies to the matrices.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; a basis of more than
            4 GiB; the message says which.

    Row-sparse gradients: a matrix is updated as with the equal dense gradient.

    Example:
        >>> w = tf.Variable([[1.0, 1.0], [1.0, 1.0]])
        >>> optimizer = KLSOAP(0.5)
        >>> for _ in range(2):  # the second update is Adam's first
        ...     optimizer.apply([tf.constant([[3.0, 0.0], [0.0, -8.0]])], [w])
        >>> [[round(x, 3) for x in row] for row in w.numpy().tolist()]
        [[0.5, 1.0], [1.0, 1.5]]

    Reference:
        Lin et al., 2025, "Understanding and improving Shampoo and SOAP via Kullback-Leibler
        minimization" (arXiv 2509.03378).
    """

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.003,
        beta_1: ta.BelowOne = 0.95,
        beta_2: ta.BelowOne = 0.95,
        shampoo_beta: ta.BelowOne = 0.95,
        shampoo_epsilon: ta.AboveZero = 0.03,
        epsilon: ta.AboveZero = 1e-8,
        precondition_frequency: ta.Count = 10,
        max_size: ta.Count = 10000,
        others: Any = "adamw",
        axes: ta.GivenAxes = None,
        heads: ta.Heads = "merged",
        divide: ta.Flag = True,
        spread: ta.Flag = True,
        **common: Unpack[ta.Common],
    ):
        own = (beta_1, beta_2, shampoo_beta, epsilon, precondition_frequency, max_size)
        super().__init__(learning_rate, *own, others, axes, heads, divide, spread, **common)

    def moment(self, g: tf.Tensor, side: str, s: ta.Slots, t: tf.Tensor) -> tf.Tensor:
        other = factors.across(side)
        if f"{other}_basis" in s:
            g = self._whitened(g, other, s[f"{other}_factor"], s[f"{other}_basis"])
        return factors.mean_moment(g, side)

    def _whitened(self, g: tf.Tensor, side: str, factor: tf.Tensor, basis: tf.Tensor) -> tf.Tensor:
        """Returns gradients in the basis of a side, over the roots of its eigenvalues."""
        values = tf.reduce_sum(basis * tf.matmul(factor, basis), -2)
        largest = tf.reduce_max(values, -1, keepdims=True)
        least = self.shampoo_epsilon * tf.where(largest > 0, largest, 1)
        scale = tf.expand_dims(
            tf.math.rsqrt(tf.maximum(values, least)), 2 - factors.BOTH.index(side)
        )
        return roots.chosen(
            begun(basis), scale * factors.turned({side: basis}, g), factors.balanced(g)
        )
