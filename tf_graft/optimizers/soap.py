"""SOAP: Adam in the eigenvectors of Shampoo's second moments."""

from typing import Any, Unpack

import tensorflow as tf

from tf_graft.algorithm import (
    NOT_NEGATIVE,
    AboveZero,
    Axes,
    BelowOne,
    Common,
    Count,
    GivenAxes,
    Heads,
    RateLike,
    Slot,
    Slots,
    Step,
    memoized,
    one_minus_power,
    register,
)
from tf_graft.optimizers import factors, roots
from tf_graft.optimizers.factors import Blocks
from tf_graft.optimizers.preconditioned import Preconditioned


@register
class SOAP(Preconditioned):
    """SOAP: Adam's step in the basis of the eigenvectors of each matrix' second moments.

    ```
    M <- M + (1 - beta_1) * (G - M)
    V <- V + (1 - beta_2) * ((U^T G Z)^2 - V)
    W <- W - learning_rate * c * U (U^T M Z / (sqrt(V) + epsilon)) Z^T
    L <- L + (1 - shampoo_beta) * (G G^T - L)
    R <- R + (1 - shampoo_beta) * (G^T G - R)
    U, Z <- the orthogonal factors of L U and R Z         every precondition_frequency updates
    ```

    `c = sqrt(1 - beta_2^n) / (1 - beta_1^n)` for `n = t - 1`. The first update moves no matrix: it
    only computes `L` and `R`, and `U` and `Z` as their eigenvectors. The columns of `U` and `Z`,
    and the entries of `V`, are sorted by estimates of the eigenvalues. A side longer than
    `max_size` keeps its own axes. A basis that is not finite is dropped and the one before stays.

    Differences from the authors' code: the weights decay before the step, not after it; a variable
    of more than two axes is a matrix as its layer says, not one basis for each axis; `others` move
    in the first update too.

    Args:
        learning_rate: of the matrices: number, at least 0, or schedule.
        beta_1: decay of the momentum.
        beta_2: decay of the mean square.
        shampoo_beta: decay of the second moments of the matrices.
        epsilon: a term added to the root.
        precondition_frequency: the updates from one new basis to the next.
        max_size: the longest side that gets a basis.
        others: updates what is no matrix: an optimizer of tf_graft or Keras, a name or a config.
        axes: which variables are matrices, and how: see `tf_graft.axes_of`.
        heads: `"merged"` or `"apart"`: see `tf_graft.axes_of`.
        **common: see `tf_graft.algorithm.Common`. Weight decay is that of the matrices.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; a basis of more than
            4 GiB; the message says which.

    Row-sparse gradients: those of a matrix act as the equal dense ones.

    Example:
        >>> w = tf.Variable([[1.0, 1.0], [1.0, 1.0]])
        >>> optimizer = SOAP(0.5)
        >>> for _ in range(2):  # the second update is Adam's first
        ...     optimizer.apply([tf.constant([[3.0, 0.0], [0.0, -8.0]])], [w])
        >>> [[round(x, 3) for x in row] for row in w.numpy().tolist()]
        [[0.5, 1.0], [1.0, 1.5]]

    Reference:
        Vyas et al., 2024, "SOAP: improving and stabilizing Shampoo using Adam" (arXiv 2409.11321),
        algorithm 3.
    """

    limit = "max_size"

    def __init__(
        self,
        learning_rate: RateLike = 0.003,
        beta_1: BelowOne = 0.95,
        beta_2: BelowOne = 0.95,
        shampoo_beta: BelowOne = 0.95,
        epsilon: AboveZero = 1e-8,
        precondition_frequency: Count = 10,
        max_size: Count = 10000,
        others: Any = "adamw",
        axes: GivenAxes = None,
        heads: Heads = "merged",
        **common: Unpack[Common],
    ):
        super().__init__(learning_rate, others, axes, heads, **common)

    def sides_of(self, axes: Axes) -> tuple[str, ...]:
        sizes = zip(factors.BOTH, axes.size[1:], strict=True)
        return tuple(side for side, length in sizes if 0 < length <= self.max_size)

    def blocks(self, axes: Axes) -> Blocks:
        return Blocks.of(axes.size, None)

    def slots_of(self, axes: Axes) -> dict[str, Slot]:
        made = {"momentum": Slot(), "velocity": Slot(shape=axes.size, within=NOT_NEGATIVE)}
        for side in self.sides_of(axes):
            square = Slot(shape=self.blocks(axes).squares(side))
            made |= {f"{side}_factor": square, f"{side}_basis": square}
        return made

    def step(  # type: ignore[override]  # of matrices
        self, g: tf.Tensor, w: tf.Tensor, s: Slots, lr: tf.Tensor, t: tf.Tensor, axes: Axes
    ) -> Step:
        bases = {side: s[f"{side}_basis"] for side in self.sides_of(axes)}
        first = _first(bases, t)
        beta_1, beta_2 = (
            tf.where(first, tf.ones_like(t), beta) for beta in (self.beta_1, self.beta_2)
        )
        m = s["momentum"] + (1 - beta_1) * (g - s["momentum"])
        each = self.matrices(g, axes)
        turned = factors.divided(bases, each)
        v = s["velocity"] + (1 - beta_2) * (turned * turned - s["velocity"])
        turned = factors.divided(bases, self.matrices(m, axes))
        d = axes.restored(factors.multiplied(bases, turned / (tf.sqrt(v) + self.epsilon)))
        new = {"momentum": m, "velocity": v}
        for side in bases:
            before = s[f"{side}_factor"]
            moment = factors.second_moment(each, side)
            new[f"{side}_factor"] = before + (1 - self.shampoo_beta) * (moment - before)
        new |= self._new_bases(new, bases, first, t)
        return -lr * _correction(self.beta_1, self.beta_2, t) * d, new

    def _new_bases(
        self, s: Slots, bases: dict[str, tf.Tensor], first: tf.Tensor, t: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Returns the bases, and the mean square in them, for the next update."""

        def eigenvectors() -> dict[str, tf.Tensor]:
            made = {
                f"{side}_basis": roots.eigenbasis(s[f"{side}_factor"], self.eigenvectors)
                for side in bases
            }
            return made | {"velocity": s["velocity"]}

        def turned() -> dict[str, tf.Tensor]:
            made, v = {}, s["velocity"]
            for side, basis in bases.items():
                made[f"{side}_basis"], order = roots.next_eigenbasis(s[f"{side}_factor"], basis)
                v = tf.gather(v, order, axis=1 + factors.BOTH.index(side), batch_dims=1)
            return made | {"velocity": v}

        def same() -> dict[str, tf.Tensor]:
            kept = {f"{side}_basis": basis for side, basis in bases.items()}
            return kept | {"velocity": s["velocity"]}

        due = _due(self.precondition_frequency, t)
        return tf.cond(first, eigenvectors, lambda: tf.cond(due, turned, same))


def _first(bases: dict[str, tf.Tensor], t: tf.Tensor) -> tf.Tensor:
    """Returns whether there is no basis yet; without any bases, whether it is the first update."""
    for basis in bases.values():
        return ~tf.reduce_any(basis != 0)
    return t <= 1


@memoized
def _correction(beta_1: float, beta_2: float, t: tf.Tensor) -> tf.Tensor:
    """Returns the bias correction of an update, whose moments lack the first gradient."""
    n = tf.maximum(t - 1, 1)
    return tf.sqrt(one_minus_power(beta_2, n)) / one_minus_power(beta_1, n)


@memoized
def _due(frequency: int, t: tf.Tensor) -> tf.Tensor:
    """Returns whether the bases are turned at an update."""
    return tf.equal((t - 1) % frequency, 0)
