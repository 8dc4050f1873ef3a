"""Algorithms: an optimizer's mathematics as pure functions of tensors, which write no variable."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_graft.core import patterns
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.point import Point, Step
from tf_graft.core.state.slots import Slot
from tf_graft.core.tensors import scratch_variables
from tf_graft.core.types import Gradient, Rates, Slots


class Delegate(NamedTuple):
    """Who updates a variable in place of an algorithm that leaves the update as it is.

    Args:
        algorithm: the one that does.
        parameter: the variable, with the slots of that one.
        rates: the rates of that one, by role.
    """

    algorithm: "Algorithm"
    parameter: Parameter
    rates: Rates


class Algorithm:
    """Two pure functions, `slots` and `step`; the engine derives every execution from them.

    Attributes:
        rowwise: each row of a variable is updated from that row alone.
        skips_zero_rows: where rows depend on one another, rows of zeros in the gradient, weights
            and slots change nothing for the others, as in a norm or a sum over rows. Otherwise
            `step` is shown whole variables, with a row-sparse gradient too.
        idle: a zero gradient changes neither slots nor weights.
        exact_kernel: `kernel` gives the bits of `step`, added to the weights.
        kernel_reads: `kernel` reads the weights, which then may not decay before it.
        weight_decay: decoupled weight decay; None for none.
        decay_exclusions: patterns of paths that do not decay.
        outer_exclusions: those of the optimizers that this one is in.
    """

    rowwise = True
    skips_zero_rows = False
    idle = False
    weight_decay: Any = None
    decay_exclusions: Any = ()
    outer_exclusions: Sequence[str] = ()

    # `step` as one TensorFlow kernel that works in place, or None. It takes the arguments of
    # `step`, but `w` and `s` are variables. It adds the step to `w`, and reads `w.value()` only if
    # the class says `kernel_reads`. The engine calls it for dense gradients; on rows, `step` was
    # measured to be as fast. A kernel that gives the bits of `step` (`exact_kernel`) also updates
    # the float32 masters of variables in half precision.
    kernel: Callable[..., None] | None = None
    exact_kernel = False
    kernel_reads = False

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        if vars(cls).keys() & {"step", "propose"} and "kernel" not in vars(cls):
            cls.kernel = None  # an inherited one does what another `step` does

    def slots(self) -> dict[str, Slot]:
        """What is remembered for each variable, by role. Roles are checkpoint keys."""
        return {}

    def slots_for(self, path: str) -> dict[str, Slot]:
        """`slots`, where they differ from variable to variable."""
        return self.slots()

    def shared_slots(self) -> dict[str, Slot]:
        """What is remembered once, not for each variable."""
        return {}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: Slots, lr: tf.Tensor, t: tf.Tensor) -> Step:
        """The signed step to add to the weights, and the new slots. Pure: reads no variable.

        Args:
            g: gradient, of the shape of `w`: a whole variable or its touched rows. With the latter
                there may be rows of zeros in `g`, `w` and `s`, where XLA or a mesh needs a static
                size; the steps of such rows are dropped, whatever they are.
            w: weights, float32 or float64.
            s: slots by role.
            lr: learning rate, a scalar of the dtype of `w`.
            t: number of this update, from 1, a scalar of the dtype of `w`.
        """
        raise NotImplementedError

    def traits(self, path: str) -> dict[str, Any]:
        """What `step` needs to know about the variable of that path, as further arguments."""
        return {}

    def whole(self, path: str) -> bool:
        """Whether a step needs the whole variable, and not its touched rows alone."""
        return not (self.rowwise or self.skips_zero_rows)

    def advance(self, s: Slots, rates: Rates, t: tf.Tensor) -> dict[str, tf.Tensor]:
        """The new values of `shared_slots`: once an update, before its steps."""
        return {}

    def rates(self) -> dict[str, Any]:
        """The present learning rates by role."""
        return {}

    def prepare(self, variables: Mapping[str, Any]) -> None:
        """Looks at the variables, by path, before any state is made for them."""

    def complete(self, parameters: Sequence[Parameter]) -> None:
        """Makes what depends on the state of the variables, after that was made.

        Args:
            parameters: the variables, with the slots of this algorithm by its own roles.
        """

    def propose(self, points: Iterable[Point]) -> Iterator[Step]:
        """The steps of several variables, each computed when it is asked for.

        Override it to reshape the steps of other optimizers, or for what spans variables.
        """
        for p in points:
            if p.in_place and self.kernel is not None:
                yield scratch_variables.added(p.w, functools.partial(self._run_kernel, p)), {}
            else:
                yield self.step(p.g, p.w, p.state(), p.lr, p.t, **self.traits(p.path))

    def _run_kernel(self, p: Point, weights: Any) -> None:
        assert self.kernel is not None  # for the type checker
        self.kernel(p.g, weights, p.s, p.lr, p.t, **self.traits(p.path))

    def proposals(self, points: Iterable[Point]) -> Iterator[Step]:
        """`propose`, with decoupled weight decay, for the touched rows."""
        points, given = itertools.tee(points)
        for p, (d, slots) in zip(points, self.propose(given), strict=True):
            moved = d - p.lr * self.weight_decay * p.w if self.decays(p.path) else d
            yield p.of_touched(moved), slots

    @functools.cached_property
    def compiled_proposals(self) -> Any:
        """`proposals` as a list, compiled by XLA."""
        return tf.function(lambda points: list(self.proposals(points)), jit_compile=True)

    def decays(self, path: str) -> bool:
        """Whether decoupled weight decay applies to the variable of that path."""
        return bool(self.weight_decay) and not self.undecayed(path)

    @property
    def undecayed_paths(self) -> list[str]:
        """The patterns of paths that do not decay, here or in an optimizer that this one is in."""
        return [*self.outer_exclusions, *self.decay_exclusions]

    def undecayed(self, path: str) -> bool:
        """Whether the variable of that path is excluded from weight decay."""
        return patterns.matches(path, self.undecayed_paths)

    def step_rate(self, p: Point) -> tf.Tensor:
        """The rate that the step at a point is proportional to: the learning rate."""
        return p.lr

    def exact_on_rows(self, path: str) -> bool:
        """Whether the steps of the touched rows are all that the equal dense gradient would do."""
        return self.idle and self.rowwise and not self.decays(path)

    def acts_dense(self, path: str, sparse: str) -> bool:
        """Whether a row-sparse gradient of the variable of that path acts as a dense one.

        Args:
            path: of the variable.
            sparse: see `tf_graft.algorithm.Common`.
        """
        return self.whole(path) or (sparse == "exact" and not self.exact_on_rows(path))

    def delegate(self, parameter: Parameter, rates: Rates) -> Delegate | None:
        """Who updates the variable, if this algorithm leaves the update as it is."""
        return None


Watcher = Callable[[list[Gradient], list[Parameter]], None]
