"""Searches the paths of variables for users' regular expressions in bounded time.

Python's `re` tries one way of matching after the other: `(a+)+$` takes it hours on forty letters.
This module tries every part of an expression once at each position of the text, so the time grows
with the length of the expression times the cube of the text's length. The matches are the same.
"""

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Sequence

from tf_graft.core import keras_contract
from tf_graft.core.keras_contract import Item
from tf_graft.core.spelling import COMPARED

EMBEDDINGS = ("(^|/)embeddings$",)  # the tables of Keras' layers
DEEPEST = 50  # groups within one another
REPEATS = ("MAX_REPEAT", "MIN_REPEAT")
LOOKS = ("ASSERT", "ASSERT_NOT")  # ahead or behind
GROUPS = ("BRANCH", "SUBPATTERN")


def fault(expression: str) -> str | None:
    """Says in a clause what is wrong with an expression; None if it can be searched for."""
    try:
        re.compile(expression)
        items = keras_contract.parsed(expression)
    except (re.error, OverflowError, RecursionError) as error:
        return f"is not a regular expression: {error}"
    if max((depth for _, depth in _within(items)), default=0) > DEEPEST:
        return f"has more than {DEEPEST} groups within one another"
    if _searchable(items) or _quick(items):
        return None
    return (
        "has a back reference or an atomic group beside several repeats or alternatives, which "
        "can take forever; write it without"
    )


def matches(path: str, expressions: Iterable[str]) -> bool:
    """Returns whether any of the regular expressions matches somewhere in a variable's path.

    A shard of a variable (`dense/bias/part_0`) has the path of the whole variable.
    """
    whole = re.sub(r"/part_\d+$", "", path)
    return any(found(expression, whole) for expression in expressions)


@functools.lru_cache(maxsize=100_000)
def first(expressions: tuple[str, ...], path: str) -> str | None:
    """Returns the first of the regular expressions that matches in a path; None if none does."""
    return next((each for each in expressions if matches(path, [each])), None)


def exact(path: str) -> str:
    """Returns the expression that matches a path alone."""
    return f"^{re.escape(path)}$"


def is_exact(expression: str) -> bool:
    """Returns whether an expression is one that `exact` returns."""
    return expression == exact(re.sub(r"\\(.)", r"\1", expression[1:-1]))


def nearest(expression: str, paths: Iterable[str]) -> str:
    """Returns the path that is most like an expression, for a message; "" if there is none."""
    begin = expression[:COMPARED]

    def likeness(path: str) -> float:
        names = [path, *path.split("/")]
        return max(difflib.SequenceMatcher(None, begin, name).ratio() for name in names)

    return max(paths, key=likeness, default="")


@functools.lru_cache(maxsize=100_000)
def found(expression: str, text: str, at_start: bool = False) -> bool:
    """Returns whether a regular expression without a `fault` matches in a text, or at its start."""
    items = keras_contract.parsed(expression)
    if _quick(items):
        return (re.match if at_start else re.search)(expression, text) is not None
    return bool(_Search(text).ends(items, 1 if at_start else (2 << len(text)) - 1))


def _quick(items: Sequence[Item]) -> bool:
    """Returns whether `re` has so few choices that its time grows at most with the square."""
    plain = (*LOOKS, "SUBPATTERN")
    return sum(item.kind not in plain and bool(item.parts) for item, _ in _within(items)) <= 1


def _searchable(items: Sequence[Item]) -> bool:
    """Returns whether the match after a part never depends on how that part matched."""
    return all(
        item.kind in (*REPEATS, *LOOKS, *GROUPS) if item.parts else item.kind != "GROUPREF"
        for item, _ in _within(items)
    )


def _within(items: Sequence[Item], depth: int = 0) -> Iterator[tuple[Item, int]]:
    """Yields every item with the number of items around it."""
    for item in items:
        yield item, depth
        for part in item.parts:
            yield from _within(part, depth + 1)


class _Search:
    """Finds where parts of an expression end in a text, by where they start.

    A set of positions is a whole number: position i is in the set if bit i is 1.
    """

    def __init__(self, text: str):
        self._text = text
        self._known: dict[int, list[int]] = {}

    def ends(self, items: Sequence[Item], starts: int) -> int:
        """Returns where a sequence of items ends that begins at one of `starts`."""
        for item in items:
            starts = self._after(item, starts) if starts else 0
        return starts

    def _after(self, item: Item, starts: int) -> int:
        if item.alone is not None:
            tried = (item.alone.match(self._text, i) for i in _positions(starts))
            return sum({1 << match.end() for match in tried if match})
        if item.kind in GROUPS:
            return functools.reduce(int.__or__, (self.ends(p, starts) for p in item.parts))
        if id(item) not in self._known:
            each = [self.ends(item.parts[0], 1 << i) for i in range(len(self._text) + 1)]
            looks = item.kind in LOOKS
            self._known[id(item)] = _looked(item, each) if looks else _repeated(item, each)
        return _together(self._known[id(item)], starts)


def _looked(item: Item, each: Sequence[int]) -> list[int]:
    """Returns the ends of a look ahead or behind, by its start; `each` are those of its part."""
    ahead = item.given[0] > 0
    behind = functools.reduce(int.__or__, each)
    seen = [bool(ends) if ahead else bool(behind >> i & 1) for i, ends in enumerate(each)]
    return [1 << i if it_is == (item.kind == "ASSERT") else 0 for i, it_is in enumerate(seen)]


def _repeated(item: Item, each: Sequence[int]) -> list[int]:
    """Returns the ends of a repeat, by its start; `each` are those of its part."""
    low, high = (min(int(bound), len(each)) for bound in item.given)
    now = [1 << i for i in range(len(each))]
    for _ in range(low):
        now = [_together(each, ends) for ends in now]
    result = now
    for _ in range(high - low):
        now = [_together(each, ends) for ends in now]
        before, result = result, [old | new for old, new in zip(result, now, strict=True)]
        if result == before:
            break
    return result


def _together(each: Sequence[int], starts: int) -> int:
    return functools.reduce(int.__or__, (each[i] for i in _positions(starts)), 0)


def _positions(given: int) -> Iterator[int]:
    while given:
        yield (given & -given).bit_length() - 1
        given &= given - 1
