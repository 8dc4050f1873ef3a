"""The base classes of optimizers that contain optimizers, and the checks of their children."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Unpack

import keras
import tensorflow as tf

from tf_graft.compose.of_keras import wrap
from tf_graft.compose.option_table import Pair, divided, refuse_unused
from tf_graft.core import keras_contract
from tf_graft.core.arguments import rates
from tf_graft.core.arguments.options import OPTIONS, Common
from tf_graft.core.arguments.registry import resolve, serialize
from tf_graft.core.files.identity import Named
from tf_graft.core.nesting import refuse_deep_around
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.pipeline.exchange import Exchange
from tf_graft.core.state.algorithm import Delegate
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.point import Point, Step, under, within
from tf_graft.core.state.slots import Slot
from tf_graft.core.types import (
    Config,
    NumberLike,
    OptimizerLike,
    RateLike,
    Rates,
    Scalar,
    Slots,
    VariableLike,
)


class Wrapper(Optimizer):
    """An optimizer that gets steps from other optimizers, and reshapes them in `propose`.

    The children keep their learning rates, schedules and weight decay. Their slots are among the
    wrapper's, under their roles, and they count by its `iterations`. If the wrapper excludes a
    variable from weight decay, no child decays it.

    Attributes:
        roles: the names of the arguments that are children, by role.
        column: the column of `option_table.TABLE` that says which one acts on a common argument.
    """

    offers: ClassVar[tuple[str, ...]] = ("roles",)
    roles: ClassVar[dict[str, str]] = {}
    column: ClassVar[str] = "composed"

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
            self._take(role, child)
        self.settle(self.mesh)

    def serves(self, role: str, path: str) -> bool:
        """Returns whether the child of a role makes steps for the variable of a path."""
        return True

    def _take(self, role: str, child: Optimizer) -> None:
        """Adds a child and the variables of its arguments to the wrapper."""
        setattr(self, self.roles[role], child)
        self.keep_values(role, child)

    def keep_values(self, role: str, child: Optimizer) -> None:
        """Adds a child's variables of learning rates and other values to the wrapper's."""
        values = child.rate_variables() | child.value_variables()
        for name, variable in under(role, values).items():
            keras_contract.rename(keras_contract.keep(self, variable), f"{self.name}/{name}")

    def slots_for(self, path: str) -> dict[str, Slot]:
        slots = dict(super().slots_for(path))
        for role, child in self.serving(path).items():
            slots |= under(role, child.slots_for(path))
        return slots

    def serving(self, path: str) -> dict[str, Optimizer]:
        """Returns the optimizers that make steps for the variable of a path, by role."""
        return {role: x for role, x in self.children().items() if self.serves(role, path)}

    def shared_slots(self) -> dict[str, Slot]:
        return super().shared_slots() | self._of_children(lambda child: child.shared_slots())

    def prepare(self, variables: Mapping[str, VariableLike]) -> None:
        super().prepare(variables)
        for role, child in self.children().items():
            pair = Pair(self.column, type(self).__name__, self.roles[role], child.called)
            refuse_unused(pair, held_by(child))
            if not child.fixed:  # the wrapper is built for the first time
                with tf.init_scope():
                    child.settle(self.mesh, moved=True)
            keras_contract.set_storage(child.iterations, self.iterations)
            its = {path: v for path, v in variables.items() if self.serves(role, path)}
            child.introduce(its, self.undecayed_paths, self.models)

    def complete(self, parameters: Sequence[Parameter]) -> None:
        for role, child in self.children().items():
            its = [p for p in parameters if self.serves(role, p.path)]
            child.complete([dataclasses.replace(p, slots=within(role, p.slots)) for p in its])

    def advance(self, s: Slots, rates: Rates, t: tf.Tensor) -> dict[str, tf.Tensor]:
        new: dict[str, tf.Tensor] = {}
        for role, child in self.children().items():
            with child.at(within(role, rates)):
                new |= under(role, child.advance(within(role, s), within(role, rates), t))
        return new

    @property
    def extends(self) -> bool:  # type: ignore[override]
        """Whether `build` can add state for further variables later."""
        return all(child.extends for child in self.children().values())

    def whole(self, path: str) -> bool:
        return any(child.whole(path) for child in self.serving(path).values())

    def exact_on_rows(self, path: str) -> bool:
        exact = (child.exact_on_rows(path) for child in self.serving(path).values())
        return super().exact_on_rows(path) and all(exact)

    def rates(self) -> dict[str, Scalar]:
        return super().rates() | self._of_children(lambda child: child.rates())

    def values(self) -> dict[str, Scalar]:
        return super().values() | self._of_children(lambda child: child.values())

    def rate_variables(self) -> Named:
        return super().rate_variables() | self._of_children(lambda child: child.rate_variables())

    def value_variables(self) -> Named:
        return super().value_variables() | self._of_children(lambda child: child.value_variables())

    def _of_children(self, ask: Callable[[Optimizer], dict[str, Any]]) -> dict[str, Any]:
        """Returns the answers of all children, under their roles."""
        answers: dict[str, Any] = {}
        for role, child in self.children().items():
            answers |= under(role, ask(child))
        return answers

    def signature(self) -> str:
        children = ", ".join(child.signature() for child in self.children().values())
        return f"{super().signature()}({children})"

    def get_config(self) -> Config:
        config = super().get_config()
        children = zip(self.roles.values(), self.children().values(), strict=True)
        return config | {argument: serialize(child) for argument, child in children}


class Around(Wrapper):
    """A wrapper of one optimizer, which stands for that optimizer in every other respect.

    Its learning rate and weight decay are the optimizer's. The wrapper takes over the optimizer's
    options for the pipeline (clipping, averaging, accumulation ...) and applies them to its own
    gradients.

    Attributes:
        reshapes: whether the wrapper changes the optimizer's steps, or the points of these steps.

    Args:
        optimizer: an optimizer of tf_graft or Keras, a name or a config.
        learning_rate: replaces the optimizer's learning rate, if not None.
        **common: see `tf_graft.algorithm.Common`; they replace the optimizer's own.
    """

    offers: ClassVar[tuple[str, ...]] = ("inner",)
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
        self._take("optimizer", child)
        self.settle(self.mesh)
        self.idle, self.rowwise, self.finds_rate = child.idle, child.rowwise, child.finds_rate

    @property
    def learning_rate(self) -> Any:
        """The optimizer's learning rate, which you can set to a number unless it is a schedule."""
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.optimizer.learning_rate = rates.new_rate(type(self).__name__, value)

    @property
    def weight_decay(self) -> NumberLike | None:
        """The optimizer's weight decay, which can be set until the wrapper is built."""
        return self.optimizer.weight_decay if "optimizer" in vars(self) else None

    @weight_decay.setter
    def weight_decay(self, value: NumberLike | None) -> None:
        if "optimizer" in vars(self):  # Keras' constructor sets the decay before
            self.optimizer.weight_decay = value

    def decays(self, path: str) -> bool:
        """Returns False, because the optimizer decays the weights."""
        return False

    def arguments(self) -> Config:
        arguments = super().arguments()
        del arguments["learning_rate"], arguments["weight_decay"]  # these are the optimizer's
        return arguments

    def inner(self, p: Point) -> Point:
        """Returns the point for the optimizer, with the learning rate of this step."""
        return p.within("optimizer")._replace(rates=_inner(p.rates), bare=p.bare)

    def with_decay(self, p: Point, d: tf.Tensor) -> tf.Tensor:
        return self.optimizer.with_decay(self.inner(p), d)

    def delegate(self, parameter: Parameter, rates: Rates) -> Delegate | None:
        """Returns the optimizer, if the wrapper does not reshape its step."""
        if self.reshapes:
            return None
        own = dataclasses.replace(parameter, slots=within("optimizer", parameter.slots))
        return Delegate(self.optimizer, own, _inner(rates))

    def rate_of(self, path: str, rates: Rates) -> Scalar:
        return self.optimizer.rate_of(path, _inner(self.rates_for(path, rates)))

    def step_rate(self, p: Point) -> tf.Tensor:
        return self.optimizer.step_rate(Around.inner(self, p))

    def propose(self, points: Iterable[Point]) -> Iterator[Step]:
        for d, slots in self.optimizer.proposals(map(self.inner, points)):
            yield d, under("optimizer", slots)

    def get_config(self) -> Config:
        config = super().get_config()
        return config | {"learning_rate": config["optimizer"]["config"]["learning_rate"]}


def _inner(rates: Rates) -> dict[str, Any]:
    """Returns the rates of the optimizer that a wrapper is around."""
    shared = {name: rates[name] for name in ("learning_rate", "multiplier") if name in rates}
    return within("optimizer", rates) | shared


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
    if type(child.exchange()) is not Exchange:
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
    pair = Pair(column, owner, argument, child.called)
    outcome = divided(pair, given, held_by(child))
    for name, value in outcome.inner.items():
        setattr(child, OPTIONS[name].kept_as, value)
    return outcome.outer


def held_by(optimizer: Optimizer) -> Config:
    """Returns the current common arguments of an optimizer."""
    return dict(vars(optimizer.common))
