"""NorMuon: Muon whose steps are about equally long for every output."""

import functools
from collections.abc import Sequence
from typing import Any, Unpack

import tensorflow as tf

from tf_graft import algorithm as ta
from tf_graft.optimizers.muon import Muon
from tf_graft.optimizers.newton_schulz import QUINTIC, Coefficients, Precision, Scale, lengths

LEAST = 1e-8


@ta.register
class NorMuon(Muon):
    """NorMuon: Muon that divides the step of each output by its running root mean square.

    ```
    o as in `Muon`
    v <- v + (1 - beta_2) * (mean of o^2 over the inputs - v)         one number for each output
    n = o / (sqrt(v) + 1e-8)
    w <- w - learning_rate * scale * n * ||o|| / ||n||
    ```

    With Muon, some outputs move far more than others; with NorMuon, all move about equally far. The
    norm of the whole step stays that of Muon, as in the authors' program. NorMuon keeps one more
    number for each output than Muon. The authors' program iterates in bfloat16: see `ns_dtype`.

    Args:
        learning_rate: learning rate of the matrices: number, at least 0, or schedule.
        momentum: decay of the momentum: number, or schedule.
        beta_2: decay of the mean square.
        nesterov: whether the momentum looks one step ahead.
        scale: as in `Muon`. Default `"match_rms_adamw"`, as in the paper.
        ns_steps: the number of Newton-Schulz iterations.
        ns_coefficients: as in `Muon`.
        epsilon: a term added to the norm of each matrix.
        others: updates all other variables: an optimizer of tf_graft or Keras, a name or a config.
        axes: which variables are matrices, and how, by pattern; see `tf_graft.axes_of`.
        heads: `"merged"` or `"apart"`: whether the heads of attention are one matrix or several.
        divide: whether replicas, or the devices of a mesh, divide the work.
        ns_dtype: as in `Muon`.
        **common: see `tf_graft.algorithm.Common`. `weight_decay` applies to the matrices.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range; or, when the optimizer is built, no variable of the
            model is a matrix.

    Row-sparse gradients: as in `Muon`.

    Example:
        >>> w = tf.Variable(tf.zeros([2, 2]))
        >>> NorMuon(0.5).apply([tf.constant([[3.0, 0.0], [0.0, 0.3]])], [w])
        >>> bool(abs(w[0, 0] - w[1, 1]) < 1e-5)  # both outputs move as far
        True

    Reference:
        Li et al., 2025, "NorMuon: making Muon more efficient and scalable" (arXiv 2510.05491),
        algorithm 1.
    """

    def __init__(
        self,
        learning_rate: ta.RateLike = 0.02,
        momentum: ta.BelowOneOrSchedule = 0.95,
        beta_2: ta.BelowOne = 0.95,
        nesterov: ta.Flag = True,
        scale: Scale = "match_rms_adamw",
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
        own = (momentum, nesterov, scale, ns_steps, ns_coefficients, epsilon)
        super().__init__(learning_rate, *own, others, axes, heads, divide, ns_dtype, **common)

    def slots_of(self, axes: ta.Axes) -> dict[str, ta.Slot]:
        batch, _, outputs = axes.size
        return self.slots() | {"velocity": ta.Slot(shape=(batch, outputs), within=ta.NOT_NEGATIVE)}

    def direction(
        self,
        matrices: list[tf.Tensor],
        s: ta.Slots,
        t: tf.Tensor,
        share: ta.Sharing,
        paths: Sequence[str],
    ) -> ta.Step:
        d, v = share(functools.partial(self._normalized, t), *matrices, s["velocity"])
        return d, {"velocity": v}

    def _normalized(self, t: tf.Tensor, u: tf.Tensor, v: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the directions of matrices, and the new mean squares."""
        o = self.orthogonal(u)
        v = ta.running_mean(v, tf.reduce_mean(o * o, 1), self.beta_2, t)
        n = o / (tf.expand_dims(tf.sqrt(v), 1) + LEAST)
        return n * (self.factor(u) * lengths(o) / tf.maximum(lengths(n), LEAST)), v
