"""Arguments that a constructor declares once: `beta_1: BelowOne = 0.9` is checked, kept and shown.

The type of a parameter holds its check. From it follow the attribute, which is checked whenever it
is set, its assignment, the config and the range in the docstring.
"""

import contextlib
import copy
import functools
import inspect
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias, get_args

import keras

from tf_graft.core.arguments import rates, signatures
from tf_graft.core.arguments.checked import Checked
from tf_graft.core.checks import boolean, integer, number, patterns
from tf_graft.core.types import NumberLike

AtLeastZero: TypeAlias = Annotated[float, Checked(number, 0)]
AboveZero: TypeAlias = Annotated[float, Checked(number, 0, open_low=True)]
BelowOne: TypeAlias = Annotated[float, Checked(number, 0, 1, open_high=True)]
BetweenZeroAndOne: TypeAlias = Annotated[
    float, Checked(number, 0, 1, open_low=True, open_high=True)
]
AtLeastZeroOrSchedule: TypeAlias = Annotated[NumberLike, Checked(number, 0, scheduled=True)]
BelowOneOrSchedule: TypeAlias = Annotated[
    NumberLike, Checked(number, 0, 1, open_high=True, scheduled=True)
]
FractionOrSchedule: TypeAlias = Annotated[NumberLike, Checked(number, 0, 1, scheduled=True)]
Fraction: TypeAlias = Annotated[float, Checked(number, 0, 1)]
Count: TypeAlias = Annotated[int, Checked(integer, 1)]
OptionalCount: TypeAlias = Annotated[int | None, Checked(integer, 1, optional=True)]
Flag: TypeAlias = Annotated[bool, Checked(boolean)]
Patterns: TypeAlias = Annotated[Sequence[str] | None, Checked(patterns)]
OptionalPatterns: TypeAlias = Annotated[Sequence[str] | None, Checked(patterns, optional=True)]

_GIVEN = "_given_arguments"  # where an object keeps them until `assign`
CONSTRUCTED = "_constructed"  # the attribute that says that the constructor has ended


def declare(cls: type) -> None:
    """Makes an attribute of each argument that the constructor of a class declares with a check.

    Raises:
        TypeError: an argument is bounded by one that the constructor does not have.
    """
    constructor: Any = vars(cls).get("__init__")
    if constructor is None:
        return
    found = _checks_of(constructor)
    for name, check in found.items():
        for other in {*check.others} - {*inspect.signature(constructor).parameters}:
            raise TypeError(
                f"{cls.__name__}: {name} is bounded by {other!r}, but {cls.__name__}.__init__ has "
                "no such argument."
            )
        attribute = copy.copy(check)  # a type such as `BelowOne` serves many arguments
        attribute.__set_name__(cls, name)
        setattr(cls, name, attribute)
    cls.__init__ = _noting(constructor, list(found))  # type: ignore[misc]


def assign(holder: Any) -> None:
    """Sets the attributes of the declared arguments to what the constructors were given."""
    for name, value in vars(holder).pop(_GIVEN, {}).items():
        setattr(holder, name, value)


def plain(value: Any) -> Any:
    """Returns the value of an argument as a config holds it: a schedule by its own config."""
    if isinstance(value, rates.LearningRateSchedule):
        return keras.optimizers.schedules.serialize(value)
    return value


def _checks_of(constructor: Any) -> dict[str, Checked]:
    """Returns the checks in the types of a constructor's parameters, by name, bounds first."""
    names = getattr(inspect.unwrap(constructor), "__globals__", {})
    annotations: dict[str, Any] = {}
    for name, hint in inspect.get_annotations(constructor).items():
        with contextlib.suppress(NameError, AttributeError):  # only type checkers know the name
            annotations[name] = eval(hint, names) if isinstance(hint, str) else hint
    checks = {
        name: [x for x in get_args(a) if isinstance(x, Checked)] for name, a in annotations.items()
    }
    found = {name: of_it[0] for name, of_it in checks.items() if of_it}
    return dict(sorted(found.items(), key=lambda item: bool(item[1].others)))


def _noting(constructor: Any, names: Sequence[str]) -> Any:
    """Returns the constructor, which notes its end, and these arguments of it for `assign`."""
    signature = inspect.signature(constructor)

    @functools.wraps(constructor)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        with contextlib.suppress(TypeError):  # the constructor refuses what does not fit
            given = signature.bind(self, *args, **kwargs)
            given.apply_defaults()
            own = {name: given.arguments[name] for name in names}
            vars(self)[_GIVEN] = {**own, **vars(self).get(_GIVEN, {})}
        constructor(self, *args, **kwargs)
        if type(self).__init__ is __init__:  # otherwise a subclass's constructor goes on
            vars(self)[CONSTRUCTED] = True

    shown = [signatures.named(p) for p in signature.parameters.values()]
    __init__.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return __init__
