"""Multipliers of the learning rate for groups of variables, by regular expressions for paths."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import keras

from tf_graft.core import checks, patterns
from tf_graft.core.arguments import rates, settable
from tf_graft.core.arguments.checked import refuse_idle_patterns
from tf_graft.core.arguments.plain import configured
from tf_graft.core.arguments.row_frequency import RowFrequency
from tf_graft.core.checks import shown
from tf_graft.core.types import Config, Scalar

V = TypeVar("V")
Multipliers = Mapping[str, Any]  # numbers, schedules, `RowFrequency`, by regular expression
FLAT = {"row_frequency": RowFrequency}  # by the name in a config without a class


def checked(owner: str, name: str, given: object) -> Multipliers | None:
    """Returns multipliers by regular expression; None for none.

    Raises:
        TypeError: the argument is no mapping, a key no string, or a value no number or schedule.
        ValueError: a key is no regular expression, or a multiplier is out of range.
    """
    return by_pattern(owner, name, given, "multipliers", _multiplier)


def by_pattern(
    owner: str, name: str, given: object, what: str, of: Callable[[str, str, Any], V]
) -> Mapping[str, V] | None:
    """Returns values by regular expression, each checked; None for none.

    Args:
        owner: the class that has the argument.
        name: the argument.
        given: the argument as it was given.
        what: what the values are, for messages.
        of: returns a value from the owner, the name of its place and the value as it was given.

    Raises:
        TypeError: the argument is no mapping, or a key no string.
        ValueError: a key is no regular expression.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise TypeError(
            f"{owner}({name}={shown(given)}): {name} must be a dict of {what} by pattern."
        )
    checks.patterns(owner, name, list(given))
    return {key: of(owner, f"{name}[{shown(key)}]", value) for key, value in given.items()} or None


def of_counted(owner: str, name: str, given: object) -> Multipliers | None:
    """Returns multipliers by regular expression; a list of expressions has the multiplier 1.

    Raises:
        TypeError: the argument is neither a list nor a mapping; or as `checked`.
        ValueError: see `checked`.
    """
    if given is None or isinstance(given, Mapping):
        return by_pattern(owner, name, given, "multipliers", _counted_multiplier)
    found = checks.listed(
        f"{owner}({name}={{}}): {name} must be a list of patterns, or a dict of multipliers by "
        "pattern.",
        given,
    )
    return dict.fromkeys(checks.patterns(owner, name, found) or (), 1.0) or None


def _counted_multiplier(owner: str, name: str, given: Any) -> Any:
    if isinstance(given, RowFrequency):
        return given
    where = f"{owner}({name}={shown(given)})"
    if given is RowFrequency:
        raise TypeError(f"{where}: this is the class; give RowFrequency(reference=...).")
    names = given if isinstance(given, dict) else {}
    if names.get("class_name") == "RowFrequency" or names.get("name") in FLAT:
        return configured(where, given, RowFrequency, "multiplier", FLAT)
    return _multiplier(owner, name, given)


def _multiplier(owner: str, name: str, given: Any) -> Any:
    where = f"{owner}({name}={shown(given)})"
    if isinstance(given, dict):
        given = rates.deserialized(where, given)
    settable.refuse(where, given)
    if isinstance(given, rates.LearningRateSchedule):
        rates.refuse_schedule(where, given)
        return given
    return checks.number(owner, name, given, 0)


def config(multipliers: Multipliers | None) -> Config | None:
    """Returns multipliers as plain values, from which `checked` makes equal ones."""
    if multipliers is None:
        return None
    serialized = keras.saving.serialize_keras_object
    return {key: serialized(x) if callable(x) else x for key, x in multipliers.items()}


def current(multipliers: Multipliers | None, step: Scalar) -> dict[str, Scalar]:
    """Returns the multipliers at a step by role, a name that no learning rate has."""
    return {_role(key): x(step) if callable(x) else x for key, x in (multipliers or {}).items()}


def role_of(multipliers: Multipliers | None, path: str) -> str | None:
    """Returns the role of the multiplier of a variable: that of the first pattern that matches."""
    key = _first(multipliers, path)
    return None if key is None else _role(key)


def of(multipliers: Multipliers | None, path: str) -> Any:
    """Returns the multiplier of a variable, a number or a schedule; None if no pattern matches."""
    key = _first(multipliers, path)
    return None if multipliers is None or key is None else multipliers[key]


def freezes(multipliers: Multipliers | None, path: str) -> bool:
    """Returns whether the multiplier of a variable is the number 0."""
    return bool(of(multipliers, path) == 0)


def refuse_idle(
    owner: str, name: str, multipliers: Multipliers | None, paths: Iterable[str]
) -> None:
    """Refuses a pattern that is the first to match for no variable."""
    where = f"{owner}({name}={{{{}}: ...}})"
    refuse_idle_patterns(where, tuple(multipliers or ()), list(paths))


def _first(multipliers: Multipliers | None, path: str) -> str | None:
    return patterns.first(tuple(multipliers or ()), path)


def _role(key: str) -> str:
    return f"multiplier/{key}"
