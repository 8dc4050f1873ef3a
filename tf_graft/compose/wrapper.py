"""Optimizers made of optimizers: what their children must not do, and what is kept for them."""

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
from tf_graft.core.types import Config, Rates, Slots


class Wrapper(Optimizer):
    """An optimizer that asks others for their steps, and reshapes them in `propose`.

    The children keep their rates, schedules and weight decay. Their slots stand among the
    wrapper's, under their roles, and they count by its `iterations`. What the wrapper excludes from
    weight decay, no child decays.

    Attributes:
        roles: the names of the arguments that are children, by role.
        column: the column of `option_table.TABLE` that says who acts on a common argument.
    """

    roles: ClassVar[dict[str, str]] = {}
    column: ClassVar[str] = "composed"

    def children(self) -> dict[str, Optimizer]:
        """The optimizers that this one is made of, by role."""
        return {role: getattr(self, argument) for role, argument in self.roles.items()}

    def adopt(self, **given: Any) -> None:
        """Takes the children in, by argument: optimizers of ours or Keras', names, configs.

        Raises:
            TypeError: one that is not an optimizer, or cannot be a child.
            ValueError: the same one twice, one that has been built, or one that would do what the
                wrapper does for all.
        """
        owner = type(self).__name__
        objects = [x for x in given.values() if isinstance(x, keras.optimizers.Optimizer)]
        for argument, child in given.items():
            if sum(child is other for other in objects) > 1:
                raise ValueError(
                    f"{owner}({argument}=...): the same object is given twice; each child needs "
                    "a state of its own."
                )
        for role, argument in self.roles.items():
            child = child_of(owner, argument, given[argument])
            divide(self.column, owner, argument, child, held_by(self))
            self._take(role, child)
        self.settle(self.mesh)

    def _take(self, role: str, child: Optimizer) -> None:
        """Makes a child the wrapper's, and the variables of its rates as well."""
        setattr(self, self.roles[role], child)
        for name, variable in under(role, child.rate_variables()).items():
            keras_contract.rename(keras_contract.keep(self, variable), f"{self.name}/{name}")

    def slots_for(self, path: str) -> dict[str, Slot]:
        return super().slots_for(path) | self._of_children(lambda child: child.slots_for(path))

    def shared_slots(self) -> dict[str, Slot]:
        return super().shared_slots() | self._of_children(lambda child: child.shared_slots())

    def prepare(self, variables: Mapping[str, Any]) -> None:
        for role, child in self.children().items():
            pair = Pair(self.column, type(self).__name__, self.roles[role], child.called)
            refuse_unused(pair, held_by(child))
            with tf.init_scope():
                child.settle(self.mesh, moved=True)
            keras_contract.set_storage(child.iterations, self.iterations)
            child.introduce(variables, self.undecayed_paths)

    def complete(self, parameters: Sequence[Parameter]) -> None:
        for role, child in self.children().items():
            its = [dataclasses.replace(p, slots=within(role, p.slots)) for p in parameters]
            child.complete(its)

    def advance(self, s: Slots, rates: Rates, t: tf.Tensor) -> dict[str, tf.Tensor]:
        new: dict[str, Any] = {}
        for role, child in self.children().items():
            new |= under(role, child.advance(within(role, s), within(role, rates), t))
        return new

    def whole(self, path: str) -> bool:
        return any(child.whole(path) for child in self.children().values())

    def exact_on_rows(self, path: str) -> bool:
        exact = (child.exact_on_rows(path) for child in self.children().values())
        return super().exact_on_rows(path) and all(exact)

    def rates(self) -> dict[str, Any]:
        return super().rates() | self._of_children(lambda child: child.rates())

    def rate_variables(self) -> Named:
        return super().rate_variables() | self._of_children(lambda child: child.rate_variables())

    def _of_children(self, ask: Callable[[Optimizer], dict[str, Any]]) -> dict[str, Any]:
        """What each child answers, under its role."""
        answers: dict[str, Any] = {}
        for role, child in self.children().items():
            answers |= under(role, ask(child))
        return answers

    def signature(self) -> str:
        children = ", ".join(child.signature() for child in self.children().values())
        return f"{super().signature()}({children})"

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        children = zip(self.roles.values(), self.children().values(), strict=True)
        return config | {argument: serialize(child) for argument, child in children}


class Around(Wrapper):
    """A wrapper of one optimizer, which in all else acts for it.

    Its learning rate and its weight decay are the optimizer's, and what the optimizer was given for
    the pipeline (clipping, averaging, accumulation ...) the wrapper does, on the gradients as it
    sees them.

    Attributes:
        reshapes: whether the optimizer's steps, or the points they are taken at, are changed.

    Args:
        optimizer: an optimizer of tf_graft or Keras, a name or a config.
        learning_rate: instead of the optimizer's own, if not None.
        **common: see `tf_graft.algorithm.Common`; instead of the optimizer's own.
    """

    roles: ClassVar[dict[str, str]] = {"optimizer": "optimizer"}
    column: ClassVar[str] = "around"
    reshapes = True

    def __init__(self, optimizer: Any, learning_rate: Any = None, **common: Unpack[Common]):
        owner = type(self).__name__
        child = child_of(owner, "optimizer", optimizer)
        if learning_rate is not None:
            child.learning_rate = rates.rate(owner, learning_rate)

        def rate() -> Any:
            return child.learning_rate

        super().__init__(rate, **divide(self.column, owner, "optimizer", child, common))
        self._take("optimizer", child)
        self.settle(self.mesh)
        self.idle, self.rowwise = child.idle, child.rowwise

    @property
    def learning_rate(self) -> Any:
        """The optimizer's present rate, settable with a number unless it is a schedule."""
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.optimizer.learning_rate = rates.new_rate(type(self).__name__, value)

    @property
    def weight_decay(self) -> Any:
        """The optimizer's weight decay, which can be set until the wrapper is built."""
        return self.optimizer.weight_decay if "optimizer" in vars(self) else None

    @weight_decay.setter
    def weight_decay(self, value: Any) -> None:
        if "optimizer" in vars(self):  # Keras' constructor sets it before
            self.optimizer.weight_decay = value

    def decays(self, path: str) -> bool:
        """False: the optimizer decays the weights."""
        return False

    def arguments(self) -> Config:
        arguments = super().arguments()
        del arguments["learning_rate"], arguments["weight_decay"]  # the optimizer's
        return arguments

    def inner(self, p: Point) -> Point:
        """The point as the optimizer is to see it, at the rate of this step."""
        point = p.within("optimizer")
        return point._replace(rates=point.rates | {"learning_rate": p.lr})

    def delegate(self, parameter: Parameter, rates: Rates) -> Delegate | None:
        """The optimizer, where its step is not reshaped."""
        if self.reshapes:
            return None
        own = dataclasses.replace(parameter, slots=within("optimizer", parameter.slots))
        inner = within("optimizer", rates) | {"learning_rate": rates["learning_rate"]}
        return Delegate(self.optimizer, own, inner)

    def step_rate(self, p: Point) -> tf.Tensor:
        return self.optimizer.step_rate(Around.inner(self, p))

    def propose(self, points: Iterable[Point]) -> Iterator[Step]:
        for d, slots in self.optimizer.proposals(map(self.inner, points)):
            yield d, under("optimizer", slots)

    def get_config(self) -> dict[str, Any]:
        rate = self.optimizer.get_config()["learning_rate"]
        return super().get_config() | {"learning_rate": rate}


def child_of(owner: str, argument: str, given: Any) -> Optimizer:
    """An optimizer of this package for what was given, without state."""
    given = resolve(given)
    name = type(given).__name__
    if isinstance(given, keras.optimizers.LossScaleOptimizer):
        raise TypeError(
            f"{owner}({argument}={name}(...)): what scales the loss must be the outermost "
            f"optimizer; put {name} around {owner}."
        )
    child = wrap(given)
    if type(child.exchange()) is not Exchange:
        raise TypeError(
            f"{owner}({argument}={name}(...)): {name} does more than propose steps and must be the "
            "outermost optimizer."
        )
    refuse_built(owner, argument, child)
    refuse_deep_around(f"{owner}({argument}={name}(...))", child)
    return child


def refuse_built(owner: str, argument: str, child: Optimizer) -> None:
    """Refuses an optimizer that has state."""
    if child.built:
        name = type(child).__name__
        raise ValueError(
            f"{owner}({argument}={name}(...)): it has been built; give one without state."
        )


def divide(
    column: str, owner: str, argument: str, child: Optimizer, given: Mapping[str, Any]
) -> Config:
    """The common arguments of an optimizer, after those of a child of it were divided with it.

    Args:
        column: of `option_table.TABLE`.
        owner: the outer class.
        argument: the argument of it that is the child.
        child: the child, of which what the outer one does is taken away.
        given: the common arguments that the outer one was given.

    Raises:
        TypeError, ValueError: one that is out of range, or that either must not be given.
    """
    pair = Pair(column, owner, argument, child.called)
    outcome = divided(pair, given, held_by(child))
    for name, value in outcome.inner.items():
        setattr(child, OPTIONS[name].kept_as, value)
    return outcome.outer


def held_by(optimizer: Optimizer) -> Config:
    """The common arguments of an optimizer as they are now."""
    return dict(vars(optimizer.common))
