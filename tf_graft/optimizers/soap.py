"""SOAP: Adam in the eigenvectors of Shampoo's second moments."""

import functools
from collections.abc import Sequence
from typing import Any, Unpack

import tensorflow as tf

from tf_graft import algorithm as ta
from tf_graft.optimizers import factors, roots
from tf_graft.optimizers.factors import Blocks, Sides
from tf_graft.optimizers.preconditioned import Preconditioned


@ta.register
class SOAP(Preconditioned):
    """SOAP: Adam's step in the basis of the eigenvectors of each matrix's second moments.

    ```
    M <- M + (1 - beta_1) * (G - M)
    V <- V + (1 - beta_2) * ((U^T G Z)^2 - V)
    W <- W - learning_rate * c * U (U^T M Z / (sqrt(V) + epsilon)) Z^T
    L <- L + (1 - shampoo_beta) * (G G^T - L)
    R <- R + (1 - shampoo_beta) * (G^T G - R)
    U, Z <- the orthogonal factors of L U and R Z         every precondition_frequency updates
    ```

    `c = sqrt(1 - beta_2^n) / (1 - beta_1^n)` for `n = t - 1`. The first update moves no matrix: it
    only computes `L` and `R`, and their eigenvectors `U` and `Z`. The columns of `U` and `Z`, and
    the entries of `V`, are sorted by estimates of the eigenvalues. A side longer than `max_size` is
    not rotated. If a basis is not finite, the last one stays in use. If gradients have fewer
    independent rows than a side, some eigenvectors, and the steps along them, depend on rounding.

    Differences from the authors' code: the weights decay before the step, not after it; a variable
    with more than two axes is a matrix according to its layer, and does not have a basis for each
    axis; `others` moves its variables in the first update, too; matrices take turns (with
    `spread=False`, all bases are computed in one update, as there). Differences from NVIDIA's
    Emerging-Optimizers: the basis does not hold the present gradient, and the first update moves no
    matrix.

    Args:
        learning_rate: learning rate of the matrices: number, at least 0, or schedule.
        beta_1: decay of the momentum.
        beta_2: decay of the mean square.
        shampoo_beta: decay of the second moments of the matrices.
        epsilon: a term added to the root.
        precondition_frequency: the number of updates from one new basis of a matrix to the next.
        max_size: the longest side that gets a basis.
        others: updates all other variables: an optimizer of tf_graft or Keras, a name or a config.
        axes: which variables are matrices, and how; see `tf_graft.axes_of`.
        heads: `"merged"` or `"apart"`: see `tf_graft.axes_of`.
        divide: whether replicas, or the devices of a mesh, divide the work; replicas do so for
            matrices from 512 x 512.
        spread: whether the matrices take turns: each update computes new bases of about one in
            `precondition_frequency`. Otherwise the bases of all are computed in one update, which
            then takes far longer than the others.
        **common: see `tf_graft.algorithm.Common`. `weight_decay` applies to the matrices.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; a basis of more than
            4 GiB; the message says which.

    Row-sparse gradients: a matrix is updated as with the equal dense gradient.

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
        learning_rate: ta.RateLike = 0.003,
        beta_1: ta.BelowOne = 0.95,
        beta_2: ta.BelowOne = 0.95,
        shampoo_beta: ta.BelowOne = 0.95,
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
        super().__init__(learning_rate, others, axes, heads, divide, **common)

    def sides_of(self, size: Sequence[int]) -> tuple[str, ...]:
        sides = zip(factors.BOTH, size[1:], strict=True)
        return tuple(side for side, length in sides if 0 < length <= self.max_size)

    def blocks(self, size: Sequence[int]) -> Blocks:
        return Blocks.of(size, None)

    def slots_of(self, axes: ta.Axes) -> dict[str, ta.Slot]:
        made = {
            "momentum": ta.Slot(),
            "velocity": ta.Slot(shape=axes.size, within=ta.NOT_NEGATIVE),
        }
        for side in self.sides_of(axes.size):
            square = ta.Slot(shape=self.blocks(axes.size).squares(side))
            made |= {f"{side}_factor": square, f"{side}_basis": square}
        return made

    def moments(self, g: tf.Tensor, s: ta.Slots, t: tf.Tensor) -> tuple[list[tf.Tensor], ta.Slots]:
        beta_1 = tf.where(tf.reduce_all(_first(s, t)), tf.ones_like(t), self.beta_1)
        m = s["momentum"] + (1 - beta_1) * (g - s["momentum"])
        return [g, m], {"momentum": m}

    def direction(
        self,
        matrices: list[tf.Tensor],
        s: ta.Slots,
        t: tf.Tensor,
        share: ta.Sharing,
        paths: Sequence[str],
    ) -> ta.Step:
        g, m = matrices
        bases, first = _of_sides("basis", s), _first(s, t)
        d, v = share(functools.partial(self._turned_step, t), bases, g, m, s["velocity"], first)
        moments = {}
        for side, before in _of_sides("factor", s).items():
            moment = self.moment(g, side, s, t)
            moment = ta.running_mean(before, moment, self.shampoo_beta, t)
            moments[side] = roots.chosen(roots.usable(moment), moment, before)
        turns, turn = self.turns_of(paths), (t - 1) % self.precondition_frequency
        bases, v = tf.cond(
            turns.due(turn),
            lambda: turns.refreshed(turn, lambda *x: share(_next, *x), (moments,), (bases, v)),
            lambda: (bases, v),
        )
        bases = tf.cond(
            tf.reduce_any(first), lambda: share(self._begun, moments, bases, first), lambda: bases
        )
        slots = {f"{side}_factor": x for side, x in moments.items()} | {"velocity": v}
        slots |= {f"{side}_basis": x for side, x in bases.items()}
        return _correction(self.beta_1, self.beta_2, t) * d, slots

    def _turned_step(
        self, t: tf.Tensor, bases: Sides, g: tf.Tensor, m: tf.Tensor, v: tf.Tensor, first: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns Adam's step in the bases, turned back, and the new mean square."""
        turned = factors.turned(bases, g)
        v = roots.chosen(first, v, ta.running_mean(v, turned * turned, self.beta_2, t))
        turned = factors.turned(bases, m)
        return factors.multiplied(bases, turned / (tf.sqrt(v) + self.epsilon)), v

    def _begun(self, moments: Sides, bases: Sides, first: tf.Tensor) -> Sides:
        """Returns bases with eigenvectors for matrices that have none yet."""
        return {
            side: roots.chosen(first, roots.eigenbasis(moments[side], self.eigenvectors), basis)
            for side, basis in bases.items()
        }


def _next(moments: Sides, bases: Sides, v: tf.Tensor) -> tuple[Sides, tf.Tensor]:
    """Returns the next bases, and the mean square in them."""
    made = {}
    for side, basis in bases.items():
        made[side], order = roots.next_eigenbasis(moments[side], basis)
        v = tf.gather(v, order, axis=1 + factors.BOTH.index(side), batch_dims=1)
    return made, v


def _of_sides(role: str, s: ta.Slots) -> Sides:
    """Returns the slots of a role by side."""
    return {side: s[f"{side}_{role}"] for side in factors.BOTH if f"{side}_{role}" in s}


def begun(basis: tf.Tensor) -> tf.Tensor:
    """Returns which matrices have a basis, which has no row of zeros: booleans of shape [n]."""
    return tf.reduce_any(basis[:, 0] != 0, 1)


def _first(s: ta.Slots, t: tf.Tensor) -> tf.Tensor:
    """Returns which matrices have no basis yet; without bases, whether it is the first update."""
    for basis in _of_sides("basis", s).values():
        return ~begun(basis)
    return tf.broadcast_to(t <= 1, s["velocity"].shape[:1])


@ta.memoized
def _correction(beta_1: float, beta_2: float, t: tf.Tensor) -> tf.Tensor:
    """Returns the bias correction of an update, whose moments lack the first gradient."""
    n = tf.maximum(t - 1, 1)
    return tf.sqrt(ta.one_minus_power(beta_2, n)) / ta.one_minus_power(beta_1, n)
