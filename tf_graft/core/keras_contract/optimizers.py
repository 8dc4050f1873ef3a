"""Optimizers: the private attributes and methods that Keras and TensorFlow use."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.utils.tracking import no_automatic_dependency_tracking

from tf_graft.core.keras_contract.names import PROVIDED_NAMES
from tf_graft.core.keras_contract.variables import OwnVariable
from tf_graft.core.types import Key, RateLike, VariableLike

EXAMINED = "_examined"  # keeps the number of the checkpoint that was examined last
BY_POSITION = ("_variables", "_trainable_variables")


def with_private_methods(cls: Any) -> Any:
    """Adds the private methods that Keras and TensorFlow call to an optimizer's class."""
    for method in (_track_variable, _trackable_children, _lookup_dependency):
        setattr(cls, method.__name__, method)
    cls.__dir__ = _dir
    cls._model_variables_moving_average = property(_averages)
    return cls


def _track_variable(self: Any, variable: keras.Variable) -> None:
    """Tracks a variable; Keras calls it for each variable that it makes for the optimizer."""
    if type(variable) is keras.Variable:
        variable.__class__ = OwnVariable
    keras.optimizers.Optimizer._track_variable(self, variable)


def _trackable_children(self: Any, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
    """Returns the children for a checkpoint, without the lists that Keras keeps by position."""
    children = keras.optimizers.Optimizer._trackable_children(self, save_type, **kwargs)
    return {name: child for name, child in children.items() if name not in BY_POSITION}


def _lookup_dependency(self: Any, name: str, *arguments: Any, **kwargs: Any) -> Any:
    """Returns the child that a checkpoint's entry of that name is restored into.

    TensorFlow restores only `PythonState`, and notifies it when it knows all that it is about to
    restore. The optimizer reads the rest.
    """
    found = keras.optimizers.Optimizer._lookup_dependency(self, name, *arguments, **kwargs)
    if not (arguments or kwargs):  # nothing is being restored
        return found
    self.saved.examine()
    return found if isinstance(found, tf.train.experimental.PythonState) else None


def _averages(self: Any) -> list[keras.Variable]:
    """The averages, brought up to date, which `SwapEMAWeights` swaps with the model variables."""
    if not self.use_ema or not self.built:
        raise AttributeError("_model_variables_moving_average")
    averages: list[keras.Variable] = self.synchronized_averages()
    for variable, average in zip(self._trainable_variables, averages, strict=True):
        if tf.as_dtype(variable.dtype) != tf.as_dtype(average.dtype):
            raise TypeError(
                f"{type(self).__name__}: SwapEMAWeights cannot swap a variable of "
                f"{tf.as_dtype(variable.dtype).name} with its average, which is kept in "
                f"{tf.as_dtype(average.dtype).name}; leave it out (the averages are written "
                "into the model when `fit` ends), or use a mixed precision policy."
            )
    return averages


def _dir(self: Any) -> list[str]:
    """Lists the attributes that Keras' saving may read.

    The averages are left out, because reading them changes them. Optimizers that this one holds are
    left out, too: their state is part of its own.
    """
    optimizer = keras.optimizers.Optimizer
    held = {name for name, value in vars(self).items() if isinstance(value, optimizer)}
    return [name for name in optimizer.__dir__(self) if name not in {*PROVIDED_NAMES, *held}]


class ScalesLoss(keras.optimizers.LossScaleOptimizer):
    """A marker: `compile` does not wrap a `LossScaleOptimizer` into one of its own.

    It is the last of the bases, and no method of Keras' class is used.
    """

    __init__ = keras.optimizers.Optimizer.__init__
    variables = keras.optimizers.Optimizer.variables
    get_config = keras.optimizers.Optimizer.get_config
    from_config: Any = classmethod(keras.optimizers.Optimizer.from_config.__func__)


def count_of(optimizer: keras.optimizers.Optimizer) -> keras.Variable:
    """Returns the variable that counts the updates."""
    return optimizer._iterations


def rate_variable(optimizer: keras.optimizers.Optimizer) -> keras.Variable | None:
    """Returns the variable of the learning rate; None for a schedule or a callable."""
    given = optimizer._learning_rate
    return given if isinstance(given, keras.Variable) else None


def rate_of(optimizer: keras.optimizers.Optimizer) -> RateLike:
    """Returns the learning rate as it was given: a number, a schedule or a callable."""
    given = optimizer._learning_rate
    if not isinstance(given, keras.Variable):
        return given
    with tf.init_scope():  # a function may be traced
        return float(str(np.asarray(given.numpy())[()]))  # 0.1, although the float32 is above it


@contextlib.contextmanager
def rates_kept(
    optimizers: Iterable[keras.optimizers.Optimizer],
) -> Iterator[list[keras.optimizers.Optimizer]]:
    """A context that yields the optimizers with a schedule or callable, and puts it back."""
    computed = {o: o._learning_rate for o in optimizers if callable(o._learning_rate)}
    try:
        yield list(computed)
    finally:
        for optimizer, given in computed.items():
            optimizer._learning_rate = given


@contextlib.contextmanager
def without_schedules(optimizers: Iterable[keras.optimizers.Optimizer]) -> Iterator[None]:
    """A context in which one plain schedule replaces every schedule and callable."""
    with rates_kept(optimizers) as computed:
        for optimizer in computed:
            optimizer._learning_rate = keras.optimizers.schedules.PolynomialDecay(0.0, 1)
        yield


def share_schedule(
    optimizer: keras.optimizers.Optimizer, other: keras.optimizers.Optimizer
) -> None:
    """Gives one optimizer the schedule or callable of another, if there is one."""
    if callable(optimizer._learning_rate):
        other._learning_rate = optimizer._learning_rate


def key_of(optimizer: keras.optimizers.Optimizer, variable: VariableLike) -> Key:
    """Returns a model variable's key, the same for its `tf.Variable` and a replica's copy."""
    return optimizer._var_key(variable)


def arrange(
    optimizer: keras.optimizers.Optimizer, groups: Iterable[Iterable[keras.Variable]]
) -> None:
    """Puts groups of an optimizer's variables in order, in the places that they have together."""
    place = {id(v): i for i, v in enumerate(optimizer._variables)}
    own = [[v for v in group if id(v) in place] for group in groups]
    ordered = [v for group in own for v in sorted(group, key=lambda v: place[id(v)])]
    for i, variable in zip(sorted(place[id(v)] for v in ordered), ordered, strict=True):
        optimizer._variables[i] = variable


def lead_checkpoints(optimizer: Any, name: str, to: Any) -> None:
    """Makes an attribute lead checkpoints of TensorFlow to variables of the optimizer."""
    setattr(optimizer, name, to)


def keep(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> keras.Variable:
    """Adds a variable to `Optimizer.variables`, and returns it."""
    optimizer._track_variable(variable)
    return variable


@no_automatic_dependency_tracking
def declare(
    optimizer: keras.optimizers.Optimizer,
    variables: Sequence[VariableLike],
    strategy: tf.distribute.Strategy,
) -> None:
    """Tells Keras which variables the optimizer was built for."""
    optimizer._trainable_variables = list(variables)
    optimizer._trainable_variables_indices = {
        key_of(optimizer, variable): position for position, variable in enumerate(variables)
    }
    optimizer._distribution_strategy = strategy
    optimizer.built = True


def deferred(optimizer: Any) -> Any | None:
    """Returns the position of the optimizer's children in a checkpoint that is being restored.

    TensorFlow deferred restoring them; this function takes the task from it. None if nothing is
    new.
    """
    names = list(optimizer._deferred_dependencies)
    left = [at for name in names for at in optimizer._deferred_dependencies.pop(name)]
    newest = max(left, key=lambda at: at.checkpoint.restore_uid, default=None)
    if newest is None or newest.checkpoint.restore_uid <= getattr(optimizer, EXAMINED, -1):
        return None
    setattr(optimizer, EXAMINED, newest.checkpoint.restore_uid)
    return newest


def bound(
    optimizer: keras.optimizers.Optimizer, count: tuple[float, float], rate: tuple[float, float]
) -> None:
    """Bounds the values that can be loaded as count and learning rate."""
    count_of(optimizer).within = count
    own = rate_variable(optimizer)
    if own is not None:
        own.within = rate
