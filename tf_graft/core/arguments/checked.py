"""Attributes that are checked whenever they are set: by the constructor, and later by anyone."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from tf_graft.core import checks, patterns
from tf_graft.core.arguments import rates
from tf_graft.core.arguments.settable import Settable
from tf_graft.core.checks import shown

NONE: Mapping[str, Any] = MappingProxyType({})


class Checked:
    """An argument of an optimizer, a schedule or a loss scaler, kept in the attribute of its name.

    This descriptor has no `__get__`: Python reads the value from the object itself, without a call.

    Args:
        check: a check, such as `tf_graft.algorithm.number`, which returns the value as it is kept.
        *bounds: further positional arguments of `check`; the name of another argument stands for
            its value.
        default: the value if none is given, for arguments that all optimizers take.
        kept_as: the attribute's name, if it is not the argument's.
        scheduled: whether the argument may also be a schedule of such values. An algorithm reads
            its value at an update by `tf_graft.algorithm.current`.
        **details: further keyword arguments of `check`.

    Attributes:
        others: the names of the arguments that bound this one.
    """

    def __init__(
        self,
        check: Callable[..., Any],
        *bounds: Any,
        default: Any = None,
        kept_as: str = "",
        scheduled: bool = False,
        **details: Any,
    ):
        self._check, self._bounds, self._details = check, bounds, details
        self._scheduled = scheduled
        self.others = [bound for bound in bounds if isinstance(bound, str)]
        self.default, self.kept_as = default, kept_as

    def __set_name__(self, cls: type, name: str) -> None:
        self.name = name
        self.kept_as = self.kept_as or name

    def __set__(self, optimizer: Any, value: Any) -> None:
        owner, kept = type(optimizer).__name__, vars(optimizer)
        value = self.checked(owner, value, kept)
        self.refuse_beside(owner, {**kept, self.name: value})
        before = kept.setdefault(self.kept_as, value)
        if isinstance(before, Settable) and isinstance(value, float | Settable):
            if before.variable is None:
                before.value = float(value)
            else:
                optimizer.state.set_value(before, float(value))
            return
        if value is not before and (type(value) is not type(before) or value != before):
            self._replace(optimizer, before, value)

    def kept_by(self, optimizer: Any) -> Any:
        """Returns the value, for an attribute of this name that is read in another way.

        Raises:
            AttributeError: the constructor has not set it yet.
        """
        try:
            return vars(optimizer)[self.kept_as]
        except KeyError:
            raise AttributeError(self.kept_as) from None

    def _replace(self, optimizer: Any, before: Any, value: Any) -> None:
        """Replaces a value by another one before the first step, if the slots stay the same."""
        where = f"{type(optimizer).__name__}.{self.name} = {shown(value)}"
        kept = vars(optimizer)
        if optimizer.rule.fixed:
            numbers = self._scheduled and isinstance(value, float)
            hint = f", make it {self.name}=tf_graft.Settable(...)" if numbers else ""
            raise ValueError(
                f"{where}: the optimizer was built with {shown(before)}, and a compiled step would "
                f"not see the change; set it before the first step{hint}, or make a new optimizer."
            )
        if isinstance(value, Settable):
            value = optimizer.state.hold_value(self.kept_as, value)
        remembered, kept[self.kept_as] = optimizer.slots().keys(), value
        lacks = optimizer.state.lacks(optimizer.engine.present())
        if lacks or not optimizer.slots().keys() <= remembered:
            kept[self.kept_as] = before
            raise ValueError(
                f"{where}: {self.name} decides which slots there are, and they were made for "
                f"{shown(before)}; make a new optimizer."
            )

    def refuse_beside(self, owner: str, given: Mapping[str, Any]) -> None:
        """Refuses a new value that other arguments exclude.

        Args:
            owner: the name of the class.
            given: the new value and the other arguments, by name.
        """

    @property
    def holds_patterns(self) -> bool:
        """Whether the argument is a list of regular expressions for paths of variables."""
        return self._check is checks.patterns

    @property
    def range(self) -> str:
        """The numbers that the argument may be, in words; nothing for other arguments."""
        if self._check not in (checks.number, checks.integer):
            return ""
        ends = {name: x for name, x in self._details.items() if name.startswith("open_")}
        return checks.interval(*self._bounds, **ends)

    def or_nan(self, value: Any) -> tf.Tensor:
        """Returns a schedule's value, a float32 scalar, or NaN if it is not in the range."""
        value = tf.cast(tf.convert_to_tensor(value), tf.float32)
        low, high = self._ends
        below = value < high if self._details.get("open_high", math.isinf(high)) else value <= high
        return tf.where((value >= low) & below, value, math.nan)

    @property
    def _ends(self) -> tuple[float, float]:
        """The least and the largest value of an argument that may be a schedule."""
        low, high, *_ = *self._bounds, math.inf, math.inf
        return low, high

    def checked(self, owner: str, value: Any, others: Mapping[str, Any] = NONE) -> Any:
        """Returns the value as it is kept.

        Args:
            owner: the name of the class.
            value: what was given.
            others: the other arguments by name; one that is missing bounds nothing.

        Raises:
            TypeError: the value has the wrong type.
            ValueError: the value is out of range, or the first value of a schedule is.
        """
        if self._scheduled and isinstance(value, dict | rates.LearningRateSchedule):
            found = rates.schedule(owner, self.name, value, self._check_alone)
            if isinstance(found, Settable):
                found.within = self._ends
            return found
        bounds = self._bounds
        if self.others:
            bounds = tuple(others.get(x) if isinstance(x, str) else x for x in bounds)
        return self._check(owner, self.name, value, *bounds, **self._details)

    def _check_alone(self, owner: str, name: str, value: Any) -> None:
        self._check(owner, name, value, *self._bounds, **self._details)


def warn_of_idle_patterns(optimizer: Any, paths: Sequence[str]) -> None:
    """Warns of each pattern among an optimizer's arguments that matches no variable.

    The exact path of one variable may match nothing, as that variable may be frozen; but then
    another pattern must match.

    Args:
        optimizer: the optimizer with the arguments.
        paths: the paths of all variables.
    """
    options = [option for cls in type(optimizer).__mro__ for option in vars(cls).values()]
    for option in options:
        if isinstance(option, Checked) and option.holds_patterns:
            given = getattr(optimizer, option.kept_as) or ()
            idle = [x for x in given if not any(patterns.matches(path, [x]) for path in paths)]
            for pattern in idle:
                if len(idle) == len(given) or not patterns.is_exact(pattern):
                    _warn(f"{type(optimizer).__name__}({option.name}=...)", pattern, paths)


def refuse_idle_patterns(where: str, expressions: tuple[str, ...], paths: Sequence[str]) -> None:
    """Refuses a regular expression that is the first to match for no variable.

    The exact path of one variable may match nothing, as that variable may be frozen; but then
    another expression must match.

    Args:
        where: begins the message; "{}" in it stands for the expression.
        expressions: the expressions, of which the first that matches counts.
        paths: the paths of all variables.

    Raises:
        ValueError: there is such an expression.
    """
    used = {patterns.first(expressions, path) for path in paths}
    for expression in expressions:
        if expression in used or (patterns.is_exact(expression) and used != {None}):
            continue
        given = where.replace("{}", shown(expression))
        if any(patterns.matches(path, [expression]) for path in paths):
            raise ValueError(
                f"{given}: an earlier pattern matches every variable that this one matches; put "
                "the narrower pattern first."
            )
        raise ValueError(
            f"{given}: the pattern matches none of the {len(paths)} variables; the nearest path is "
            f"{shown(patterns.nearest(expression, paths))}."
        )


def _warn(where: str, pattern: str, paths: Sequence[str]) -> None:
    warnings.warn(
        f"{where}: the pattern {shown(pattern)} matches none of the {len(paths)} variables; the "
        f"nearest path is {shown(patterns.nearest(pattern, paths))}.",
        stacklevel=2,
    )
