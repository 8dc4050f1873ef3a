"""Searches the paths of variables for users' regular expressions, for a limited time.

`(a|a)*$` would take Python's `re` hours on forty letters. The module `regex`, which takes the same
expressions, is faster with most of these, and stops at a limit.
"""

import difflib
import functools
import re
from collections.abc import Iterable

import regex

from tf_graft.core.spelling import COMPARED

EMBEDDINGS = ("(^|/)embeddings$",)  # the tables of Keras' layers
SECONDS = 1.0  # measured on the longest paths: 1e-5


def fault(expression: str) -> str | None:
    """Says in a clause what is wrong with an expression; None if it can be searched for."""
    try:
        regex.compile(expression)
    except (regex.error, OverflowError, RecursionError) as error:
        return f"is not a regular expression: {error}"
    return None


def matches(path: str, expressions: Iterable[str]) -> bool:
    """Returns whether any of the regular expressions matches somewhere in a variable's path.

    A shard of a variable (`dense/bias/part_0`) also has the path of the whole variable.
    """
    paths = {path, re.sub(r"/part_\d+$", "", path)}
    return any(found(expression, each) for expression in expressions for each in paths)


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
    """Returns whether a regular expression matches in a text, or at its start.

    Raises:
        ValueError: to find out takes longer than a second.
    """
    search = regex.match if at_start else regex.search
    try:
        return search(expression, text, timeout=SECONDS) is not None
    except TimeoutError:
        raise ValueError(
            f"the pattern {expression!r:.100} takes longer than {SECONDS:g} s to search "
            f"{text!r:.100}; write it without repeats of what can match in several ways."
        ) from None
