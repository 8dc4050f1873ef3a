"""Descriptions of optimizers, schedules and scalers, written as calls."""

import inspect
from collections.abc import Container, Mapping
from typing import Any

from tensorflow.experimental import dtensor

from tf_graft.core.arguments.checked import Checked


class Written(str):
    """A description in place of the object itself."""

    __repr__ = str.__str__


def described(
    thing: object, without: Container[str] = (), instead: Mapping[str, object] | None = None
) -> str:
    """Describes a value as code: `ExpDecay(learning_rate=0.1, decay_steps=10)`.

    Args:
        thing: a value; a function, which is shown by its name; or an object that keeps each
            argument of its constructor in an attribute of the same name.
        without: names of such arguments to leave out.
        instead: values to show in place of those in the object's attributes.
    """
    if inspect.isroutine(thing):
        return thing.__qualname__
    if isinstance(thing, Mapping):
        return f"{{{', '.join(f'{key!r}: {described(x)}' for key, x in thing.items())}}}"
    cls = type(thing)
    of_its_own: Any = cls.__repr__
    if of_its_own is not object.__repr__:
        return repr(thing)
    names = [name for name in inspect.signature(cls).parameters if name not in without]
    held = {name: getattr(thing, name) for name in names if hasattr(thing, name)}
    return call(cls, held | dict(instead or {}), {})


def call(cls: type, arguments: Mapping[str, object], defaults: Mapping[str, object]) -> str:
    """Describes a call of a class by the learning rate and the arguments that are not defaults.

    Args:
        cls: the class; its constructor has the defaults of its own arguments.
        arguments: the arguments by name.
        defaults: the defaults of other arguments, by name.
    """
    constructor: Any = inspect.getattr_static(cls, "__init__")
    own = {name: p.default for name, p in inspect.signature(constructor).parameters.items()}
    usual = {name: described(_kept(cls, name, x)) for name, x in {**defaults, **own}.items()}
    usual.pop("learning_rate", None)
    given = {name: described(value) for name, value in arguments.items()}
    shown = [f"{name}={x}" for name, x in given.items() if x != usual.get(name)]
    return f"{cls.__name__}({', '.join(shown)})"


def _kept(cls: type, name: str, default: object) -> object:
    """Returns a default as the attribute of the argument holds it."""
    check = inspect.getattr_static(cls, name, None)
    if default is inspect.Parameter.empty or not isinstance(check, Checked):
        return default
    return check.checked(cls.__name__, default)


def mesh(given: dtensor.Mesh | None) -> Written | None:
    """Describes a mesh by its dimensions: `Mesh(batch=2, model=2)`."""
    if given is None:
        return None
    return Written(f"Mesh({', '.join(f'{n}={given.dim_size(n)}' for n in given.dim_names)})")
