"""Classes by name, and arguments by name: one rule for optimizers, schedules and loss scalers."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from tf_graft.core.checks import shown
from tf_graft.core.spelling import plain, snake_case, suggest

T = TypeVar("T")


class Registry(Generic[T]):
    """Classes of one kind by name. Lookups compare names as `plain` returns them.

    Args:
        kind: The word for such a class in messages: "optimizer".
        classes: The first classes, under their own names.
        listing: What lists the classes, for messages: "list_ranges()".

    Example:
        >>> registry = Registry("range", [slice, range])
        >>> registry.get("Slice")
        <class 'slice'>
        >>> registry.unknown("get", "slise")
        ValueError("get('slise'): there is no such range; did you mean 'slice'?")
    """

    def __init__(self, kind: str, classes: Iterable[type[T]] = (), listing: str = ""):
        self._kind, self._listing = kind, listing
        self._classes: dict[str, type[T]] = {}  # by listed name
        self._listed: dict[str, str] = {}  # listed names by plain name, those of aliases included
        for cls in classes:
            self.add(cls)

    def add(self, cls: type[T], name: str | None = None, *aliases: str) -> None:
        """Registers a class and replaces an earlier one of that name.

        Args:
            cls: The class.
            name: The name that lists show. Default: None, the class's own in snake_case.
            *aliases: Further names that lookups accept.
        """
        listed = name or snake_case(cls.__name__)
        self._classes.pop(self._listed.get(plain(listed), listed), None)
        self._classes[listed] = cls
        self._listed |= dict.fromkeys(map(plain, (listed, *aliases)), listed)

    def get(self, name: str) -> type[T] | None:
        """Returns the class of that name; None if there is none."""
        listed = self._listed.get(plain(name))
        return None if listed is None else self._classes[listed]

    def names(self) -> list[str]:
        """Returns the listed names, in the order of registration."""
        return list(self._classes)

    def classes(self) -> list[type[T]]:
        """Returns the registered classes, in the order of registration."""
        return list(self._classes.values())

    def summaries(self) -> dict[str, str]:
        """Returns the first line of each class's docstring, by listed name."""
        return {
            name: (inspect.getdoc(cls) or "").partition("\n")[0]
            for name, cls in self._classes.items()
        }

    def unknown(self, owner: str, name: str, others: Iterable[str] = ()) -> ValueError:
        """Returns the error for an unknown name; it suggests what was meant, or what there is.

        Args:
            owner: The function that was called.
            name: The name, as given.
            others: Names outside the registry that may be suggested too.
        """
        hint = suggest(name, [*self._classes, *others], self._listing, self._listed)
        return ValueError(f"{owner}({shown(name)}): there is no such {self._kind}; {hint}")


def refuse_unknown(where: str, known: Iterable[str], given: Iterable[str]) -> None:
    """Refuses arguments that a function does not take.

    Raises:
        ValueError: There are such arguments; the message is a sentence with `where` as its subject.
    """
    known = list(known)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ValueError(
            f"{where} does not take {shown(unknown, _joined)}; it takes {', '.join(known)}."
        )


def refuse_missing(
    where: str, parameters: Mapping[str, inspect.Parameter], given: Iterable[str]
) -> None:
    """Refuses the absence of arguments that a function needs.

    Raises:
        ValueError: Some are absent; the message is a sentence with `where` as its subject.
    """
    given = set(given)
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind is not parameter.VAR_KEYWORD
        and name not in given
    ]
    if missing:
        raise ValueError(f"{where} also needs {shown(missing, _joined)}.")


def _joined(names: Any) -> str:
    return ", ".join(map(repr, names))
