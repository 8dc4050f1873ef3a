"""The code that rows of the evidence reach, so that a change of other code leaves them of today."""

import ast
import functools
import inspect
import sys
from collections.abc import Collection, Iterator

from support import model_rows
from tf_graft.core.nesting import nested

# Each file has an optimizer, or what some optimizers use. A row reaches what its own import.
FOLDERS = ("optimizers", "wrappers", "grafting", "agn", "openseq2seq", "schedules")
OF_OPTIMIZERS = tuple(f"tf_graft.{name}." for name in FOLDERS)


def unreached(rows: Collection[str]) -> list[str]:
    """Returns the files of optimizers that rows neither contain nor import.

    A row that is not in `support.model_rows.ROWS` may reach every file.
    """
    if not set(rows) <= model_rows.ROWS.keys():
        return []
    reached: set[str] = set()
    new = {module for row in rows for module in _of_row(row)}
    while new:
        reached |= new
        new = {found for module in new for found in _imported(module)} - reached
    return sorted(_file(module) for module in _every() - reached)


@functools.cache
def _every() -> frozenset[str]:
    """The modules of optimizers that are loaded, without packages."""
    modules = {name for name in sys.modules if name.startswith(OF_OPTIMIZERS)}
    return frozenset(name for name in modules if not hasattr(sys.modules[name], "__path__"))


@functools.cache
def _of_row(row: str) -> frozenset[str]:
    """The modules of the optimizers of a row, and of the classes that they derive from."""
    every = nested(model_rows.ROWS[row].make())
    return frozenset(cls.__module__ for each in every for cls in type(each).__mro__) & _every()


@functools.cache
def _imported(module: str) -> frozenset[str]:
    """The modules of optimizers that one imports."""
    return frozenset(_sources(module)) & _every()


def _sources(module: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[module]))):
        if isinstance(node, ast.ImportFrom) and node.module in sys.modules:
            for alias in node.names:
                found = getattr(sys.modules[node.module], alias.name)
                yield from (node.module, f"{node.module}.{alias.name}")
                yield getattr(found, "__module__", node.module)


def _file(module: str) -> str:
    return module.replace(".", "/") + ".py"
