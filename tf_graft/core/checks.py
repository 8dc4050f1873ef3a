"""Arguments checked once, on construction, with errors that name them.

Every function takes the owner (a class name, as the caller typed it) and the argument's name, and
returns the value as a plain Python object, so that configs hold nothing but plain values.
"""

import math
import numbers
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


class CheckpointError(ValueError):
    """Saved state that does not fit the optimizer it is loaded into. Nothing has been changed."""


def number(
    owner: str,
    name: str,
    value: Any,
    low: float | None = None,
    high: float | None = None,
    *,
    open_low: bool = False,
    open_high: bool = False,
    optional: bool = False,
) -> float | None:
    """A finite real number within [low, high], an end excluded where `open_*` says so."""
    if value is None and optional:
        return None
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(f"{owner}({name}={value!r}): {name} must be a number.")
    result = float(value)
    below = low is not None and (result <= low if open_low else result < low)
    above = high is not None and (result >= high if open_high else result > high)
    if not math.isfinite(result) or below or above:
        bounds = _range(low, high, open_low, open_high)
        raise ValueError(f"{owner}({name}={value}): {name} must {bounds}.")
    return result


def integer(
    owner: str, name: str, value: Any, low: int | None = None, *, optional: bool = False
) -> int | None:
    """A whole number, at least `low`; a float is accepted when it is whole."""
    if value is None and optional:
        return None
    result = number(owner, name, value)
    assert result is not None  # for the type checker: not optional here
    if result != int(result):
        raise ValueError(f"{owner}({name}={value}): {name} must be a whole number.")
    if low is not None and result < low:
        raise ValueError(f"{owner}({name}={value}): {name} must be at least {low}.")
    return int(result)


def boolean(owner: str, name: str, value: Any) -> bool:
    """True or False, nothing that merely looks like it."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{owner}({name}={value!r}): {name} must be True or False.")
    return bool(value)


def choice(owner: str, name: str, value: Any, options: Sequence[Any]) -> Any:
    """One of `options`."""
    if not any(
        value is option or (type(value) is type(option) and value == option) for option in options
    ):
        listed = ", ".join(repr(option) for option in options)
        raise ValueError(f"{owner}({name}={value!r}): {name} must be one of {listed}.")
    return value


def patterns(owner: str, name: str, value: Any) -> list[str]:
    """Regular expressions, to be searched for in variable paths; None means none."""
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{owner}({name}={value!r}): {name} must be a list of patterns.")
    result = list(value)
    for pattern in result:
        if not isinstance(pattern, str):
            raise TypeError(f"{owner}({name}={result!r}): {pattern!r} is not a pattern (a string).")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"{owner}({name}={result!r}): {pattern!r} is not a regular expression: {error}."
            ) from None
    return result


def matches(path: str, expressions: Iterable[str]) -> bool:
    """Whether any of the regular expressions occurs in a variable's path.

    A shard of a variable that parameter servers divide (`dense/bias/part_0`) goes by its path.
    """
    whole = re.sub(r"/part_\d+$", "", path)
    return any(re.search(expression, whole) for expression in expressions)


def _range(low: float | None, high: float | None, open_low: bool, open_high: bool) -> str:
    if low is not None and high is not None:
        return f"lie in {'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
    if low is not None:
        return f"be finite and {'above' if open_low else 'at least'} {low:g}"
    if high is not None:
        return f"be finite and {'below' if open_high else 'at most'} {high:g}"
    return "be finite"
