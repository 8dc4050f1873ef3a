"""The base class of optimizers that update matrices, and leave the rest to another optimizer."""

import types
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Unpack

import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.compose.wrapper import Wrapper
from tf_graft.core import checks
from tf_graft.core.arguments.checked import Checked
from tf_graft.core.arguments.declared import Flag
from tf_graft.core.arguments.options import Common
from tf_graft.core.places import shares
from tf_graft.core.places.shares import Sharing
from tf_graft.core.state.point import Point, Step, grouped, multiplied, under, within
from tf_graft.core.state.slots import Slot
from tf_graft.core.types import RateLike, Rates, Slots, VariableLike
from tf_graft.matrices import axes as given_axes
from tf_graft.matrices.axes import Axes, Given
from tf_graft.matrices.found import HEADS, axes_of_frozen, axes_of_variables

GivenAxes = Annotated[Given | None, Checked(given_axes.checked)]
Heads = Annotated[str, Checked(checks.choice, HEADS)]

# Matrices are computed together if one side has at most so many rows; larger ones do not gain.
SMALL = 128


class MatrixOptimizer(Wrapper):
    """An optimizer of matrices; another optimizer updates what is no matrix.

    A subclass declares in `slots` or `slots_of` what it remembers for a variable that is one matrix
    or several. It computes in `moments` what it does to each entry of a variable, and in
    `direction` what it does to matrices. Matrices of one size form one batch, for which `direction`
    is called once, if devices divide the work or the matrices are small; otherwise it is called for
    each variable.

    Attributes:
        axes_by_path: how each variable is a matrix, by path; None if it is none. Empty until the
            optimizer is built.
        divided_from: replicas divide the work on matrices whose sides are at least this long.

    Args:
        learning_rate: of the matrices: number, at least 0, or schedule.
        others: updates all other variables: an optimizer of tf_graft or Keras, a name or a config.
            It has its own learning rate and weight decay.
        axes: which variables are matrices, and how: see `tf_graft.axes_of`. None finds it from the
            layers that hold the variables.
        heads: `"merged"` or `"apart"`: see `tf_graft.axes_of`.
        divide: whether devices divide the work: see `direction`.
        **common: see `tf_graft.algorithm.Common`. Weight decay is that of the matrices.
    """

    roles: ClassVar = {"others": "others"}
    column: ClassVar[str] = "matrices"
    rowwise = False
    divided_from: ClassVar[int] = 1
    axes_by_path: Mapping[str, Axes | None] = types.MappingProxyType({})

    def __init__(
        self,
        learning_rate: RateLike,
        others: Any,
        axes: GivenAxes = None,
        heads: Heads = "merged",
        divide: Flag = True,
        **common: Unpack[Common],
    ):
        super().__init__(learning_rate, **common)
        self.adopt(others=others)

    def prepare(self, variables: Mapping[str, VariableLike]) -> None:
        owner = type(self).__name__
        found = axes_of_variables(owner, variables, self.axes, self.heads, self.rule.models)
        found = {**found, **self.axes_by_path}  # what there is state for stays as it is
        if not any(found.values()):
            self._without_matrices(f"{owner}: none of the {len(variables)} variables is a matrix")
        self.axes_by_path = types.MappingProxyType(found)

    def _without_matrices(self, found: str) -> None:
        """Warns that all matrices are frozen, or refuses variables of which none is a matrix."""
        if not any(axes_of_frozen(self.rule.models, self.heads).values()):
            raise ValueError(
                f"{found} to it (embeddings and the last layer are not, unless you say so); name "
                f"some in axes, or use {self.others.rule.called} alone."
            )
        warnings.warn(
            f"{found} as long as the model's other layers are frozen; {self.others.rule.called} "
            "updates all of them.",
            stacklevel=2,
        )

    def serves(self, role: str, path: str) -> bool:
        return self.axes_by_path.get(path) is None

    def leader(self, path: str) -> str | None:
        return "others" if self.serves("others", path) else None

    def passes_on(self, path: str) -> bool:
        return True

    def rates_within(self, role: str, rates: Rates) -> dict[str, Any]:
        own = within(role, rates)
        return multiplied(own, rates["multiplier"]) if "multiplier" in rates else own

    def slots_for(self, path: str) -> dict[str, Slot]:
        axes = self.axes_by_path.get(path)
        if axes is None:
            return under("others", self.others.slots_for(path))
        return self.slots_of(axes)

    def slots_of(self, axes: Axes) -> dict[str, Slot]:
        """Returns the slots of a variable with these axes; override it if they depend on them."""
        return self.slots()

    def traits(self, path: str) -> dict[str, Any]:
        return {"axes": self.axes_by_path[path]}

    def whole(self, path: str) -> bool:
        return not self.serves("others", path) or super().whole(path)

    def moments(self, g: tf.Tensor, s: Slots, t: tf.Tensor) -> tuple[list[tf.Tensor], Slots]:
        """Returns the tensors that `direction` gets as matrices, and new slots.

        Args:
            g: the gradient, of the variable's shape.
            s: the slots of the variable.
            t: the number of this update, from 1.
        """
        return [g], {}

    def direction(
        self,
        matrices: list[tf.Tensor],
        s: Slots,
        t: tf.Tensor,
        share: Sharing,
        paths: Sequence[str],
    ) -> Step:
        """Returns minus the step at learning rate 1, as matrices, and new slots of matrices.

        Args:
            matrices: the tensors of `moments`, each [n, inputs, outputs].
            s: the slots that have a shape of their own; the first dimension belongs to the n
                matrices of all variables, one after the other.
            t: the number of this update, from 1.
            share: `share(f, *batches)` is `f(*batches)`, of which each device computes a share.
            paths: the paths of the variables, in the order of their matrices.
        """
        raise NotImplementedError

    def _matrices(self, x: tf.Tensor, axes: Axes) -> tf.Tensor:
        """Returns a tensor of the variable's shape as matrices; on a mesh each device has all."""
        return self._on_each_device(axes.matrices(self._on_each_device(x)))

    def _restored(self, m: tf.Tensor, axes: Axes) -> tf.Tensor:
        """Returns matrices as a tensor of the variable's shape."""
        return self._on_each_device(axes.restored(self._on_each_device(m)))

    def _on_each_device(self, x: tf.Tensor) -> tf.Tensor:
        """Returns a tensor that is not divided; DTensor divides products of matrices wrongly."""
        if self.mesh is None:
            return x
        return dtensor.relayout(x, dtensor.Layout.replicated(self.mesh, x.shape.rank))

    def propose(self, points: Iterable[Point]) -> Iterator[Step]:
        return grouped(points, self._group, self._steps)

    def _group(self, p: Point) -> Hashable:
        """Returns what a point's step is computed with: the size of its matrices, or its path.

        It is None for the points of `others`.
        """
        axes = self.axes_by_path[p.path]
        if axes is None:
            return None
        _, rows, columns = axes.size
        together = min(rows, columns) <= SMALL or self._sharing(p).devices > 1
        return (rows, columns, p.g.dtype) if together else p.path

    def _steps(self, group: Hashable, points: Iterator[Point]) -> Iterator[Step]:
        """Yields the steps of a group, each on its own if the group is a path."""
        if group is None:
            given = (self.point_within("others", p) for p in points)
            for d, slots in self.others.rule.proposals(given):
                yield d, under("others", slots)
        elif isinstance(group, str):
            for p in points:
                yield from self._together([p])
        else:
            yield from self._together(list(points))

    def _together(self, points: Sequence[Point]) -> Iterator[Step]:
        """Yields the steps of variables whose matrices have one size."""
        all_axes = [self._axes(p) for p in points]
        states = [p.state() for p in points]
        own = {role for role, slot in self.slots_of(all_axes[0]).items() if slot.has_own_shape}
        first, paths = points[0], [p.path for p in points]
        with self.rule.at(first.rates):
            both = [self.moments(p.g, s, p.t) for p, s in zip(points, states, strict=True)]
        each = [
            [self._matrices(x, axes) for x in moments]
            for (moments, _), axes in zip(both, all_axes, strict=True)
        ]
        matrices = [_joined(x) for x in zip(*each, strict=True)]
        of_matrices = {role: _joined([s[role] for s in states]) for role in sorted(own)}
        with self.rule.at(first.rates):
            d, new = self.direction(matrices, of_matrices, first.t, self._sharing(first), paths)
        parts = zip(
            _parted(d, [x[0].shape[0] for x in each]),
            *(_parted(x, [s[role].shape[0] for s in states]) for role, x in new.items()),
            strict=True,
        )
        every = zip(points, all_axes, both, parts, strict=True)
        for p, axes, (_, slots), (direction, *values) in every:
            step = -p.lr * self._restored(direction, axes)
            yield step, {**slots, **dict(zip(new, values, strict=True))}

    def _axes(self, p: Point) -> Axes:
        axes = self.axes_by_path[p.path]
        assert axes is not None  # for the type checker
        return axes

    def _sharing(self, p: Point) -> Sharing:
        """Returns how devices divide the work at a point."""
        if not self.divide:
            return shares.ALONE
        if self.mesh is not None:
            return shares.of_mesh(self.mesh)
        _, *sides = self._axes(p).size
        pays = min(sides) >= self.divided_from
        return shares.of_replicas(self.iterations) if p.alike and pays else shares.ALONE


def _joined(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns one batch of several."""
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, 0)


def _parted(x: tf.Tensor, lengths: Sequence[int]) -> list[tf.Tensor]:
    """Returns the batches of these lengths of which one is made."""
    return [x] if len(lengths) == 1 else tf.split(x, lengths)
