"""AdaGraft: the length of one optimizer's step, the direction of another's."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple, Unpack

import tensorflow as tf

from tf_graft.compose.wrapper import Wrapper
from tf_graft.core.arguments.declared import Flag
from tf_graft.core.arguments.options import Common
from tf_graft.core.arguments.registry import register
from tf_graft.core.state.point import Point, Step, under
from tf_graft.core.state.slots import NOT_NEGATIVE, Slot
from tf_graft.core.tensors import numerics
from tf_graft.core.tensors.shared_functions import call_shared

SMALLEST_NORM = 1e-30
NORMS = ("magnitude_norm", "direction_norm")


class Norms(NamedTuple):
    """The norms that a graft measured in its last step of a variable.

    Args:
        variable: the model variable.
        magnitude: the norm of the magnitude optimizer's step, a variable.
        direction: the norm of the direction optimizer's step, a variable.
    """

    variable: Any
    magnitude: Any
    direction: Any


@register
class AdaGraft(Wrapper):
    """AdaGraft: takes the length of one optimizer's step and the direction of another's.

    ```
    w <- w + learning_rate * (||m|| / ||d||) * d
    ```

    `m` and `d` are the steps that the two optimizers propose for the same gradient, including their
    own learning rates and weight decay; each optimizer keeps its own state. The norms are taken
    over each variable, or over all variables together. A variable whose `||d||` is zero or not
    finite does not move.

    Differences from Lingvo's AdaGraft: the global norm is computed at each step and works in
    `tf.function`; row-sparse gradients are supported; the steps are computed directly and not from
    differences of weights, which would round them. As in Lingvo's, `||d||` is at least 1e-30,
    which matters only for float64: in float32, norms below about 1e-19 are computed as zero.

    Args:
        magnitude_optimizer: sets the length of the step: an optimizer of tf_graft or Keras, a name
            or a config.
        direction_optimizer: sets the direction of the step; a constant learning rate of it
            cancels out.
        learning_rate: number, at least 0, or schedule: a factor on the grafted step.
        use_global_norm: whether one norm is taken over all variables of a call. This keeps the
            steps of all variables in memory.
        diagnostic: whether to keep the two norms of each variable's last step, in the slots
            `magnitude_norm` and `direction_norm`.
        **common: see `tf_graft.algorithm.Common`. Weight decay adds to that of the two optimizers;
            a variable that is excluded from it does not decay in them either.

    Raises:
        TypeError: an argument of the wrong type; an optimizer that cannot be wrapped.
        ValueError: an argument out of range; the same optimizer twice; one that clips, averages,
            accumulates or scales on its own.

    Row-sparse gradients: the norms are those of the touched rows' steps, unless `sparse` is
    `"exact"`.

    Example:
        >>> from tf_graft.optimizers import SGD, Adam
        >>> w = tf.Variable([0.0, 0.0])
        >>> AdaGraft(Adam(0.1), SGD(1.0)).apply([tf.constant([3.0, 4.0])], [w])
        >>> [round(x, 4) for x in w.numpy().tolist()]  # length 0.1 * sqrt(2), along -(3, 4)
        [-0.0849, -0.1131]

    Reference:
        Agarwal et al., 2020, "Disentangling adaptive gradient methods from learning rates"
        (arXiv 2002.11803), algorithm 2.
    """

    roles: ClassVar = {
        "magnitude": "magnitude_optimizer",
        "direction": "direction_optimizer",
    }
    rowwise = False

    def __init__(
        self,
        magnitude_optimizer: Any,
        direction_optimizer: Any,
        learning_rate: Any = 1.0,
        use_global_norm: Flag = False,
        diagnostic: Flag = False,
        **common: Unpack[Common],
    ):
        super().__init__(learning_rate, **common)
        self.adopt(magnitude_optimizer=magnitude_optimizer, direction_optimizer=direction_optimizer)

    def slots(self) -> dict[str, Slot]:
        norm = Slot(shape="scalar", within=NOT_NEGATIVE)
        return dict.fromkeys(NORMS, norm) if self.diagnostic else {}

    def norms(self) -> dict[str, Norms]:
        """Returns the norms of each variable's last step by path; requires `diagnostic=True`.

        Inside a wrapper, call it once the wrapper has been built: `larc.optimizer.norms()`.

        Raises:
            ValueError: `diagnostic` is False; neither the graft nor a wrapper around it has been
                built; it is in an AGN on parameter servers, whose workers keep no norms.
        """
        measured = [p for p in self.rule.parameters if NORMS[0] in p.slots]
        if not measured:
            what = "built first" if self.diagnostic else "made with diagnostic=True"
            raise ValueError(f"AdaGraft.norms: the optimizer must be {what}.")
        return {p.path: Norms(p.variable, *(p.slots[norm] for norm in NORMS)) for p in measured}

    def step_rate(self, p: Point) -> tf.Tensor:
        return p.lr * self.magnitude_optimizer.rule.step_rate(p.within("magnitude"))

    def propose(self, points: Iterable[Point]) -> Iterator[Step]:
        points, of_magnitude, of_direction = itertools.tee(points, 3)
        magnitude, direction = self.magnitude_optimizer.rule, self.direction_optimizer.rule
        magnitudes = magnitude.proposals(p.within("magnitude") for p in of_magnitude)
        directions = direction.proposals(p.within("direction") for p in of_direction)
        grafts = map(self._measured, points, magnitudes, directions)
        for lr, d, m_norm, d_norm, slots in _together(grafts) if self.use_global_norm else grafts:
            yield call_shared(_scaled, d, lr, m_norm, d_norm), slots

    def _measured(self, p: Point, magnitude: Step, direction: Step) -> tuple[Any, ...]:
        (m, m_slots), (d, d_slots) = magnitude, direction
        m_norm, d_norm = call_shared(_norms, m, d)
        slots = under("magnitude", m_slots) | under("direction", d_slots)
        if self.diagnostic:
            slots |= dict(zip(NORMS, (m_norm, d_norm), strict=True))
        return p.lr, d, m_norm, d_norm, slots


def _norms(m: tf.Tensor, d: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return numerics.length(m), numerics.length(d)


def _scaled(d: tf.Tensor, lr: tf.Tensor, m_norm: tf.Tensor, d_norm: tf.Tensor) -> tf.Tensor:
    """Returns a step of the direction of `d`, at the ratio of the norms."""
    ratio = numerics.quotient(m_norm, tf.maximum(d_norm, SMALLEST_NORM))
    moves = (d_norm > 0) & tf.math.is_finite(ratio)
    return numerics.product(d, tf.where(moves, lr * ratio, 0))


def _together(grafts: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Replaces the norms of each variable by the norms over all variables."""
    grafts = list(grafts)
    total = max((d.dtype for _, d, *_ in grafts), key=lambda dtype: dtype.size)
    m_norm, d_norm = (
        numerics.length(tf.stack([tf.cast(graft[i], total) for graft in grafts])) for i in (2, 3)
    )
    for lr, d, _, _, slots in grafts:
        yield lr, d, tf.cast(m_norm, d.dtype), tf.cast(d_norm, d.dtype), slots
