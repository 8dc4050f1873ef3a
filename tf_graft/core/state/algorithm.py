"""Algorithms: an optimizer's mathematics as pure functions of tensors, which write no variable."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_graft.core import patterns
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.point import Point, Step
from tf_graft.core.state.slots import Slot
from tf_graft.core.tensors import numerics, scratch_variables
from tf_graft.core.tensors.memo import memoized
from tf_graft.core.types import Gradient, NumberLike, Rates, Scalar, Slots, VariableLike


class Delegate(NamedTuple):
    """The algorithm that updates a variable for one that leaves the update as it is.

    Args:
        algorithm: the algorithm that makes the update.
        parameter: the variable, with the slots of that algorithm as a kernel takes them.
        rates: the rates of that algorithm, by role.
    """

    algorithm: "Algorithm"
    parameter: Parameter
    rates: Rates


class Algorithm:
    """Two pure functions, `slots` and `step`; the engine derives every execution from them.

    Attributes:
        rowwise: each row of a variable is updated from that row alone.
        skips_zero_rows: if rows depend on one another, rows of zeros in the gradient, weights and
            slots change nothing for other rows, as in a norm or a sum over rows. Otherwise `step`
            gets whole variables, even with a row-sparse gradient.
        idle: a zero gradient changes neither slots nor weights.
        finds_rate: the rule finds the length of its steps, and the learning rate is a factor of it.
        exact_kernel: `kernel` adds to the weights exactly the bits of `step`.
        kernel_reads: `kernel` reads the weights, so they must not decay before it runs.
        weight_decay: decoupled weight decay, a number or a schedule; None for none.
        decay_exclusions: patterns of paths that do not decay.
        outer_exclusions: the patterns of the optimizers around this one.
        shapes: the shapes of the variables by path, known before `slots_for` is called.
    """

    rowwise = True
    skips_zero_rows = False
    idle = False
    finds_rate = False
    weight_decay: NumberLike | None = None
    decay_exclusions: Sequence[str] = ()
    outer_exclusions: Sequence[str] = ()
    shapes: Mapping[str, tuple[int, ...]] = {}

    # `step` as TensorFlow kernels that work in place, or None. It takes the arguments of `step`,
    # but `w` and the slots are variables; only `shared_slots` are tensors. It adds the step to
    # `w`, and reads `w.value()` only if the class sets `kernel_reads`. The engine calls it for
    # dense gradients; on rows, measurements showed `step` to be as fast. A kernel that gives the
    # bits of `step` (`exact_kernel`) also updates the float32 masters of variables in half
    # precision.
    kernel: Callable[..., None] | None = None
    exact_kernel = False
    kernel_reads = False

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        if vars(cls).keys() & {"step", "propose"} and "kernel" not in vars(cls):
            cls.kernel = None  # an inherited kernel would compute the step of another class

    def slots(self) -> dict[str, Slot]:
        """Returns the state to keep for each variable, by role. Roles are checkpoint keys."""
        return {}

    def slots_for(self, path: str) -> dict[str, Slot]:
        """Returns the slots of one variable; override it if `slots` differ between variables."""
        return self.slots()

    def shared_slots(self) -> dict[str, Slot]:
        """Returns the state to keep once, not for each variable."""
        return {}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: Slots, lr: tf.Tensor, t: tf.Tensor) -> Step:
        """Returns the signed step to add to the weights, and the new slots; reads no variable.

        Args:
            g: the gradient, of the shape of `w`: that of a whole variable or of its touched rows.
                Touched rows may be padded with rows of zeros in `g`, `w` and `s`, if XLA or a mesh
                needs a static size; the steps of such rows are dropped, whatever they are.
            w: the weights, float32 or float64.
            s: the slots by role.
            lr: the learning rate, a scalar of the dtype of `w`.
            t: the number of this update, from 1, a scalar of the dtype of `w`.
        """
        raise NotImplementedError

    def traits(self, path: str) -> dict[str, Any]:
        """Returns further arguments of `step` for the variable of a path."""
        return {}

    def whole(self, path: str) -> bool:
        """Returns whether a step needs the whole variable, and not only its touched rows."""
        return not (self.rowwise or self.skips_zero_rows)

    def advance(self, s: Slots, rates: Rates, t: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the new values of `shared_slots`; called once an update, before its steps."""
        return {}

    def rates(self) -> dict[str, Scalar]:
        """Returns the current learning rates by role."""
        return {}

    def rates_for(self, path: str, rates: Rates) -> Rates:
        """Returns the rates for the variable of a path, with the multiplier that it has."""
        return rates

    def values(self) -> dict[str, Scalar]:
        """Returns the present values of arguments that are schedules, by role.

        They are among the rates of an update; a value that the argument cannot have is NaN.
        """
        return {}

    def scheduled(self) -> dict[str, Callable[[Any], Any]]:
        """Returns the arguments that are schedules, by the role that `values` gives them."""
        return {}

    def at(self, rates: Rates) -> contextlib.AbstractContextManager[object]:
        """A context in which arguments that are schedules have the values among some rates."""
        found = {role: x for role, x in self.scheduled().items() if role in rates}
        return numerics.in_time({id(x): rates[role] for role, x in found.items()})

    def prepare(self, variables: Mapping[str, VariableLike]) -> None:
        """Inspects the variables, by path, before any state is made for them."""
        self.shapes = {path: tuple(variable.shape) for path, variable in variables.items()}

    def complete(self, parameters: Sequence[Parameter]) -> None:
        """Makes objects that depend on the variables' state, once the state is made.

        Args:
            parameters: the variables, with the slots of this algorithm by its own roles.
        """

    def propose(self, points: Iterable[Point]) -> Iterator[Step]:
        """Yields the steps of several variables, each computed when it is requested.

        Override it to reshape the steps of other optimizers, or for steps that span variables. The
        new slots of a step may include `shared_slots` that depend on the gradients.
        """
        for p in points:
            if p.in_place and self.kernel is not None:
                yield scratch_variables.added(p.w, functools.partial(self._run_kernel, p)), {}
                continue
            with self.at(p.rates):
                step = self.step(p.g, p.w, p.state(), p.lr, p.t, **self.traits(p.path))
            yield step

    def _run_kernel(self, p: Point, weights: tf.Variable) -> None:
        assert self.kernel is not None  # for the type checker
        with self.at(p.rates):
            self.kernel(p.g, weights, p.s, p.lr, p.t, **self.traits(p.path))

    def proposals(self, points: Iterable[Point]) -> Iterator[Step]:
        """Yields the steps of `propose`, for the touched rows, with weight decay unless bare."""
        points, given = itertools.tee(points)
        for p, (d, slots) in zip(points, self.propose(given), strict=True):
            yield p.of_touched(d if p.bare else self.decayed(p, d)), slots

    def decayed(self, p: Point, d: tf.Tensor) -> tf.Tensor:
        """Returns a step from a point with decoupled weight decay, if it applies there."""
        if not self.decays(p.path):
            return d
        with self.at(p.rates):
            return d - self.decay(p.w, p.lr, p.t)

    def with_decay(self, p: Point, d: tf.Tensor) -> tf.Tensor:
        """Returns a step, proposed from the bare point, with the decay that it lacks.

        Override it in an optimizer that hands a bare point on to another one.
        """
        return self.decayed(p, d)

    @functools.cached_property
    def compiled_proposals(self) -> Any:
        """The function `proposals` compiled by XLA, which returns a list."""
        return tf.function(lambda points: list(self.proposals(points)), jit_compile=True)

    def decay(self, w: tf.Tensor, lr: tf.Tensor, t: tf.Tensor) -> tf.Tensor:
        """Returns what decoupled weight decay takes from the weights at update `t`."""
        assert self.weight_decay is not None  # for the type checker
        return _decayed_share(lr, self.weight_decay, t) * w

    def decays(self, path: str) -> bool:
        """Returns whether decoupled weight decay applies to the variable of a path."""
        return bool(self.weight_decay) and not self.undecayed(path)

    @property
    def undecayed_paths(self) -> list[str]:
        """The patterns of paths that do not decay, here or in an optimizer around this one."""
        return [*self.outer_exclusions, *self.decay_exclusions]

    def undecayed(self, path: str) -> bool:
        """Returns whether the variable of a path is excluded from weight decay."""
        return patterns.matches(path, self.undecayed_paths)

    def multiplier_role(self, path: str) -> str | None:
        """Returns the role, among `rates`, of the multiplier of a variable's learning rate."""
        return None

    def step_rate(self, p: Point) -> tf.Tensor:
        """Returns the learning rate, to which the step at a point is proportional."""
        return p.lr

    def exact_on_rows(self, path: str) -> bool:
        """Returns whether steps of the touched rows are all that the equal dense gradient does."""
        return self.idle and self.rowwise and not self.decays(path)

    def acts_dense(self, path: str, sparse: str) -> bool:
        """Returns whether a row-sparse gradient of a variable acts as a dense one.

        Args:
            path: the variable's path.
            sparse: see `tf_graft.algorithm.Common`.
        """
        return self.whole(path) or (sparse == "exact" and not self.exact_on_rows(path))

    def delegate(self, parameter: Parameter, rates: Rates) -> Delegate | None:
        """Returns the algorithm that updates the variable, if this one leaves its update alone."""
        return None


@memoized
def _decayed_share(lr: tf.Tensor, weight_decay: NumberLike, t: tf.Tensor) -> tf.Tensor:
    return lr * numerics.current(weight_decay, t)


Watcher = Callable[[list[Gradient], list[Parameter]], None]


class Watchers:
    """Several watchers in one, each with a name.

    Args:
        earlier: watchers to keep, but for one of the same name; None for none.
        name: the name of a further watcher.
        watcher: the further watcher.
    """

    def __init__(self, earlier: "Watchers | None", name: str, watcher: Watcher):
        self.by_name: dict[str, Watcher] = {**(earlier.by_name if earlier else {}), name: watcher}

    def __call__(self, gradients: list[Gradient], parameters: list[Parameter]) -> None:
        """Calls each watcher."""
        for watcher in self.by_name.values():
            watcher(gradients, parameters)
