"""Checks of arguments, with errors that name them.

Every function takes the owner (a class name, as the caller typed it) and the argument's name, and
returns the value as a plain Python object, so that configs hold only plain values.
"""

import functools
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import patterns as expressions
from tf_graft.core.media import for_message
from tf_graft.core.spelling import slip

T = TypeVar("T")
LEAST = 2.0**-126  # float32's smallest normal number; TensorFlow flushes smaller ones to zero
MOST_WHOLE = 2**53  # float64 represents every whole number up to here


def shown(value: object, form: Callable[[object], str] = repr) -> str:
    """Returns a value as messages show it: on one line, truncated if it is long."""
    try:
        text = form(value)
    except ValueError:  # Python does not print whole numbers of more than 4,300 digits
        text = f"<{type(value).__name__} of more digits than Python shows>"
    return for_message(text)


@overload
def number(
    owner: str,
    name: str,
    value: object,
    low: float | None = ...,
    high: float | None = ...,
    *,
    open_low: bool = ...,
    open_high: bool = ...,
    optional: Literal[False] = ...,
    float64: bool = ...,
) -> float: ...
@overload
def number(
    owner: str,
    name: str,
    value: object,
    low: float | None = ...,
    high: float | None = ...,
    *,
    open_low: bool = ...,
    open_high: bool = ...,
    optional: bool,
    float64: bool = ...,
) -> float | None: ...
def number(
    owner: str,
    name: str,
    value: object,
    low: float | None = None,
    high: float | None = None,
    *,
    open_low: bool = False,
    open_high: bool = False,
    optional: bool = False,
    float64: bool = False,
) -> float | None:
    """Returns a finite real number in [low, high]; `open_low` and `open_high` exclude the ends.

    The number must also be in the range in float32, the precision of updates, in which 1e39 is
    infinite, 1e-300 is zero, and 0.9999999999 is one. `float64` drops this condition, for numbers
    that are used in float64.
    """
    if value is None and optional:
        return None
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(f"{owner}({name}={shown(value)}): {name} must be a number.")
    given = _as_float(value)
    must = fault(given, low, high, open_low, open_high, float64)
    if must:
        raise ValueError(f"{owner}({name}={shown(value, str)}): {name} must {must}.")
    return given


@functools.lru_cache  # most numbers are defaults
def fault(
    given: float,
    low: float | None = None,
    high: float | None = None,
    open_low: bool = False,
    open_high: bool = False,
    float64: bool = False,
) -> str | None:
    """Returns the condition that a number violates, as messages word it; None if there is none."""
    if not _within(given, low, high, open_low, open_high):
        return _range(low, high, open_low, open_high)
    if float64:
        return None
    rounded = _in_float32(given)
    low_too, high_too = (end if end is None else _in_float32(end) for end in (low, high))
    if not _within(rounded, low_too, high_too, open_low, open_high):
        return f"{_range(low, high, open_low, open_high)}, and is {rounded:g} in float32"
    return "not be so small: it is 0 in float32" if given and not rounded else None


def _within(
    x: float, low: float | None, high: float | None, open_low: bool, open_high: bool
) -> bool:
    above = low is None or (x > low if open_low else x >= low)
    below = high is None or (x < high if open_high else x <= high)
    return math.isfinite(x) and above and below


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number
        return math.inf if value > 0 else -math.inf


def _in_float32(value: float) -> float:
    with np.errstate(over="ignore"):
        rounded = float(np.float32(value))
    return 0.0 if abs(rounded) < LEAST else rounded


@overload
def integer(
    owner: str, name: str, value: object, low: int | None = ..., *, optional: Literal[False] = ...
) -> int: ...
@overload
def integer(
    owner: str, name: str, value: object, low: int | None = ..., *, optional: bool
) -> int | None: ...
def integer(
    owner: str, name: str, value: Any, low: int | None = None, *, optional: bool = False
) -> int | None:
    """Returns a whole number in [low, 2^53]; a float is accepted if it is whole."""
    if value is None and optional:
        return None
    result = number(owner, name, value)
    where = f"{owner}({name}={shown(value, str)})"
    if result != int(result):
        raise ValueError(f"{where}: {name} must be a whole number.")
    if low is not None and result < low:
        raise ValueError(f"{where}: {name} must be at least {low}.")
    if abs(int(value)) > MOST_WHOLE:
        raise ValueError(f"{where}: {name} must be at most 2^53.")
    return int(result)


def boolean(owner: str, name: str, value: object) -> bool:
    """Returns True or False; refuses values that only look like it."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{owner}({name}={shown(value)}): {name} must be True or False.")
    return bool(value)


def choice(owner: str, name: str, value: object, options: Sequence[T]) -> T:
    """Returns one of `options`."""
    for option in options:
        if value is option or (type(value) is type(option) and value == option):
            return option
    listed = ", ".join(repr(option) for option in options)
    raise ValueError(f"{owner}({name}={shown(value)}): {name} must be one of {listed}.")


def patterns(owner: str, name: str, value: object, *, optional: bool = False) -> list[str] | None:
    """Returns regular expressions, which are searched for in variable paths; None means none."""
    if value is None:
        return None if optional else []
    result = listed(f"{owner}({name}={{}}): {name} must be a list of patterns.", value)
    where = f"{owner}({name}={shown(result)})"
    for pattern in result:
        if not isinstance(pattern, str):
            raise TypeError(f"{where}: {shown(pattern)} is not a pattern (a string).")
        if problem := expressions.fault(pattern):
            raise ValueError(f"{where}: {shown(pattern)} {shown(problem, str)}.")
    return result


def instance(owner: str, name: str, value: T, *kinds: type) -> T:
    """Returns an object of one of these classes."""
    if not isinstance(value, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        refuse_tf_keras(f"{owner}({name}={shown(value)})", value, f"a {wanted}")
        raise TypeError(f"{owner}({name}={shown(value)}): {name} must be a {wanted}.")
    return value


def listed(refusal: str, value: object) -> list[Any]:
    """Returns the entries of a list, or of another iterable that is not a single thing.

    Raises:
        TypeError: the value is neither; the message is `refusal`, with the value in place of `{}`.
    """
    one = (str, bytes, Mapping, np.ndarray, tf.Tensor, tf.Variable, keras.Variable)
    if isinstance(value, one) or not isinstance(value, Iterable):
        raise TypeError(refusal.format(shown(value)))
    return list(value)


def refuse_tf_keras(where: str, value: object, wanted: str) -> None:
    """Refuses an object of `tf_keras`, the Keras of before, where one of Keras 3 is needed.

    Args:
        where: begins the message.
        value: the object.
        wanted: what is needed: "an optimizer".

    Raises:
        TypeError: the object is of a class of `tf_keras`, or of one derived from such a class.
    """
    if any(cls.__module__.partition(".")[0] == "tf_keras" for cls in type(value).__mro__):
        raise TypeError(
            f"{where}: it is of tf_keras; give {wanted} of Keras 3. To train a model of tf_keras, "
            "compile it with tf_graft.legacy(optimizer)."
        )


def refuse_misspelt(holder: object, name: str, arguments: Iterable[str]) -> None:
    """Refuses a new attribute whose name is a misspelt argument's.

    Args:
        holder: the object, whose constructor has ended.
        name: the attribute's name.
        arguments: the names of the constructor's arguments.

    Raises:
        AttributeError: there is no such attribute, neither of the object nor of its class, and
            there is an argument of nearly that name.
    """
    if name.startswith("_") or name in vars(holder) or hasattr(type(holder), name):
        return
    if near := "learning_rate" if name == "lr" else slip(name, arguments):
        raise AttributeError(
            f"{type(holder).__name__}.{name}: there is no such attribute, and setting it would do "
            f"nothing; did you mean {near}?"
        )


def interval(
    low: float | str | None = None,
    high: float | str | None = None,
    open_low: bool = False,
    open_high: bool = False,
) -> str:
    """Returns a range in words: "at least 0", "in [0, 1)"; nothing for no range."""
    low, high = (x if x is None or isinstance(x, str) else f"{x:g}" for x in (low, high))
    if low is not None and high is not None:
        return f"in {'(' if open_low else '['}{low}, {high}{')' if open_high else ']'}"
    if low is not None:
        return f"{'above' if open_low else 'at least'} {low}"
    if high is not None:
        return f"{'below' if open_high else 'at most'} {high}"
    return ""


def _range(low: float | None, high: float | None, open_low: bool, open_high: bool) -> str:
    within = interval(low, high, open_low, open_high)
    if low is not None and high is not None:
        return f"lie {within}"
    return f"be finite and {within}" if within else "be finite"
