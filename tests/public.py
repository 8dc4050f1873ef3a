"""What users may rely on, as text: names, arguments and defaults, commands, and keys of configs.

By hand: `python tests/public.py` writes `public.txt`, with which `test_public.py` compares it.
"""

import importlib
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

import tf_graft
from tf_graft import cli
from tf_graft.algorithm import Common
from tf_graft.study.schema import Arm, Study, Task
from tf_graft.training import schema

FILE = Path(__file__).with_name("public.txt")
MODULES = (
    *("tf_graft", "tf_graft.algorithm", "tf_graft.averages", "tf_graft.dtensor"),
    *("tf_graft.report", "tf_graft.scaling", "tf_graft.schedules", "tf_graft.testing"),
    "tf_graft.vocabulary",
)
COMMON = Common.__annotations__.keys()
FUNCTION = re.compile(r"<function (\S+) at 0x\w+>|<built-in function (\w+)>")


def lines() -> Iterator[str]:
    """Yields a line for everything public."""
    for module in MODULES:
        members = importlib.import_module(module)
        for name in sorted(members.__all__):
            yield from described(f"{module}.{name}", getattr(members, name))
    yield from commands()
    yield from keys()


def described(path: str, member: Any) -> Iterator[str]:
    """Yields a name with its arguments and, of a class, what it has beside them and its bases."""
    if inspect.isclass(member) and issubclass(member, Exception):
        yield f"{path} is a {', '.join(base.__name__ for base in member.__bases__)}"
        return
    if member is Common:
        of_all = signature(tf_graft.SGD)
        yield f"{path}{written([of_all[name] for name in of_all if name in COMMON])}"
        return
    is_alias = typing.get_origin(member) is not None  # of a type, as `dict[str, Rate]`
    yield f"{path}{arguments(member) if callable(member) and not is_alias else ''}"
    if inspect.isclass(member):
        known = set().union(*map(dir, member.__bases__), signature(member))
        for name in sorted(set(vars(member)) - known):
            if not name.startswith("_"):
                value = inspect.unwrap(getattr(member, name))
                yield f"{path}.{name}{arguments(value) if inspect.isroutine(value) else ''}"


def arguments(function: Any) -> str:
    """Returns the arguments of a function; `**common` stands for those of all optimizers."""
    found = signature(function)
    if found.keys() >= COMMON:
        common = inspect.Parameter("common", inspect.Parameter.VAR_KEYWORD)
        return written([*(found[name] for name in found if name not in COMMON), common])
    return written([*found.values()])


def signature(function: Any) -> Mapping[str, inspect.Parameter]:
    """Returns the parameters of a function or class; none where Python itself knows none."""
    try:
        return inspect.signature(function).parameters
    except ValueError:
        return {}


def written(parameters: list[inspect.Parameter]) -> str:
    """Writes parameters with their defaults, without their types."""
    bare = [parameter.replace(annotation=parameter.empty) for parameter in parameters]
    return FUNCTION.sub(lambda found: found[1] or found[2], str(inspect.Signature(bare)))


def commands() -> Iterator[str]:
    """Yields the commands of `tf-graft` with their arguments and options."""
    for name, command in sorted(typer.main.get_command(cli.app).commands.items()):
        words = [each.opts[0] if each.opts[0][0] == "-" else each.name for each in command.params]
        yield " ".join(["tf-graft", name, *words])


def keys() -> Iterator[str]:
    """Yields the keys of configs and studies with their defaults, section by section."""
    sections = {s for s in vars(schema).values() if inspect.isclass(s) and issubclass(s, BaseModel)}
    for section in sorted(sections | {Arm, Study, Task}, key=lambda section: section.__name__):
        for key, field in section.model_fields.items():
            default = "required" if field.is_required() else field.get_default()
            if not isinstance(default, BaseModel):
                yield f"{section.__name__}: {key} = {default!r}"


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in lines()))
