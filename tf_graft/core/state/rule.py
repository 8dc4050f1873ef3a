"""What the engine and wrappers ask of an optimizer: the steps, rates and decay of variables."""

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_graft.core import patterns
from tf_graft.core.arguments import checked, multipliers, rates
from tf_graft.core.arguments.checked import Checked
from tf_graft.core.arguments.decay_modes import UNCHANGED, DecayMode
from tf_graft.core.arguments.options import OPTIONS
from tf_graft.core.state.kernel import Kernel
from tf_graft.core.state.parameters import Parameter, Parameters
from tf_graft.core.state.point import Point, Step, multiplied
from tf_graft.core.tensors import numerics
from tf_graft.core.tensors.memo import memoized
from tf_graft.core.types import NumberLike, Rates, Scalar, VariableLike


class Delegate(NamedTuple):
    """The rule that updates a variable for one that leaves the update as it is.

    Args:
        rule: the rule that makes the update.
        parameter: the variable, with the slots of that rule as a kernel takes them.
        rates: the rates of that rule, by role.
    """

    rule: "Rule"
    parameter: Parameter
    rates: Rates


class Rule:
    """An optimizer's algorithm with its learning rates and weight decay.

    Args:
        optimizer: has the functions that an author writes, and the arguments.

    Attributes:
        shapes: the shapes of the variables by path.
        parameters: the variables, with the slots of this rule by its own roles.
        outer_exclusions: patterns of paths that an optimizer around this one excludes from decay.
        extends: whether state can be added for further variables later.
        fixed: whether the arguments can no longer be set, as compiled steps would not see a change.
    """

    def __init__(self, optimizer: Any):
        self.optimizer = optimizer
        self.shapes: Mapping[str, tuple[int, ...]] = {}
        self.parameters = Parameters({})
        self.outer_exclusions: Sequence[str] = ()
        self.extends = True
        self.fixed = False
        self._models: Sequence[weakref.ref[keras.Model]] = ()

    @property
    def called(self) -> str:
        """The class name that messages show."""
        return type(self.optimizer).__name__

    @property
    def signature(self) -> str:
        """The class name that identifies the state."""
        return type(self.optimizer).__name__

    @property
    def models(self) -> list[keras.Model]:
        """The models that are trained, as far as they are known."""
        return [model for model in (known() for known in self._models) if model is not None]

    def serving(self, path: str) -> Mapping[str, "Rule"]:
        """Returns the rules inside this one that make steps for the variable of a path, by role."""
        return {}

    def tree(self, path: str) -> Iterator["Rule"]:
        """Yields this rule and all within it that make steps for the variable of a path."""
        yield self
        for inner in self.serving(path).values():
            yield from inner.tree(path)

    # Before the first step.

    def introduce(
        self,
        variables: Mapping[str, VariableLike],
        excluded: Sequence[str],
        models: Sequence[keras.Model],
    ) -> None:
        """Shows the variables to the optimizer.

        Args:
            variables: the variables by path; there is no state for them yet.
            excluded: the patterns of paths that an optimizer around this one excludes from decay.
            models: the models that are trained, as far as they are known.
        """
        self.outer_exclusions = excluded
        self._models = [weakref.ref(model) for model in models]
        self._refuse_idle_mode()
        if not self.fixed:  # later there are only more variables
            checked.warn_of_idle_patterns(self.optimizer, list(variables))
        factors = self.optimizer.learning_rate_multipliers
        multipliers.refuse_idle(self.called, "learning_rate_multipliers", factors, variables)
        for name in ("count_rows", "clip_rows"):
            multipliers.refuse_idle(self.called, name, getattr(self.optimizer, name), variables)
        self.shapes = {path: tuple(variable.shape) for path, variable in variables.items()}
        self.prepare(variables)

    def prepare(self, variables: Mapping[str, VariableLike]) -> None:
        """Lets the optimizer inspect the variables, by path."""
        self.optimizer.prepare(variables)

    def complete(self, parameters: Sequence[Parameter]) -> None:
        """Takes the variables with their state, once it is made, and fixes the arguments."""
        self.fixed = True
        self.parameters = Parameters({p.path: p for p in parameters})

    # Learning rates, and arguments that are schedules.

    def rates(self) -> dict[str, Scalar]:
        """Returns the current learning rates by role."""
        optimizer = self.optimizer
        factors = multipliers.current(optimizer.learning_rate_multipliers, optimizer.iterations)
        return {"learning_rate": optimizer.learning_rate, **factors}

    def values(self) -> dict[str, Scalar]:
        """Returns the present values of arguments that are schedules, by role; NaN out of range.

        They are among the rates of an update.
        """
        now = {role: x(self.optimizer.iterations) for role, x in self._scheduled().items()}
        checks = {role: self._check_of(role.partition("/")[2]) for role in now}
        return {role: checks[role].or_nan(value) for role, value in now.items()}

    def _scheduled(self) -> dict[str, Callable[[Any], Any]]:
        """Returns the arguments that are schedules or settable, by role."""
        kept = vars(self.optimizer).items()
        found = {n: x for n, x in kept if isinstance(x, rates.LearningRateSchedule)}
        return {f"value/{n}": x for n, x in found.items() if self._check_of(n) is not None}

    def _check_of(self, name: str) -> Any:
        """Returns what checks an argument; None for other attributes."""
        check = OPTIONS.get(name, getattr(type(self.optimizer), name, None))
        return check if isinstance(check, Checked) else None

    def at(self, rates: Rates) -> contextlib.AbstractContextManager[object]:
        """A context in which arguments that are schedules have the values among some rates."""
        found = {role: x for role, x in self._scheduled().items() if role in rates}
        return numerics.in_time({id(x): rates[role] for role, x in found.items()})

    def kind(self, path: str, rates: Rates) -> tuple[Any, ...]:
        """Returns what the code of `step` depends on beside its arguments, at some rates."""
        values = {role: rates[role] for role in self._scheduled() if role in rates}
        return self, self.optimizer.traits(path), values

    def multiplier_role(self, path: str) -> str | None:
        """Returns the role, among `rates`, of the multiplier of a variable's learning rate."""
        return multipliers.role_of(self.optimizer.learning_rate_multipliers, path)

    def freezes(self, path: str) -> bool:
        """Returns whether the multiplier of a variable is the number 0."""
        return multipliers.freezes(self.optimizer.learning_rate_multipliers, path)

    def row_multiplier(self, path: str) -> Any:
        """Returns the multiplier of each row by its own count; None if rows have no counts."""
        return multipliers.of(self.optimizer.count_rows, path)

    def rates_for(self, path: str, rates: Rates) -> Rates:
        """Returns the rates by role, with the multiplier of the variable of a path."""
        role = self.multiplier_role(path)
        return rates if role is None else multiplied(rates, rates[role])

    def rate_of(self, path: str, rates: Rates) -> Scalar:
        """Returns the learning rate of the variable of a path, of the optimizer's rates by role."""
        return self.rates_for(path, rates)["learning_rate"]

    def step_rate(self, p: Point) -> tf.Tensor:
        """Returns the learning rate, to which the step at a point is proportional."""
        return p.lr

    # Weight decay.

    @property
    def decay_mode(self) -> DecayMode:
        """Which entries decay and how fast."""
        return self.optimizer.weight_decay_mode or UNCHANGED

    def _refuse_idle_mode(self) -> None:
        own = vars(self.optimizer)  # not that of an optimizer inside
        mode = own.get("weight_decay_mode")
        if mode is not None and self.optimizer.weight_decay is None:
            raise ValueError(
                f"{self.called}(weight_decay_mode={mode}): it does nothing without weight_decay; "
                "give weight_decay, too."
            )

    @property
    def undecayed_paths(self) -> list[str]:
        """The patterns of paths that do not decay, here or in an optimizer around this one."""
        return [*self.outer_exclusions, *self.optimizer.decay_exclusions]

    def undecayed(self, path: str) -> bool:
        """Returns whether the variable of a path is excluded from weight decay."""
        return patterns.matches(path, self.undecayed_paths)

    def decays(self, path: str) -> bool:
        """Returns whether this optimizer applies weight decay to the variable of a path."""
        return bool(self.optimizer.weight_decay) and not self.undecayed(path)

    def steps_decay(self, path: str) -> bool:
        """Returns whether the steps for a variable contain a weight decay of their own."""
        return False

    def decay(self, w: tf.Tensor, lr: tf.Tensor, t: tf.Tensor) -> tf.Tensor:
        """Returns what decoupled weight decay takes from the weights at update `t`."""
        return self._share(lr, t) * w

    def decaying(self, path: str) -> "Rule":
        """Returns the rule whose weight decay applies to the variable of a path, if any does."""
        return self

    def idle_share(self, path: str, rates: Rates, t: tf.Tensor) -> tf.Tensor:
        """Returns the share of its weights that a row without a gradient loses at update `t`."""
        with self.at(rates):
            return self._share(self.rate_of(path, rates), t)

    def _share(self, lr: tf.Tensor, t: tf.Tensor) -> tf.Tensor:
        """Returns the share that decaying weights lose at update `t`."""
        return _decayed_share(lr, self.optimizer.weight_decay, self.decay_mode, t)

    def with_plain_decay(self, p: Point, d: tf.Tensor) -> tf.Tensor:
        """Returns a step from a point with decoupled weight decay, if it applies there."""
        if not self.decays(p.path):
            return d
        with self.at(p.rates):
            return d - self.decay_mode.acting(self.decay(p.w, p.lr, p.t), p.w, d)

    def with_decay(self, p: Point, d: tf.Tensor) -> tf.Tensor:
        """Returns a step, proposed from the bare point, with the decay that it lacks."""
        decayed: tf.Tensor = self.optimizer.decayed(p, d)
        return decayed

    # Steps.

    def exact_on_rows(self, path: str) -> bool:
        """Returns whether steps of the touched rows are all that the equal dense gradient does."""
        return self.optimizer.idle and self.optimizer.rowwise and not self.decays(path)

    def acts_dense(self, path: str, sparse: str) -> bool:
        """Returns whether a row-sparse gradient of a variable acts as a dense one.

        Args:
            path: the variable's path.
            sparse: see `tf_graft.algorithm.Common`.
        """
        whole: bool = self.optimizer.whole(path)
        return whole or (sparse == "exact" and not self.exact_on_rows(path))

    def advance(
        self, s: Mapping[str, tf.Tensor], rates: Rates, t: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Returns the new values of the slots that do not belong to one variable."""
        with self.at(rates):
            new: dict[str, tf.Tensor] = self.optimizer.advance(s, rates, t)
        return new

    def proposals(self, points: Iterable[Point]) -> Iterator[Step]:
        """Yields the steps from points, for the touched rows, with weight decay unless bare."""
        points, given = itertools.tee(points)
        for p, (d, slots) in zip(points, self.optimizer.propose(given), strict=True):
            yield p.of_touched(d if p.bare else self.optimizer.decayed(p, d)), slots

    @functools.cached_property
    def compiled_proposals(self) -> Any:
        """The function `proposals` compiled by XLA, which returns a list."""
        return tf.function(lambda points: list(self.proposals(points)), jit_compile=True)

    def delegate(self, parameter: Parameter, rates: Rates) -> Delegate | None:
        """Returns the rule that updates the variable, if this one leaves its update alone."""
        return None

    def kernel_for(self, path: str) -> Kernel | None:
        """Returns the kernel that updates a variable in place; None if `step` does.

        If the variable decays, it does so before the kernel runs.
        """
        kernel: Kernel | None = self.optimizer.kernel
        reads = kernel is not None and (kernel.reads_weights or self.decay_mode.reads_step)
        return None if reads and self.decays(path) else kernel


@memoized
def _decayed_share(
    lr: tf.Tensor, weight_decay: NumberLike, mode: DecayMode, t: tf.Tensor
) -> tf.Tensor:
    return mode.rate(lr) * numerics.current(weight_decay, t)
