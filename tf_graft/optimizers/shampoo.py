"""Shampoo: matrices preconditioned by roots of their gradients' second moments."""

import functools
from collections.abc import Sequence
from typing import Annotated, Any, Unpack

import tensorflow as tf

from tf_graft import algorithm as ta
from tf_graft.optimizers import factors, roots
from tf_graft.optimizers.factors import Blocks, Sides
from tf_graft.optimizers.preconditioned import Preconditioned
from tf_graft.optimizers.turns import Turns

FAILED = "failed_roots"
CHOICES = ("both", *factors.BOTH, "smaller")
Side = Annotated[str, ta.Checked(ta.choice, CHOICES)]
Roots = tuple[Sides, tf.Tensor]  # and for each matrix, how many were not finite
Exponent = Annotated[float | None, ta.Checked(ta.number, 0, open_low=True, optional=True)]


@ta.register
class Shampoo(Preconditioned):
    """Shampoo: preconditions each matrix from both sides, by inverse roots of its second moments.

    ```
    M <- M + (1 - beta_1) * (G - M)
    L <- L + (1 - beta_2) * (G G^T - L)
    R <- R + (1 - beta_2) * (G^T G - R)
    L' = L / (1 - beta_2^t),  R' = R / (1 - beta_2^t)
    P = (L' + epsilon * max(eigenvalues of L') * I)^-exponent      every precondition_frequency
    Q = (R' + epsilon * max(eigenvalues of R') * I)^-exponent      updates
    W <- W - learning_rate * P M Q / (1 - beta_1^t)
    ```

    The length of its steps varies widely. Therefore it mostly serves for their direction alone, and
    another optimizer sets their length: `tf_graft.AdaGraft(Adam(), Shampoo())`. With
    `sides="inputs"` (or `"outputs"`, `"smaller"`) only one side has a preconditioner. Sides longer
    than `block_size` are cut into blocks, and each block has its own preconditioners. The roots are
    computed from eigenvectors; if a root is not finite, the last one stays in use, and
    `failed_roots` counts it.

    Differences from Meta's Distributed Shampoo: a variable with more than two axes is a matrix
    according to its layer, and does not have a factor for each axis; `others` updates biases;
    before the update `start` the step is the momentum alone, not that of the graft; a graft
    compares the steps of a variable, not of each block; bias corrections have the precision of the
    update, not float32. Differences from Google's: momentum averages the gradients, not the steps;
    with a `precondition_frequency` of 2, roots are computed at the updates 1, 2, 4, not 1, 3, 5. In
    both, all roots are computed in one update, as with `spread=False`, and epsilon is far smaller.
    In float32 so small an epsilon amplifies rounding: at first a matrix has had fewer gradients
    than it has rows, and the other directions hold nothing but rounding.

    Args:
        learning_rate: learning rate of the matrices: number, at least 0, or schedule.
        beta_1: decay of the momentum; 0 for none.
        beta_2: decay of the second moments; 1 for their sum.
        epsilon: a term added to the eigenvalues. Much smaller values let a difference in the last
            bit of a gradient grow to a large part of the step.
        relative_epsilon: whether to multiply epsilon by the largest eigenvalue of each matrix, as
            Google's does; otherwise it has the unit of squared gradients, as Meta's has.
        exponent: exponent of the inverse roots, above 0. None: 1/4 for two sides, 1/2 for one.
        sides: `"both"`, `"inputs"`, `"outputs"`, or `"smaller"` for the shorter of the two.
        precondition_frequency: the number of updates from one computation of a root to the next.
        start: the update at which the roots are first computed. Those of a matrix whose first
            gradient comes later begin with that gradient.
        block_size: the longest side of a preconditioner; None for no limit.
        others: updates all other variables: an optimizer of tf_graft or Keras, a name or a config.
        axes: which variables are matrices, and how; see `tf_graft.axes_of`.
        heads: `"merged"` or `"apart"`: see `tf_graft.axes_of`.
        divide: whether replicas, or the devices of a mesh, divide the work; replicas do so for
            matrices from 512 x 512.
        spread: whether matrices, and blocks of them, take turns: after `start`, each update
            computes the roots of about one in `precondition_frequency`. Otherwise the roots of all
            are computed at each update whose number is a multiple of `precondition_frequency`; that
            update takes far longer.
        **common: see `tf_graft.algorithm.Common`. `weight_decay` applies to the matrices.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; a preconditioner of
            more than 4 GiB; the message says which.

    Row-sparse gradients: a matrix is updated as with the equal dense gradient.

    Example:
        >>> w = tf.Variable([[1.0, 1.0], [1.0, 1.0]])
        >>> Shampoo(0.5, epsilon=1e-9).apply([tf.constant([[3.0, 0.0], [0.0, -8.0]])], [w])
        >>> [[round(x, 3) for x in row] for row in w.numpy().tolist()]  # roots 3^-1/2 and 8^-1/2
        [[0.5, 1.0], [1.0, 1.5]]

    Reference:
        Gupta et al., 2018, "Shampoo: preconditioned stochastic tensor optimization" (arXiv
        1802.09568), algorithm 1; Shi et al., 2023, "A distributed data-parallel PyTorch
        implementation of the distributed Shampoo optimizer" (arXiv 2309.06497), algorithm 2.
    """

    limit = "block_size"
    _counted: Sequence[Any] = ()

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.001,
        beta_1: ta.BelowOne = 0.9,
        beta_2: ta.Fraction = 0.999,
        epsilon: ta.AboveZero = 1e-3,
        relative_epsilon: ta.Flag = True,
        exponent: Exponent = None,
        sides: Side = "both",
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
        super().__init__(learning_rate, others, axes, heads, divide, **common)

    @property
    def failed_roots(self) -> int:
        """The number of roots so far that were not finite and were not used."""
        counts = [p.slots[FAILED] for p in self.rule.parameters if FAILED in p.slots]
        return sum(int(tf.reduce_sum(tf.convert_to_tensor(count))) for count in counts)

    def slots_of(self, axes: ta.Axes) -> dict[str, ta.Slot]:
        blocks = self.blocks(axes.size)
        made = {"momentum": ta.Slot()} if self.beta_1 else {}
        for side in self.sides_of(axes.size):
            shape = blocks.squares(side)
            made[f"{side}_factor"] = ta.Slot(shape=shape)
            made[f"{side}_root"] = ta.Slot(functools.partial(_identity, shape), shape)
        return made | {FAILED: ta.Slot(shape=(blocks.number,), within=ta.NOT_NEGATIVE)}

    def moments(self, g: tf.Tensor, s: ta.Slots, t: tf.Tensor) -> tuple[list[tf.Tensor], ta.Slots]:
        if not self.beta_1:
            return [g], {}
        m = ta.running_mean(s["momentum"], g, self.beta_1, t)
        return [g, m], {"momentum": m}

    def direction(
        self,
        matrices: list[tf.Tensor],
        s: ta.Slots,
        t: tf.Tensor,
        share: ta.Sharing,
        paths: Sequence[str],
    ) -> ta.Step:
        blocks, sides = self.blocks(matrices[0].shape), self.sides_of(matrices[0].shape)
        parts = [blocks.split(m) for m in matrices]  # of the gradient, and of the momentum
        late = (t > self.start) & ~factors.known(s[f"{sides[0]}_factor"])
        new = {side: self._averaged(parts[0], side, s, t, late) for side in sides}
        late &= factors.known(new[sides[0]])
        before = {side: s[f"{side}_root"] for side in sides}, s[FAILED]
        computed, failed = self._refreshed(self.turns_of(paths), t, share, new, before, late)
        d = blocks.joined(share(factors.multiplied, computed, parts[-1]))
        slots = {f"{side}_factor": x for side, x in new.items()} | {FAILED: failed}
        slots |= {f"{side}_root": x for side, x in computed.items()}
        return d / ta.one_minus_power(self.beta_1, t) if self.beta_1 else d, slots

    def _averaged(
        self, g: tf.Tensor, side: str, s: ta.Slots, t: tf.Tensor, late: tf.Tensor
    ) -> tf.Tensor:
        """Returns the running mean, or the sum, of second moments with those of the gradients.

        A matrix that is `late` begins with a mean that has no bias at this update.
        """
        before, x = s[f"{side}_factor"], self.moment(g, side, s, t)
        if self.beta_2 == 1:
            new = before + x
        else:
            mean = ta.running_mean(before, x, self.beta_2, t)

            def begin() -> tf.Tensor:
                return roots.chosen(late, x * ta.one_minus_power(self.beta_2, t), mean)

            new = tf.cond(tf.reduce_any(late), begin, lambda: mean)
        return roots.chosen(roots.usable(new), new, before)

    def _refreshed(
        self,
        turns: Turns,
        t: tf.Tensor,
        share: ta.Sharing,
        of: Sides,
        before: Roots,
        late: tf.Tensor,
    ) -> Roots:
        """Returns the roots: at `start` all are new, later the late ones, and those in turn."""
        turn = t % self.precondition_frequency
        due, begun = (t > self.start) & turns.due(turn), tf.equal(t, self.start) | late
        begin = tf.reduce_any(begun)

        def compute(*batches: Any) -> Roots:
            return share(functools.partial(self._new_roots, t), *batches)

        def begin_some() -> Roots:
            new, chosen = compute(of, *before), begun | due if turns.alike else begun
            return tf.nest.map_structure(functools.partial(roots.chosen, chosen), new, before)

        def some() -> Roots:
            return turns.refreshed(turn, compute, (of,), before)

        def refresh() -> Roots:
            return begin_some() if turns.alike else tf.cond(begin, begin_some, some)

        return tf.cond(begin | due, refresh, lambda: before)

    def _new_roots(self, t: tf.Tensor, of: Sides, before: Sides, failed: tf.Tensor) -> Roots:
        """Returns the roots, those before where they are not finite, and how often this was so."""
        made, exponent = {}, self.exponent or 0.5 / len(of)
        for side, factor in of.items():
            if self.beta_2 < 1:
                factor /= ta.one_minus_power(self.beta_2, t)
            root, good = roots.inverse_power(
                factor, exponent, self.epsilon, self.relative_epsilon, self.eigenvectors
            )
            made[side] = roots.chosen(good, root, before[side])
            failed += tf.cast(~good, failed.dtype)
        return made, failed

    def blocks(self, size: Sequence[int]) -> Blocks:
        return Blocks.of(size, self.block_size)

    def sides_of(self, size: Sequence[int]) -> tuple[str, ...]:
        if self.sides == "both":
            return factors.BOTH
        _, rows, columns = size
        smaller = factors.INPUTS if rows <= columns else factors.OUTPUTS
        return (smaller if self.sides == "smaller" else self.sides,)


def _identity(shape: tuple[int, int, int], variable: Any) -> tf.Tensor:
    """Returns identity matrices of a shape, for a variable of any shape."""
    return tf.eye(shape[-1], batch_shape=shape[:1])
