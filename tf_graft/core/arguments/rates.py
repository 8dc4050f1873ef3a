"""An optimizer's learning rate: a number that can be set, or a schedule."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import checks, keras_contract
from tf_graft.core.arguments import settable
from tf_graft.core.checks import shown

LearningRateSchedule = keras.optimizers.schedules.LearningRateSchedule
WITHIN = (0.0, float(np.finfo(np.float32).max))
OF_KERAS = keras.optimizers.Optimizer.learning_rate
HELD = (tf.Tensor, tf.Variable, keras.Variable)


class LearningRate:
    """The current learning rate, which you can set to a number unless it is a schedule.

    If you set it to a schedule after the first step, a step that is compiled already does not see
    the change, and you get a warning.

    Raises:
        TypeError: the computed rate is not a number; or the rate is set to something that is no
            rate, or to a number although it is a schedule or a callable.
        ValueError: the computed rate is not a scalar; or the rate is set to a value that is
            negative, NaN, infinite or not a scalar.
    """

    def __get__(self, optimizer: Any, cls: type | None = None) -> Any:
        if optimizer is None:
            return self
        value = OF_KERAS.fget(optimizer)
        if not isinstance(value, tf.Variable | keras.Variable):
            _as_scalar(f"{type(optimizer).__name__}.learning_rate", value, "now")
        return value

    def __set__(self, optimizer: Any, value: Any) -> None:
        owner, held = type(optimizer).__name__, keras_contract.rate_of(optimizer)
        value = new_rate(owner, value)
        if callable(held) and not callable(value):
            raise TypeError(
                f"{owner}.learning_rate: it cannot be set to {shown(value)}, because "
                f"{_name_of(held)} computes it; to set it, also with ReduceLROnPlateau or "
                "LearningRateScheduler, make the optimizer with a number."
            )
        OF_KERAS.fset(optimizer, value)
        if callable(value) and optimizer.rule.fixed:
            warnings.warn(
                f"{owner}.learning_rate: steps that were compiled before do not see the change to "
                f"{_name_of(value)}; compile the model again, or make a new tf.function.",
                stacklevel=2,
            )


def rate(owner: str, given: Any) -> Any:
    """Returns a learning rate: a float of at least 0, a schedule, or a callable without arguments.

    Raises:
        TypeError: the rate is none of these; a schedule returns no number; a callable requires an
            argument.
        ValueError: a number is out of range; a schedule's number at step 0 is.
    """
    if isinstance(given, str) or (isinstance(given, dict) and "class_name" not in given):
        raise TypeError(
            f"{owner}(learning_rate={shown(given)}): learning_rate must be a number or a schedule; "
            "tf_graft.schedules.get makes a schedule by name."
        )
    if isinstance(given, dict):
        given = deserialized(f"{owner}(learning_rate={shown(given)})", given)
    settable.refuse(f"{owner}(learning_rate=...)", given)
    if isinstance(given, LearningRateSchedule):
        refuse_schedule(f"{owner}(learning_rate={_name_of(given)})", given)
        return given
    if callable(given):
        _refuse_uncallable(owner, given)
        return given
    return checks.number(owner, "learning_rate", given, 0)


def number_or_tensor(owner: str, value: Any) -> tf.Tensor:
    """Returns a new rate as a tensor; like `new_rate`, but without schedules and callables."""
    if isinstance(value, dict) or callable(value):
        raise TypeError(
            f"{owner}: the learning rate is {_name_of(value)}; it must be a number or a tensor."
        )
    return tf.convert_to_tensor(new_rate(owner, value))


def schedule(owner: str, name: str, given: Any, check: Callable[[str, str, Any], object]) -> Any:
    """Returns a schedule, given as such or as a config, for an argument other than the rate.

    Args:
        owner: the optimizer's class.
        name: the argument.
        given: a schedule or its config.
        check: checks the schedule's value at step 0, as a function of `owner`, a name and a value.

    Raises:
        TypeError: the config describes no schedule, or the value is no number.
        ValueError: the value is out of range or not a scalar.
    """
    where = f"{owner}({name}={_name_of(given)})"
    found = deserialized(where, given) if isinstance(given, dict) else given
    with tf.init_scope():  # a function may be traced
        first = tf.get_static_value(_as_scalar(where, found(tf.constant(0, tf.int64)), "at step 0"))
    if first is not None:
        _check_first(where, float(str(first)), lambda value: check(owner, name, value))
    return found


def _check_first(where: str, value: float, check: Callable[[float], object]) -> None:
    try:
        check(value)
    except ValueError as error:
        must = str(error).partition("): ")[2]
        raise ValueError(f"{where}: at step 0 it is {value:g}, and {must}") from None


def refuse_schedule(where: str, schedule: Any) -> None:
    """Refuses a schedule whose first value is no learning rate.

    Raises:
        TypeError: the value at step 0 is no number; the message begins with `where`.
        ValueError: the value at step 0 is negative, NaN, infinite or not a scalar.
    """
    with tf.init_scope():  # a function may be traced
        first = schedule(tf.constant(0, tf.int64))
    _refuse_computed(where, first, "at step 0")


def new_rate(owner: str, value: Any) -> Any:
    """Returns a value that a rate can be set to: as `rate`, or a tensor or variable of a number."""
    if not isinstance(value, HELD):
        return rate(owner, value)
    _refuse_computed(f"{owner}.learning_rate", value, "that is given")
    return value


def _refuse_computed(where: str, value: Any, when: str) -> None:
    """Refuses the value of a schedule or a tensor, as far as the value is known."""
    known = tf.get_static_value(_as_scalar(where, value, when))
    must = None if known is None else checks.fault(float(known), 0)
    if must:
        raise ValueError(f"{where}: the value {when} is {known}; it must {must}.")


def _as_scalar(where: str, value: Any, when: str) -> tf.Tensor:
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"{where}: the value {when} is {shown(value)}; it must be a number."
        ) from None
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        raise TypeError(
            f"{where}: the value {when} is of dtype {tensor.dtype.name}; it must be a number."
        )
    if not tensor.shape.is_compatible_with([]):
        raise ValueError(
            f"{where}: the value {when} has shape {tuple(tensor.shape)}; it must be a scalar."
        )
    return tensor


def _refuse_uncallable(owner: str, given: Any) -> None:
    """Refuses a class, and a callable that cannot be called without arguments."""
    where = f"{owner}(learning_rate={_name_of(given)})"
    if inspect.isclass(given):
        raise TypeError(f"{where}: it is a class; give an object of it.")
    try:
        signature = inspect.signature(given)
    except ValueError:  # some functions in C have no signature
        return
    try:
        signature.bind()
    except TypeError as error:
        raise TypeError(
            f"{where}: a callable is called without arguments: {error}; a schedule must be one of "
            "keras.optimizers.schedules or tf_graft.schedules."
        ) from None


def deserialized(where: str, config: dict[str, Any]) -> Any:
    """Returns the schedule that a config of Keras describes.

    Raises:
        TypeError: the config describes something else; the message begins with `where`.
        ValueError: the config describes nothing, or arguments that are refused.
    """
    try:
        found = keras.optimizers.schedules.deserialize(config)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = shown(error, str).rstrip(".")
        raise ValueError(f"{where}: it describes no schedule: {reason}.") from None
    if not isinstance(found, LearningRateSchedule):
        raise TypeError(f"{where}: {shown(config.get('class_name'))} is not a schedule.")
    return found


def _name_of(given: Any) -> str:
    if isinstance(given, LearningRateSchedule):
        return f"{type(given).__name__}(...)"
    name = getattr(given, "__name__", None)
    return name if isinstance(name, str) else shown(given)
