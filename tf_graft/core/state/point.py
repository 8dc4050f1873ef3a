"""The point at which a variable's step is computed, and the step."""

import collections
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tf_graft.core.tensors import numerics

Step = tuple[tf.Tensor, dict[str, tf.Tensor]]


class Point(NamedTuple):
    """The input of one variable's step: all of the variable, or the rows that its gradient touches.

    The names of slots and rates of an optimizer's child begin with the child's role:
    `magnitude/momentum`, `magnitude/learning_rate`.

    Args:
        path: the variable's path.
        g: the gradient, of the shape of `w`.
        w: the weights, float32 or float64.
        s: the slots by role, and the state that does not belong to one variable: tensors, or
            variables that are read when needed.
        rates: the learning rates by role, scalars of the dtype of `w`.
        t: the number of this update, from 1, a scalar of the dtype of `w`.
        in_place: whether `s` are variables that a kernel may change.
        touched: which rows of `w` the gradient touches, booleans of shape [k]; None if it touches
            all of them. Other rows are there only if sizes must be static: XLA adds rows, and a
            mesh uses whole variables. In these rows `g`, `w` and `s` are zero.
        alike: whether all replicas compute the same step, and may divide the work.
        bare: whether the step is wanted without weight decay, which `with_decay` adds later.
    """

    path: str
    g: tf.Tensor
    w: tf.Tensor
    s: dict[str, Any]
    rates: dict[str, tf.Tensor]
    t: tf.Tensor
    in_place: bool = False
    touched: tf.Tensor | None = None
    alike: bool = False
    bare: bool = False

    @property
    def lr(self) -> tf.Tensor:
        """The optimizer's own learning rate."""
        return self.rates["learning_rate"]

    def state(self) -> dict[str, tf.Tensor]:
        """The tensors of `s`; variables are read."""
        return {role: tf.convert_to_tensor(x) for role, x in self.s.items()}

    def of_touched(self, d: tf.Tensor) -> tf.Tensor:
        """Returns a step with zeros in the rows that the gradient does not touch."""
        if self.touched is None:
            return d
        return numerics.where_rows(self.touched, d, tf.zeros_like(self.w, d.dtype))

    def within(self, role: str) -> "Point":
        """Returns the same point for the child of a role, whose step contains its decay."""
        return self._replace(s=within(role, self.s), rates=within(role, self.rates), bare=False)


def within(role: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries whose names begin with `role/`, under the rest of their names."""
    prefix = f"{role}/"
    return {name.removeprefix(prefix): x for name, x in named.items() if name.startswith(prefix)}


def under(role: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all entries with `role/` before their names."""
    return {f"{role}/{name}": x for name, x in named.items()}


def multiplied(rates: Mapping[str, Any], factor: Any) -> dict[str, Any]:
    """Returns rates with the learning rate times a factor, a scalar or of shape [k, 1, ...].

    `multiplier` is the product of all such factors, for optimizers inside with rates of their own.
    """
    product = rates["multiplier"] * factor if "multiplier" in rates else factor
    rate = numerics.product(rates["learning_rate"], factor)  # no graph regroups it
    return {**rates, "learning_rate": rate, "multiplier": product}


def grouped(
    points: Iterable[Point],
    group_of: Callable[[Point], Hashable],
    steps: Callable[[Any, Iterator[Point]], Iterator[Step]],
) -> Iterator[Step]:
    """Yields the step from each point, in order, as computed for the group of the point.

    A point is requested when its group, or the caller, needs it. Points of other groups that come
    before it wait.

    Args:
        points: the points.
        group_of: returns the group of a point.
        steps: yields the steps of one group from the group and its points.
    """
    source = iter(points)
    order: collections.deque[Hashable] = collections.deque()
    waiting: dict[Hashable, collections.deque[Point]] = collections.defaultdict(collections.deque)
    made: dict[Hashable, Iterator[Step]] = {}

    def another() -> bool:
        for p in source:
            group = group_of(p)
            order.append(group)
            waiting[group].append(p)
            return True
        return False

    def of(group: Hashable) -> Iterator[Point]:
        while waiting[group] or another():
            if waiting[group]:
                yield waiting[group].popleft()

    while order or another():
        group = order.popleft()
        if group not in made:
            made[group] = steps(group, of(group))
        yield next(made[group])
