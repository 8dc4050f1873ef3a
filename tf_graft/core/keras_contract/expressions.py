"""The parts of a regular expression, as Python's `re` reads them before it compiles them."""

from __future__ import annotations

import functools
import re
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple


class Item(NamedTuple):
    """A part of a regular expression.

    Args:
        kind: `re`'s word for the item: `"LITERAL"`, `"BRANCH"`, `"MAX_REPEAT"`.
        given: the item's numbers: how often a repeat repeats, whether an assertion looks ahead.
        parts: the sequences of items within the item.
        alone: a regular expression of this item alone; None for an item with parts or a back
            reference.
    """

    kind: str
    given: tuple[Any, ...]
    parts: list[list[Item]]
    alone: re.Pattern[str] | None


@functools.lru_cache(maxsize=1_000)
def parsed(expression: str) -> list[Item]:
    """Returns the items of a regular expression."""
    tree = _parser.parse(expression)
    return _items(tree, tree.state.flags)


def _items(tree: Any, flags: int) -> list[Item]:
    return [_item(kind, given, flags) for kind, given in tree]


def _item(kind: Any, given: Any, flags: int) -> Item:
    if kind is _parser.SUBPATTERN:
        flags = _compiler._combine_flags(flags, given[1], given[2])
    flat = given[1] if kind is _parser.BRANCH else given if isinstance(given, tuple) else [given]
    trees = [part for part in flat if isinstance(part, _parser.SubPattern)]
    numbers = tuple(part for part in flat if isinstance(part, int))
    alone = None if trees or kind is _parser.GROUPREF else _compiled((kind, given), flags)
    return Item(str(kind), numbers, [_items(tree, flags) for tree in trees], alone)


def _compiled(item: Any, flags: int) -> re.Pattern[str]:
    state = _parser.State()
    state.flags = flags
    return _compiler.compile(_parser.SubPattern(state, [item]))
