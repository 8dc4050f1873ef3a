"""The point that a variable's step is computed at, and the step."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tf_graft.core.tensors import numerics

Step = tuple[tf.Tensor, dict[str, tf.Tensor]]


class Point(NamedTuple):
    """Where one variable stands: all of it, or the rows that its gradient touches.

    What belongs to an optimizer's child stands under the child's role: `magnitude/momentum`,
    `magnitude/learning_rate`.

    Args:
        path: the variable's path.
        g: gradient, of the shape of `w`.
        w: weights, float32 or float64.
        s: slots by role, and the state that is not of one variable: tensors, or variables to be
            read when they are wanted.
        rates: learning rates by role, scalars of the dtype of `w`.
        t: number of this update, from 1, a scalar of the dtype of `w`.
        in_place: whether `s` are variables that a kernel may change.
        touched: which rows of `w` the gradient touches, booleans of shape [k]; None if it touches
            all of them. Where sizes must be static, the others fill up what is shown: XLA adds
            rows, a mesh shows whole variables. There `g`, `w` and `s` are zero.
    """

    path: str
    g: tf.Tensor
    w: tf.Tensor
    s: dict[str, Any]
    rates: dict[str, tf.Tensor]
    t: tf.Tensor
    in_place: bool = False
    touched: tf.Tensor | None = None

    @property
    def lr(self) -> tf.Tensor:
        """The optimizer's own rate."""
        return self.rates["learning_rate"]

    def state(self) -> dict[str, tf.Tensor]:
        """`s`, read."""
        return {role: tf.convert_to_tensor(x) for role, x in self.s.items()}

    def of_touched(self, d: tf.Tensor) -> tf.Tensor:
        """A step with zeros in the rows that the gradient does not touch."""
        if self.touched is None:
            return d
        return numerics.where_rows(self.touched, d, tf.zeros_like(self.w, d.dtype))

    def within(self, role: str) -> "Point":
        """The same place, seen by the child of that role."""
        return self._replace(s=within(role, self.s), rates=within(role, self.rates))


def within(role: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """What stands under `role/`, without it."""
    prefix = f"{role}/"
    return {name.removeprefix(prefix): x for name, x in named.items() if name.startswith(prefix)}


def under(role: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Everything, placed under `role/`."""
    return {f"{role}/{name}": x for name, x in named.items()}
