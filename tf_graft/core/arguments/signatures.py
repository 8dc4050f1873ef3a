"""Makes constructors show each of their arguments: in `help`, in completion, in `Adam?`.

A class lists its own arguments and takes the common ones as `**common`. This module adds the common
arguments, one by one, to the class's signature and docstring, and to the docstring the ranges and
defaults of the class's own arguments, and what a constructor raises if it says nothing else.
"""

import functools
import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from tf_graft.core.arguments.checked import Checked
from tf_graft.core.arguments.options import OPTIONS, Common
from tf_graft.core.types import RateLike

Class = TypeVar("Class", bound=type)

# An entry of a docstring's `Args:`: its name, its text, and the lines that continue the text.
ENTRY = re.compile(r"^( *)(\w+): (.*(?:\n\1 +.*)*)", re.MULTILINE)
ARGUMENTS = re.compile(r"(?<=Args:\n)(?:.*\S.*\n)+")
RAISES = """
    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; the message names it.
"""
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


def own_arguments(cls: type) -> list[str]:
    """Returns the names of the arguments that an optimizer's class adds to the common ones."""
    return [p.name for p in parameters(cls) if p.kind is not p.VAR_KEYWORD]


def complete(cls: Class) -> Class:
    """Gives an optimizer class a signature and a docstring that show all arguments."""
    own = [named(p) for p in parameters(cls) if p.kind is not p.VAR_KEYWORD]
    names = {p.name for p in own}
    common = [argument for argument in common_arguments() if argument.name not in names]
    cls.__signature__ = inspect.Signature([*own, *map(_parameter, common)])  # type: ignore[attr-defined]
    document(cls, common)
    return cls


def document(cls: type, common: Sequence[Argument] = ()) -> None:
    """Adds ranges, defaults and common arguments to a class's docstring, and what it raises."""
    documented = vars(cls).get("__doc__")
    if documented:
        own = {p.name: p for p in parameters(cls)}
        documented = ARGUMENTS.sub(lambda found: _with_ranges(found[0], cls, own), documented)
        if "Raises:\n" not in documented:
            documented = ARGUMENTS.sub(lambda found: found[0] + RAISES, documented, count=1)
        cls.__doc__ = COMMON_ENTRY.sub(lambda found: _documented(found, common), documented)


def _with_ranges(entries: str, cls: type, own: Mapping[str, inspect.Parameter]) -> str:
    """Adds its range and its default to the entry of each argument that has them."""

    def completed(found: re.Match[str]) -> str:
        indent, name, text = found.groups()
        if name not in own or "Default" in text:
            return found[0]
        option = inspect.getattr_static(cls, name, None)
        within = option.range if isinstance(option, Checked) else ""
        within = f"{within[:1].upper()}{within[1:]}." if within else ""
        default = _default(own[name].default)
        words = " ".join(f"{name}: {text} {within} {default}".split())
        return textwrap.fill(words, 100, initial_indent=indent, subsequent_indent=indent + "    ")

    return ENTRY.sub(completed, entries)


def _default(value: object) -> str:
    """Returns a default in a sentence; nothing for None, which an entry explains itself."""
    if value is None or value is inspect.Parameter.empty:
        return ""
    shown = f"{value:g}".replace("e-0", "e-") if isinstance(value, float) else repr(value)
    return f"Default {shown}."


def named(parameter: inspect.Parameter) -> inspect.Parameter:
    """Returns the parameter with its type alone, and with a name for a long union of types."""
    annotation = parameter.annotation
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if annotation in (RateLike, RateLike | None):
        annotation = "RateLike"
    return parameter.replace(annotation=annotation)


def _parameter(argument: Argument) -> inspect.Parameter:
    kind, default = inspect.Parameter.KEYWORD_ONLY, argument.default
    return inspect.Parameter(argument.name, kind, default=default, annotation=argument.annotation)


def _documented(found: re.Match[str], common: Sequence[Argument]) -> str:
    """Replaces the entry for `**common` by all entries; its remark, if any, stays before them."""
    indent, remark = found.groups()
    entries = [f"{argument.name}: {argument.text}" for argument in common]
    text = textwrap.indent("\n".join(entries), indent)
    return f"{indent}**common: {remark}\n{text}" if remark else text
