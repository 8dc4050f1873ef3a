"""Makes constructors show each of their arguments: in `help`, in completion, in `Adam?`.

A class lists its own arguments and takes the common ones as `**common`. This module adds the common
arguments, one by one, to the class's signature and docstring.
"""

import functools
import inspect
import re
import textwrap
from typing import Any, NamedTuple, TypeVar, get_type_hints

from tf_graft.core.arguments.options import OPTIONS, Common
from tf_graft.core.types import RateLike

Class = TypeVar("Class", bound=type)

# An entry of a docstring's `Args:`: its name, its text, and the lines that continue the text.
ENTRY = re.compile(r"^( *)(\w+): (.*(?:\n\1 +.*)*)", re.MULTILINE)
COMMON_ENTRY = re.compile(r"^( *)\*\*common: see `[\w.]+`[;.] *(.*(?:\n\1 +.*)*)", re.MULTILINE)


class Argument(NamedTuple):
    """An argument that every optimizer takes.

    Args:
        name: the argument's name.
        annotation: its type.
        default: its value if it is not given.
        text: its description, as the entry under `Args:` reads.
    """

    name: str
    annotation: Any
    default: Any
    text: str


@functools.cache
def common_arguments() -> tuple[Argument, ...]:
    """Returns every common argument, in the order in which they are documented."""
    documented = textwrap.dedent((inspect.getdoc(Common) or "").partition("Args:\n")[2])
    texts = {name: text for _, name, text in ENTRY.findall(documented)}
    return tuple(
        Argument(name, annotation, OPTIONS[name].default, text)
        for name, annotation in get_type_hints(Common).items()
        for text in [texts.get(name, "")]  # without docstrings (python -OO) there is none
    )


def parameters(cls: type) -> list[inspect.Parameter]:
    """Returns the parameters of a class's constructor as it is written, without `self`."""
    constructor: Any = inspect.getattr_static(cls, "__init__")
    return list(inspect.signature(constructor).parameters.values())[1:]


def complete(cls: Class) -> Class:
    """Gives an optimizer class a signature and a docstring that show all arguments."""
    own = [_named(p) for p in parameters(cls) if p.kind is not p.VAR_KEYWORD]
    names = {p.name for p in own}
    common = [argument for argument in common_arguments() if argument.name not in names]
    cls.__signature__ = inspect.Signature([*own, *map(_parameter, common)])  # type: ignore[attr-defined]
    documented = vars(cls).get("__doc__")
    if documented:
        cls.__doc__ = COMMON_ENTRY.sub(lambda found: _documented(found, common), documented)
    return cls


def _named(parameter: inspect.Parameter) -> inspect.Parameter:
    """Returns the parameter, with a name in place of a long union of types."""
    long = parameter.annotation in (RateLike, RateLike | None)
    return parameter.replace(annotation="RateLike") if long else parameter


def _parameter(argument: Argument) -> inspect.Parameter:
    kind, default = inspect.Parameter.KEYWORD_ONLY, argument.default
    return inspect.Parameter(argument.name, kind, default=default, annotation=argument.annotation)


def _documented(found: re.Match[str], common: list[Argument]) -> str:
    """Replaces the entry for `**common` by all entries; its remark, if any, stays before them."""
    indent, remark = found.groups()
    entries = [f"{argument.name}: {argument.text}" for argument in common]
    text = textwrap.indent("\n".join(entries), indent)
    return f"{indent}**common: {remark}\n{text}" if remark else text
