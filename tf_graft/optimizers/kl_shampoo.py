"""KL-Shampoo: Shampoo whose second moments of each side are whitened by the other side."""

from typing import Any, Unpack

import tensorflow as tf

from tf_graft import algorithm as ta
from tf_graft.optimizers import factors, roots
from tf_graft.optimizers.shampoo import Shampoo


@ta.register
class KLShampoo(Shampoo):
    """KL-Shampoo: Shampoo whose factors are the best estimate of the gradients' covariance.

    ```
    M <- M + (1 - beta_1) * (G - M)
    L <- L + (1 - beta_2) * (G Q^2 G^T / outputs - L)
    R <- R + (1 - beta_2) * (G^T P^2 G / inputs - R)
    L' = L / (1 - beta_2^t),  R' = R / (1 - beta_2^t)
    P = (L' + epsilon * max(eigenvalues of L') * I)^-exponent      every precondition_frequency
    Q = (R' + epsilon * max(eigenvalues of R') * I)^-exponent      updates
    W <- W - learning_rate * P M Q / (1 - beta_1^t)
    ```

    G has the shape [inputs, outputs]. Before there are roots, `P = Q = I`, and in the moments
    `P^2 = Q^2 = I / sqrt(mean(G^2))`. With the default exponent, `P^2` and `Q^2` are the inverses
    of `L` and `R`. The product of these two tends to the covariance that has the least
    Kullback-Leibler divergence from that of the gradients, and its inverse root is the
    preconditioner. Then multiplying all gradients by a number does not change the steps, whose
    length is about Adam's. With `relative_epsilon`, the `L` and `R` of a block stay as they are in
    an update without a gradient for it; if they decayed, nothing would limit the first steps after
    a pause. Blocks, and roots that are not finite, are as in `Shampoo`.

    Differences from the authors' code: here, roots are computed from eigenvectors, the first update
    moves matrices, and epsilon is relative; their code refines a basis, and keeps estimates of the
    eigenvalues that begin with 0.1. Differences from Meta's: Meta's does not divide by `outputs`
    and `inputs`, its moments begin with `P = Q = I`, and its exponent is 1/4 (`exponent=0.25`). In
    a last block that is shorter, `outputs` and `inputs` count the sides of a whole block.

    Args:
        learning_rate: learning rate of the matrices: number, at least 0, or schedule.
        beta_1: decay of the momentum; 0 for none.
        beta_2: decay of the second moments.
        epsilon: a term added to the eigenvalues, as in `Shampoo`. Its default is larger than that
            of `Shampoo` because the exponent is larger: with these defaults, the eigenvalues of the
            roots span about the same range in both.
        relative_epsilon: whether to multiply epsilon by the largest eigenvalue of each matrix.
        exponent: exponent of the inverse roots.
        precondition_frequency: the number of updates from one computation of a root to the next.
        start: the update at which the roots are first computed. Those of a matrix whose first
            gradient comes later begin with that gradient.
        block_size: the longest side of a preconditioner; None for no limit.
        others: updates all other variables: an optimizer of tf_graft or Keras, a name or a config.
        axes: which variables are matrices, and how; see `tf_graft.axes_of`.
        heads: `"merged"` or `"apart"`: see `tf_graft.axes_of`.
        divide: whether replicas, or the devices of a mesh, divide the work; replicas do so for
            matrices from 512 x 512.
        spread: whether matrices, and blocks of them, take turns, as in `Shampoo`.
        **common: see `tf_graft.algorithm.Common`. `weight_decay` applies to the matrices.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; a preconditioner of
            more than 4 GiB; the message says which.

    Row-sparse gradients: a matrix is updated as with the equal dense gradient.

    Example:
        >>> w = tf.Variable(tf.zeros([2, 2]))
        >>> optimizer = KLShampoo(1.0, 0.0, 0.5, precondition_frequency=1, epsilon=1e-9)
        >>> for _ in range(12):  # P G Q tends to sqrt(2) times an orthogonal matrix
        ...     before = w.numpy()
        ...     optimizer.apply([tf.constant([[3.0, 0.0], [0.0, -8.0]])], [w])
        >>> [[round(x, 3) for x in row] for row in (w.numpy() - before).tolist()]
        [[-1.414, 0.0], [0.0, 1.414]]

    Reference:
        Lin et al., 2025, "Understanding and improving Shampoo and SOAP via Kullback-Leibler
        minimization" (arXiv 2509.03378).
    """

    sides = ta.Checked(ta.choice, ("both",))  # each side's moments need the other one

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.001,
        beta_1: ta.BelowOne = 0.9,
        beta_2: ta.BelowOne = 0.95,
        epsilon: ta.AboveZero = 0.03,
        relative_epsilon: ta.Flag = True,
        exponent: ta.AboveZero = 0.5,
        precondition_frequency: ta.Count = 10,
        start: ta.Count = 1,
        block_size: ta.OptionalCount = 1024,
        others: Any = "adamw",
        axes: ta.GivenAxes = None,
        heads: ta.Heads = "merged",
        divide: ta.Flag = True,
        spread: ta.Flag = True,
        **common: Unpack[ta.Common],
    ):
        own = (beta_1, beta_2, epsilon, relative_epsilon, exponent, "both", precondition_frequency)
        more = (start, block_size, others, axes, heads, divide, spread)
        super().__init__(learning_rate, *own, *more, **common)

    def moment(self, g: tf.Tensor, side: str, s: ta.Slots, t: tf.Tensor) -> tf.Tensor:
        other = factors.across(side)
        rooted = (t > self.start) & factors.known(s[f"{other}_factor"])
        whitened = factors.multiplied({other: s[f"{other}_root"]}, g)
        new = factors.mean_moment(roots.chosen(rooted, whitened, factors.balanced(g)), side)
        if not self.relative_epsilon:
            return new
        return roots.chosen(tf.reduce_any(g != 0, [1, 2]), new, s[f"{side}_factor"])  # as it was
