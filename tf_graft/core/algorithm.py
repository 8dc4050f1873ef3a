"""What an algorithm supplies, and how what it proposes reaches the variables."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from tf_graft.core import keras_contract, numerics, replicas, scratch, write
from tf_graft.core.lifecycle import Lifecycle
from tf_graft.core.parameters import Parameter
from tf_graft.core.point import Point, Step
from tf_graft.core.write import Part, Rows, Whole

# Variables of so many entries are gone through one by one, so that few steps are in memory at once.
LARGE = 2**18


class Algorithm(Lifecycle):
    """An optimizer's mathematics: pure functions of tensors, and the writing of their results."""

    rowwise = True
    idle = False

    # `step` as one in-place TensorFlow kernel, where there is one: a function of (g, w, s, lr, t)
    # like it, but of variables; it adds to `w` and makes no other use of it. For dense gradients;
    # on rows `step` was measured to be as fast.
    kernel: Callable[..., None] | None = None

    def step(
        self, g: tf.Tensor, w: tf.Tensor, s: dict[str, tf.Tensor], lr: tf.Tensor, t: tf.Tensor
    ) -> Step:
        """The signed step to add to the weights, and the new slots. Pure: reads no variable.

        Args:
            g: gradient, of the shape of `w`: a whole variable or its touched rows.
            w: weights, float32 or float64.
            s: slots by role.
            lr: learning rate, a scalar of the dtype of `w`.
            t: number of this update, from 1, a scalar of the dtype of `w`.
        """
        raise NotImplementedError

    def traits(self, path: str) -> dict[str, Any]:
        """What `step` is to know about the variable of that path, as further arguments."""
        return {}

    def whole(self, path: str) -> bool:
        """Whether the variable's touched rows are not enough for a step: it takes all of it."""
        return False

    def propose(self, points: Iterable[Point]) -> Iterator[Step]:
        """The steps of several variables, each made when it is asked for.

        What reshapes other optimizers' steps, or what spans variables, does it here.
        """
        for p in points:
            if p.in_place and self.kernel is not None:
                yield scratch.added(p.w, functools.partial(self._run_kernel, p)), {}
            else:
                yield self.step(p.g, p.w, p.state(), p.lr, p.t, **self.traits(p.path))

    def _run_kernel(self, p: Point, weights: Any) -> None:
        self.kernel(p.g, weights, p.s, p.lr, p.t)  # type: ignore[misc]

    def proposals(self, points: Iterable[Point]) -> Iterator[Step]:
        """`propose`, with decoupled weight decay."""
        points, given = itertools.tee(points)
        for p, (d, slots) in zip(points, self.propose(given), strict=True):
            yield (d - p.lr * self.weight_decay * p.w if self.decays(p.path) else d), slots

    def advance(self, s: dict[str, Any], rates: dict[str, Any], t: tf.Tensor) -> dict[str, Any]:
        """The new values of the state that is not of one variable: once an update, before it."""
        return {}

    def _write(
        self, gradients: list[Any], parameters: list[Parameter], scale: Any, rates: Any
    ) -> None:
        """Propose, then write: by kernel where there is one, by `step` otherwise."""
        t = self._done() + 1
        scalars = {
            dtype: ({role: tf.cast(rate, dtype) for role, rate in rates.items()}, tf.cast(t, dtype))
            for dtype in dict.fromkeys(p.dtype for p in parameters)
        }
        shared = self._advanced(rates, t)
        stepping = []
        for gradient, parameter in _unscaled(zip(gradients, parameters, strict=True), scale):
            if not self.write_by_kernel(gradient, parameter, *scalars[parameter.dtype]):
                stepping.append((gradient, parameter))
        self._write_steps(stepping, scalars, shared)
        for parameter in parameters:
            if parameter.variable.constraint is not None:
                parameter.replace(parameter.variable.constraint(parameter.read(Whole())))

    def _advanced(self, rates: dict[str, Any], t: tf.Tensor) -> dict[str, tf.Tensor]:
        shared = {role: replicas.local(variable) for role, variable in self._shared.items()}
        new = self.advance({role: v.value() for role, v in shared.items()}, rates, t)
        for role, value in new.items():
            shared[role].assign(value, read_value=False)
        return new

    def write_by_kernel(
        self, gradient: Any, parameter: Parameter, rates: dict[str, tf.Tensor], t: tf.Tensor
    ) -> bool:
        """Updates one variable in place, and says whether it could."""
        dense = not numerics.row_sparse(gradient)
        if self.kernel is None or not dense or not self._kernels_serve(parameter):
            return False
        lr = rates["learning_rate"]
        if self.decays(parameter.path):
            weights = parameter.read(Whole())
            parameter.move(Whole(), weights, -lr * self.weight_decay * weights)
        slots = {role: replicas.local(slot) for role, slot in parameter.slots.items()}
        self.kernel(gradient, replicas.local(parameter.variable), slots, lr, t)
        return True

    def _kernels_serve(self, parameter: Parameter) -> bool:
        """Kernels know no masters and no meshes, and XLA does as well with `step`."""
        compiled = self.jit_compile is True or keras_contract.in_xla()
        return not (compiled or self.mesh is not None or "master" in parameter.state)

    def _write_steps(
        self, stepping: list[tuple[Any, Parameter]], scalars: Any, shared: dict[str, tf.Tensor]
    ) -> None:
        parts = [write.part_of(g, p.rows) for g, p in stepping]

        def point(gradient: Any, parameter: Parameter, part: Part) -> Point:
            slots = {role: replicas.local(slot) for role, slot in parameter.slots.items()}
            in_place = isinstance(part, Whole) and self._kernels_serve(parameter)
            if not in_place:
                slots = {role: part.read(slot) for role, slot in slots.items()}
            g, w = numerics.values(gradient), parameter.read(part)
            rates, t = scalars[parameter.dtype]
            return Point(parameter.path, g, w, slots | shared, rates, t, in_place)

        points, given = itertools.tee(
            point(g, p, part) for (g, p), part in zip(stepping, parts, strict=True)
        )
        dense = not any(isinstance(part, Rows) for part in parts)
        compiled = self.jit_compile is True and dense
        steps = iter(self._compiled_proposals(list(given)) if compiled else self.proposals(given))
        written: list[tf.Operation] = []
        for (_, p), part in zip(stepping, parts, strict=True):
            large = math.prod(p.variable.shape) >= LARGE
            with tf.control_dependencies(written if large else []):
                at, (d, slots) = next(points), next(steps)
                moved = p.move(part, at.w, d)
                for role, value in slots.items():
                    part.write(replicas.local(p.slots[role]), value)
            if large and moved is not None:  # eagerly one comes after the other anyway
                written = [moved]

    @functools.cached_property
    def _compiled_proposals(self) -> Any:
        return tf.function(lambda points: list(self.proposals(points)), jit_compile=True)


def _unscaled(both: Iterable[tuple[Any, Parameter]], scale: Any) -> Iterator[tuple[Any, Parameter]]:
    """The gradients divided by the scale, one after the other, each soon before it is used."""
    before: list[Any] = []
    for gradient, parameter in both:
        with tf.control_dependencies(before):
            gradient = numerics.divided(gradient, scale)
        if scale is not None:
            before = [numerics.values(gradient)]
        yield gradient, parameter
