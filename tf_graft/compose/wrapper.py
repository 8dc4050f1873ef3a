"""The base classes of optimizers that contain optimizers, and the checks of their children."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Unpack

import keras
import tensorflow as tf

from tf_graft.compose.of_keras import wrap
from tf_graft.compose.option_table import Pair, divided, refuse_unused
from tf_graft.core import keras_contract
from tf_graft.core.arguments import declared, rates, signatures
from tf_graft.core.arguments.options import OPTIONS, Common, Options
from tf_graft.core.arguments.registry import resolve, serialize
from tf_graft.core.keras_optimizer import written
from tf_graft.core.nesting import nested, refuse_deep_around
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.pipeline.exchange import Exchange
from tf_graft.core.places import replicas
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.point import Point, Step, under, within
from tf_graft.core.state.rule import Delegate, Rule
from tf_graft.core.state.slots import Slot
from tf_graft.core.types import (
    Config,
    OptimizerLike,
    RateLike,
    Rates,
    Scalar,
    VariableLike,
)

# Arguments of a wrapper around one optimizer that are that optimizer's: `repr` shows them there.
OF_THE_OPTIMIZER = {"learning_rate": None, "weight_decay": None, "weight_decay_mode": None}


class ComposedRule(Rule):
    """The rule of a wrapper.

    Attributes:
        inner: the rules of its children, by role.
    """

    optimizer: "Wrapper"

    def __init__(self, optimizer: "Wrapper"):
        self.inner: dict[str, Rule] = {}
        super().__init__(optimizer)

    @property
    def signature(self) -> str:
        children = ", ".join(inner.signature for inner in self.inner.values())
        return f"{super().signature}({children})"

    @property
    def extends(self) -> bool:
        """Whether state can be added for further variables later."""
        return self._extends and all(inner.extends for inner in self.inner.values())

    @extends.setter
    def extends(self, value: bool) -> None:
        self._extends = value

    def serving(self, path: str) -> dict[str, Rule]:
        return {role: x for role, x in self.inner.items() if self.optimizer.serves(role, path)}

    def prepare(self, variables: Mapping[str, VariableLike]) -> None:
        super().prepare(variables)
        wrapper, owner = self.optimizer, type(self.optimizer).__name__
        for role, inner in self.inner.items():
            child = inner.optimizer
            argument = wrapper.roles[role]
            pair = Pair(wrapper.column, owner, argument, inner.called)
            refuse_unused(pair, held_by(wrapper), held_by(child))
            if not inner.fixed:  # the wrapper is built for the first time
                with replicas.outside_functions():
                    child.state.settle(wrapper.mesh, moved=True)
            keras_contract.set_storage(child.iterations, wrapper.iterations)
            its = {path: v for path, v in variables.items() if wrapper.serves(role, path)}
            inner.introduce(its, self.undecayed_paths, self.models)

    def complete(self, parameters: Sequence[Parameter]) -> None:
        super().complete(parameters)
        for role, inner in self.inner.items():
            its = [p for p in parameters if self.optimizer.serves(role, p.path)]
            inner.complete([_within(role, p) for p in its])

    def advance(
        self, s: Mapping[str, tf.Tensor], rates: Rates, t: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        new = super().advance(s, rates, t)
        for role, inner in self.inner.items():
            new |= under(role, inner.advance(within(role, s), within(role, rates), t))
        return new

    def rates(self) -> dict[str, Scalar]:
        return super().rates() | self._of_inner(lambda inner: inner.rates())

    def values(self) -> dict[str, Scalar]:
        return super().values() | self._of_inner(lambda inner: inner.values())

    def _of_inner(self, ask: Callable[[Rule], dict[str, Any]]) -> dict[str, Any]:
        """Returns the answers of all children, under their roles."""
        answers: dict[str, Any] = {}
        for role, inner in self.inner.items():
            answers |= under(role, ask(inner))
        return answers

    def _leader(self, path: str) -> tuple[str, Rule] | None:
        role = self.optimizer.leader(path)
        return None if role is None else (role, self.inner[role])

    def exact_on_rows(self, path: str) -> bool:
        leader = self._leader(path)
        if leader is not None and self.optimizer.passes_on(path):
            return leader[1].exact_on_rows(path)
        exact = (inner.exact_on_rows(path) for inner in self.serving(path).values())
        return super().exact_on_rows(path) and all(exact)

    def decays(self, path: str) -> bool:
        return self._leader(path) is None and super().decays(path)

    def decaying(self, path: str) -> Rule:
        leader = self._leader(path)
        return self if leader is None else leader[1].decaying(path)

    def idle_share(self, path: str, rates: Rates, t: tf.Tensor) -> tf.Tensor:
        if (leader := self._leader(path)) is None:
            return super().idle_share(path, rates, t)
        role, inner = leader
        own = self.optimizer.rates_within(role, self.rates_for(path, rates))
        return inner.idle_share(path, own, t)

    def rate_of(self, path: str, rates: Rates) -> Scalar:
        if (leader := self._leader(path)) is None:
            return super().rate_of(path, rates)
        role, inner = leader
        return inner.rate_of(path, self.optimizer.rates_within(role, self.rates_for(path, rates)))

    def step_rate(self, p: Point) -> tf.Tensor:
        return self.optimizer.step_rate(p)

    def with_decay(self, p: Point, d: tf.Tensor) -> tf.Tensor:
        return self.optimizer.with_decay(p, d)

    def delegate(self, parameter: Parameter, rates: Rates) -> Delegate | None:
        leader = self._leader(parameter.path)
        if leader is None or not self.optimizer.passes_on(parameter.path):
            return None
        role, inner = leader
        return Delegate(inner, _within(role, parameter), self.optimizer.rates_within(role, rates))


def _within(role: str, parameter: Parameter) -> Parameter:
    """Returns a parameter with the slots of the child of a role, by its own roles."""
    return dataclasses.replace(parameter, slots=within(role, parameter.slots))


class Wrapper(Optimizer, rule=ComposedRule):
    """An optimizer that gets steps from other optimizers, and reshapes them in `propose`.

    The children keep their learning rates, schedules and weight decay. Their slots are among the
    wrapper's, under their roles, and they count by its `iterations`. If the wrapper excludes a
    variable from weight decay, no child decays it.

    Attributes:
        roles: the names of the arguments that are children, by role.
        column: the column of `option_table.TABLE` that says which optimizer acts on a common
            argument.
        rule: gives the children's rules in `rule.inner`, by role; ask one for its `proposals`.
    """

    roles: ClassVar[dict[str, str]] = {}
    column: ClassVar[str] = "composed"
    rule: ComposedRule

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute; refuses to replace a child, and arguments of inner optimizers."""
        owner, held = type(self).__name__, vars(self).get(name)
        if held is not None and held is not value and name in self.roles.values():
            raise AttributeError(f"{owner}.{name}: it cannot be replaced; make a new {owner}.")
        is_new = name not in vars(self) and not hasattr(type(self), name)
        if is_new and vars(self).get(declared.CONSTRUCTED):
            self._refuse_of_inner(name)
        super().__setattr__(name, value)

    def _refuse_of_inner(self, name: str) -> None:
        """Refuses a new attribute that is an argument of an optimizer inside, and of no effect."""
        for inner in nested(self):
            if name in signatures.own_arguments(type(inner)):
                owner, cls = type(self).__name__, type(inner).__name__
                raise AttributeError(
                    f"{owner}.{name}: {name} is an argument of the {cls} inside; set it on the "
                    f"{cls}."
                )

    def children(self) -> dict[str, Optimizer]:
        """Returns the optimizers inside this one, by role."""
        return {role: getattr(self, argument) for role, argument in self.roles.items()}

    def adopt(self, **given: OptimizerLike | str | Config) -> None:
        """Takes children by argument: optimizers of this package or Keras, names, configs.

        Raises:
            TypeError: a child is not an optimizer, or cannot be a child.
            ValueError: the same child is given twice, has been built, or would do what the wrapper
                does for all.
        """
        owner = type(self).__name__
        objects = [x for x in given.values() if isinstance(x, keras.optimizers.Optimizer)]
        for argument, child in given.items():
            if sum(child is other for other in objects) > 1:
                raise ValueError(
                    f"{owner}({argument}=...): the same object is given twice; give two "
                    "optimizers, as each keeps its own state."
                )
        for role, argument in self.roles.items():
            child = child_of(owner, argument, given[argument])
            divide(self.column, owner, argument, child, held_by(self))
            self.take(role, argument, child)
        self.state.settle(self.mesh)

    def take(self, role: str, attribute: str, child: Optimizer) -> None:
        """Keeps a child in an attribute of this name, and takes over its arguments' variables."""
        setattr(self, attribute, child)
        self.rule.inner[role] = child.rule
        self.state.adopt(role, child.state)

    def serves(self, role: str, path: str) -> bool:
        """Returns whether the child of a role makes steps for the variable of a path."""
        return True

    def leader(self, path: str) -> str | None:
        """Returns the role of the child that stands for the wrapper at the variable of a path.

        The wrapper's learning rate there is the child's, and so is the weight decay. None if the
        wrapper has its own.
        """
        return None

    def passes_on(self, path: str) -> bool:
        """Returns whether the leader's step is the wrapper's, unchanged."""
        return False

    def rates_within(self, role: str, rates: Rates) -> dict[str, Any]:
        """Returns those of the wrapper's rates that are for the child of a role."""
        return within(role, rates)

    def point_within(self, role: str, p: Point) -> Point:
        """Returns the point for the child of a role; a leader's is bare if the wrapper's is."""
        bare = p.bare and role == self.leader(p.path)
        return p._replace(s=within(role, p.s), rates=self.rates_within(role, p.rates), bare=bare)

    def step_rate(self, p: Point) -> tf.Tensor:
        """Returns the learning rate, to which the step at a point is proportional."""
        if (role := self.leader(p.path)) is None:
            return p.lr
        # what a wrapper makes of the gradient does not change the rate
        return self.rule.inner[role].step_rate(Wrapper.point_within(self, role, p))

    def with_decay(self, p: Point, d: tf.Tensor) -> tf.Tensor:
        """Returns a step, proposed from the bare point, with the decay that it lacks."""
        if (role := self.leader(p.path)) is None:
            return self.decayed(p, d)
        return self.rule.inner[role].with_decay(self.point_within(role, p), d)

    def slots_for(self, path: str) -> dict[str, Slot]:
        slots = dict(super().slots_for(path))
        for role, inner in self.rule.serving(path).items():
            slots |= under(role, inner.optimizer.slots_for(path))
        return slots

    def shared_slots(self) -> dict[str, Slot]:
        shared = super().shared_slots()
        for role, child in self.children().items():
            shared |= under(role, child.shared_slots())
        return shared

    def whole(self, path: str) -> bool:
        return any(inner.optimizer.whole(path) for inner in self.rule.serving(path).values())

    def get_config(self) -> Config:
        config = super().get_config()
        children = zip(self.roles.values(), self.children().values(), strict=True)
        return config | {argument: serialize(child) for argument, child in children}


def passed_on(name: str, doc: str, to: Callable[[Any], Iterable[Any]]) -> Any:
    """Returns a property for an argument that other optimizers have in place of a wrapper.

    It is None if they differ; setting it sets theirs.

    Args:
        name: the argument.
        doc: the property's docstring.
        to: returns these optimizers from the wrapper.
    """

    def get(wrapper: Any) -> Any:
        first, *others = [getattr(x, name) for x in to(wrapper)] or [None]
        return first if all(first == other for other in others) else None

    def put(wrapper: Any, value: Any) -> None:
        for each in to(wrapper):
            setattr(each, name, value)

    return property(get, put, doc=doc)


def inside(wrapper: Any) -> list[Any]:
    """Returns the optimizer of an `Around`; none while Keras' constructor sets attributes."""
    return [wrapper.optimizer] if "optimizer" in vars(wrapper) else []


class Around(Wrapper):
    """A wrapper of one optimizer, which stands for that optimizer in every other respect.

    Its learning rate and weight decay are the optimizer's. The wrapper takes over the optimizer's
    options for the pipeline (clipping, averaging, accumulation ...) and applies them to its own
    gradients.

    Attributes:
        reshapes: whether the wrapper changes the optimizer's steps, or the points of these steps.

    Args:
        optimizer: an optimizer of tf_graft or Keras, a name or a config.
        learning_rate: sets the optimizer's learning rate, if not None. A number cannot be set in
            place of a schedule.
        **common: see `tf_graft.algorithm.Common`; they replace the optimizer's own.
    """

    roles: ClassVar[dict[str, str]] = {"optimizer": "optimizer"}
    column: ClassVar[str] = "around"
    reshapes = True

    def __init__(
        self,
        optimizer: OptimizerLike | str | Config,
        learning_rate: RateLike | None = None,
        **common: Unpack[Common],
    ):
        owner = type(self).__name__
        child = child_of(owner, "optimizer", optimizer)
        if learning_rate is not None:
            child.learning_rate = rates.rate(owner, learning_rate)

        def rate() -> Scalar:
            return child.learning_rate

        super().__init__(rate, **divide(self.column, owner, "optimizer", child, common))
        self.take("optimizer", "optimizer", child)
        self.state.settle(self.mesh)
        self.idle, self.rowwise, self.finds_rate = child.idle, child.rowwise, child.finds_rate

    @property
    def learning_rate(self) -> Any:
        """The optimizer's learning rate, which you can set to a number unless it is a schedule."""
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.optimizer.learning_rate = rates.new_rate(type(self).__name__, value)

    weight_decay = passed_on(
        "weight_decay",
        "The optimizer's weight decay, which can be set until the wrapper is built.",
        inside,
    )
    weight_decay_mode = passed_on(
        "weight_decay_mode",
        "The optimizer's mode of weight decay, which can be set until the wrapper is built.",
        inside,
    )

    def leader(self, path: str) -> str | None:
        return "optimizer"

    def passes_on(self, path: str) -> bool:
        return not self.reshapes

    def rates_within(self, role: str, rates: Rates) -> dict[str, Any]:
        shared = {name: rates[name] for name in ("learning_rate", "multiplier") if name in rates}
        return within(role, rates) | shared

    def inner(self, p: Point) -> Point:
        """Returns the point for the optimizer, with the learning rate of this step.

        Override it to change the gradient that the optimizer gets.
        """
        return super().point_within("optimizer", p)

    def point_within(self, role: str, p: Point) -> Point:
        return self.inner(p)

    def outer(self, p: Point, d: tf.Tensor) -> Step:
        """Returns the wrapper's step, made of the optimizer's, and new values of its own slots.

        Override it to change the step, or to keep something of it.
        """
        return d, {}

    def propose(self, points: Iterable[Point]) -> Iterator[Step]:
        points, given = itertools.tee(points)
        steps = self.optimizer.rule.proposals(map(self.inner, given))
        for p, (d, slots) in zip(points, steps, strict=True):
            step, own = self.outer(p, d)
            yield step, own | under("optimizer", slots)

    def get_config(self) -> Config:
        config = super().get_config()
        return config | {"learning_rate": config["optimizer"]["config"]["learning_rate"]}

    def __repr__(self) -> str:
        return written(self, OF_THE_OPTIMIZER)


class Reshaping(Around):
    """A wrapper that reshapes the optimizer's steps before weight decay is added to them."""

    def reshaped(self, p: Point, d: tf.Tensor) -> tf.Tensor:
        """Returns the step that is made of the optimizer's, both without weight decay."""
        raise NotImplementedError

    def inner(self, p: Point) -> Point:
        return super().inner(p)._replace(bare=True)

    def outer(self, p: Point, d: tf.Tensor) -> Step:
        d = self.reshaped(p, d)
        return d if p.bare else self.with_decay(p, d), {}


def child_of(owner: str, argument: str, given: OptimizerLike | str | Config) -> Optimizer:
    """Returns an optimizer of this package, without state, for an optimizer, a name or a config."""
    given = resolve(given)
    name = type(given).__name__
    if isinstance(given, keras.optimizers.LossScaleOptimizer):
        raise TypeError(
            f"{owner}({argument}={name}(...)): an optimizer that scales the loss must be the "
            f"outermost optimizer; put {name} around {owner}."
        )
    child = wrap(given)
    if type(child.engine.exchange) is not Exchange:
        raise TypeError(
            f"{owner}({argument}={name}(...)): {name} does more than compute steps, so it must be "
            "the outermost optimizer."
        )
    refuse_built(owner, argument, child)
    refuse_deep_around(f"{owner}({argument}={name}(...))", child)
    return child


def refuse_built(owner: str, argument: str, child: Optimizer) -> None:
    """Refuses an optimizer that has state."""
    if child.built:
        name = type(child).__name__
        raise ValueError(
            f"{owner}({argument}={name}(...)): it is already built; give a new optimizer."
        )


def divide(
    column: str, owner: str, argument: str, child: Optimizer, given: Mapping[str, Any]
) -> Config:
    """Divides common arguments between an optimizer and its child; returns the optimizer's.

    Args:
        column: the column of `option_table.TABLE`.
        owner: the outer class.
        argument: the argument of the outer class that is the child.
        child: the child, which loses the options that the outer optimizer handles.
        given: the common arguments given to the outer optimizer.

    Raises:
        TypeError, ValueError: an argument is out of range, or not allowed for its optimizer.
    """
    pair = Pair(column, owner, argument, child.rule.called)
    outcome = divided(pair, given, held_by(child))
    for name, value in outcome.inner.items():
        setattr(child, OPTIONS[name].kept_as, value)
    return outcome.outer


def held_by(optimizer: Optimizer) -> Config:
    """Returns the current common arguments of an optimizer."""
    return dict(vars(Options.of(optimizer)))
