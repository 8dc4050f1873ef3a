"""Runs any Keras optimizer through the pipeline of this package."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Unpack

import keras
import tensorflow as tf

from tf_graft.compose.keras_step import KerasStep
from tf_graft.compose.option_table import Pair, divided
from tf_graft.compose.stand_in import StandIn
from tf_graft.core import keras_contract
from tf_graft.core.arguments import keras_arguments, options
from tf_graft.core.arguments.description import Written, described
from tf_graft.core.arguments.options import Common
from tf_graft.core.arguments.registry import is_of_keras, register, resolve, serialize
from tf_graft.core.keras_optimizer import written
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.pipeline import judge
from tf_graft.core.state.namesake import Namesake
from tf_graft.core.state.parameters import Parameters
from tf_graft.core.state.point import Point, Step
from tf_graft.core.state.rule import Rule
from tf_graft.core.state.slots import Slot
from tf_graft.core.tensors import numerics
from tf_graft.core.types import NumberLike, Rates, Slots

# The Keras optimizer's arguments that this package's pipeline handles instead.
TAKEN_OVER = [name for name in options.OF_KERAS if name != "weight_decay"]
DECAY = options.OPTIONS["weight_decay"]


class _WrappedRule(Rule):
    """The rule of a wrapped optimizer, which goes by that optimizer's name."""

    def __init__(self, optimizer: "Wrapped"):
        super().__init__(optimizer)
        self.extends = False

    @property
    def called(self) -> str:
        return type(self.optimizer.optimizer).__name__

    @property
    def signature(self) -> str:
        return f"{super().signature}({self.called})"

    def steps_decay(self, path: str) -> bool:
        return bool(self.optimizer.optimizer.weight_decay) and not self.undecayed(path)

    def with_decay(self, p: Point, d: tf.Tensor) -> tf.Tensor:
        return super().with_decay(p, d) + self.optimizer.of_keras(p)


class _Inside(Namesake):
    """The Keras optimizer that a wrapped optimizer has inside."""

    def name(self, optimizer: Any) -> str:
        return type(optimizer.optimizer).__name__

    def slots(self, optimizer: Any, parameters: Parameters) -> list[str | None]:
        return optimizer.slots_in_keras() if len(parameters) else []


@register
class Wrapped(Optimizer, rule=_WrappedRule):
    """A Keras optimizer whose steps go through the pipeline of this package.

    ```
    d = what its `update_step` would add to the weights
    w <- w + d
    ```

    Repeated rows are summed first; clipping, accumulation, averaging and loss scaling act on
    gradients that are summed over replicas; non-finite gradients are skipped; half precision is
    updated in float32. Where its step or new state is not finite, as that of `Ftrl` at a learning
    rate of 0, weights and state stay as they are, unless `nonfinite="apply"`. The Keras optimizer's
    own arguments for these are taken over. Its weight decay stays before its update, as in Keras; a
    variable that the Keras optimizer or this one excludes does not decay.

    Args:
        optimizer: a Keras optimizer that has not been built, its name, or its config.
        learning_rate: replaces the optimizer's learning rate, if not None.
        **common: see `tf_graft.algorithm.Common`; they replace the optimizer's own. Exclusions
            from weight decay add up.

    Raises:
        TypeError: the argument is not a Keras optimizer; or its `update_step` updates more than
            the given variable (raised when it is built).
        ValueError: the optimizer has already been built; an argument of an optimizer of Keras'
            own is out of range, which Keras does not check; or it decays weights itself and
            `weight_decay` is given, too.

    Row-sparse gradients: if each entry of the update depends on that entry alone, untouched rows
    stay as they are; otherwise (`Lamb`, `Adafactor`, `Muon`) the gradient is made dense.

    Example:
        >>> w = tf.Variable([1.0, -1.0])
        >>> Wrapped(keras.optimizers.Lion(0.25)).apply([tf.constant([3.0, -0.1])], [w])
        >>> w.numpy().tolist()
        [0.75, -0.75]
    """

    def __init__(self, optimizer: Any, learning_rate: Any = None, **common: Unpack[Common]):
        optimizer = _checked(resolve(optimizer))
        name = type(optimizer).__name__
        inside = {option: getattr(optimizer, option) for option in TAKEN_OVER}
        everything, _ = divided(Pair("keras", "wrap", "optimizer", name), common, inside)
        rate = keras_contract.rate_of(optimizer) if learning_rate is None else learning_rate
        super().__init__(rate, **everything)
        excluded, self._undecayed = keras_contract.decay_exclusions(optimizer)
        self.exclude_from_weight_decay(var_names=excluded)
        _refuse_two_decays(optimizer, self.weight_decay)
        self.optimizer, self.namesake = optimizer, _Inside()
        self._keras_step: Any = None

    @property
    def weight_decay(self) -> NumberLike | None:
        """The weight decay here; at most one of this and the Keras optimizer's own is given."""
        decay: NumberLike | None = DECAY.kept_by(self)
        return decay

    @weight_decay.setter
    def weight_decay(self, value: NumberLike | None) -> None:
        if "optimizer" in vars(self):
            _refuse_two_decays(self.optimizer, value)
        DECAY.__set__(self, value)

    def prepare(self, variables: Mapping[str, Any]) -> None:
        if self._keras_step is not None:  # another replica has made it
            return
        key = functools.partial(keras_contract.key_of, self)
        undecayed = [v for v in variables.values() if key(v) in self._undecayed]
        self.exclude_from_weight_decay(var_list=undecayed)
        try:
            self._keras_step = KerasStep(self.optimizer, variables, key, self._keeps_decay)
        except TypeError as error:
            name = type(self.optimizer).__name__
            raise TypeError(f"wrap({name}): the optimizer cannot be wrapped: {error}.") from error

    def _keeps_decay(self, path: str) -> bool:
        return not self.rule.undecayed(path)

    def slots_for(self, path: str) -> dict[str, Slot]:
        return _slots(self._keras_step, self._keras_step.slots[path])

    def shared_slots(self) -> dict[str, Slot]:
        return _slots(self._keras_step, self._keras_step.shared)

    def whole(self, path: str) -> bool:
        return path in self._keras_step.whole

    def advance(self, s: Slots, rates: Rates, t: tf.Tensor) -> dict[str, Any]:
        return self._keras_step.once(s, rates["learning_rate"], t)

    def propose(self, points: Iterable[Point]) -> Iterator[Step]:
        step: Callable[[Point], Step] = self._keras_step.step
        return map(step, points) if judge.applies(self.nonfinite) else map(self._finite, points)

    def of_keras(self, p: Point) -> tf.Tensor:
        """Returns what the Keras optimizer's own weight decay adds to the weights at a point."""
        decay: tf.Tensor = self._keras_step.decay(p)
        return decay

    def slots_in_keras(self) -> list[str | None]:
        """Returns the names of the slots, in the order of the Keras optimizer's variables.

        They are None for variables that no step uses.
        """
        names: list[str | None] = self._keras_step.names()
        return names

    def _finite(self, p: Point) -> Step:
        """Returns the step without the entries in which it, or a new slot, is not finite."""
        d, new = self._keras_step.step(p)
        each = [tf.math.is_finite(x) for x in (d, *new.values()) if x.dtype.is_floating]
        if self.whole(p.path) or any(x.shape.rank != d.shape.rank for x in new.values()):
            each = [tf.reduce_all(finite) for finite in each]
        fits, old = functools.reduce(tf.logical_and, each), p.state()
        kept = {role: numerics.where(fits, x, old[role]) for role, x in new.items()}
        return numerics.where(fits, d, tf.zeros_like(d)), kept

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"optimizer": serialize(self.optimizer)}

    def __repr__(self) -> str:
        """Returns the call of `wrap` that makes it."""
        rate = {"learning_rate": keras_contract.rate_of(self)}
        inner = described(self.optimizer, without=TAKEN_OVER, instead=rate)
        module = "keras.optimizers." if is_of_keras(type(self.optimizer)) else ""
        instead = {"optimizer": Written(f"{module}{inner}"), "learning_rate": None}
        automatic = re.sub(r"_\d+$", "", self.name).replace("_", "")
        if automatic == type(self.optimizer).__name__.lower():
            instead["name"] = None
        return written(self, instead).replace(type(self).__name__, wrap.__name__, 1)


def get(identifier: Any) -> keras.optimizers.Optimizer:
    """Returns the optimizer that an identifier stands for, ready to use.

    Args:
        identifier: an optimizer, returned as it is; a name (`"adam"`), also as it is registered
            with Keras (`"tf_graft>Adam"`); a flat config
            (`{"name": "adam", "learning_rate": 0.1}`); a config of Keras
            (`{"class_name": "adam", "config": {...}}`); or a result of `serialize`. An optimizer
            that only Keras has, or that is described as Keras', is wrapped. A dict is left
            unchanged.

    Raises:
        TypeError: the identifier is something else, or has an argument that the optimizer lacks.
        ValueError: the name is unknown, or an argument is refused.

    Example:
        >>> get({"name": "sgd", "momentum": 0.9})
        SGD(learning_rate=0.01, momentum=0.9)
        >>> get(keras.optimizers.serialize(keras.optimizers.Ftrl()))
        wrap(optimizer=keras.optimizers.Ftrl(learning_rate=0.001))
    """
    if isinstance(identifier, keras.optimizers.Optimizer):
        return identifier
    return wrap(resolve(identifier))


def wrap(optimizer: Any, **common: Unpack[Common]) -> Optimizer:
    """Wraps a Keras optimizer as one of this package; one of this package is returned as it is.

    Args:
        optimizer: an optimizer, a name or a config.
        **common: see `tf_graft.algorithm.Common`; they replace the optimizer's own.

    Raises:
        TypeError: the argument is not an optimizer, or cannot be wrapped.
        ValueError: common arguments are given for an optimizer that is not wrapped.

    Example:
        >>> wrap(keras.optimizers.Nadam(0.5, global_clipnorm=1.0)).global_clipnorm
        1.0
    """
    optimizer = resolve(optimizer)
    if not isinstance(optimizer, Optimizer):
        return Wrapped(optimizer, **common)
    if common:
        raise ValueError(
            f"wrap({type(optimizer).__name__}, {', '.join(common)}=...): it is already an "
            "optimizer of tf_graft; give the arguments to it."
        )
    return optimizer


def _slots(recorder: KerasStep, stand_ins: dict[str, StandIn]) -> dict[str, Slot]:
    def slot(stand_in: StandIn) -> Slot:
        return Slot(lambda _: recorder.first(stand_in), tuple(stand_in.shape), stand_in.dtype.name)

    return {role: slot(stand_in) for role, stand_in in stand_ins.items()}


def _checked(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    name = type(optimizer).__name__
    if isinstance(optimizer, Optimizer):
        raise TypeError(f"Wrapped({name}): it is already an optimizer of tf_graft.")
    if is_of_keras(type(optimizer)):
        keras_arguments.check(name, vars(optimizer))
    if optimizer.built:
        raise ValueError(f"wrap({name}): it is already built; give a new optimizer.")
    return optimizer


def _refuse_two_decays(optimizer: keras.optimizers.Optimizer, decay: NumberLike | None) -> None:
    if decay and optimizer.weight_decay:
        raise ValueError(
            f"wrap({type(optimizer).__name__}, weight_decay={decay}): it already has "
            f"weight_decay={optimizer.weight_decay}; give weight_decay to it only."
        )
