"""Attributes that are checked whenever they are set: by the constructor, and later by anyone."""

from collections.abc import Callable
from typing import Any

from tf_graft.core.checks import shown


class Checked:
    """An optimizer's argument, in the attribute of its name.

    Args:
        check: one of `tf_graft.core.checks`, which gives the value as it is kept.
        *bounds: its further arguments.
        default: its value where none is given, for arguments that all optimizers take.
        kept_as: the attribute's name, if it is not the argument's.
        **details: further arguments of `check`.
    """

    def __init__(
        self,
        check: Callable[..., Any],
        *bounds: Any,
        default: Any = None,
        kept_as: str = "",
        **details: Any,
    ):
        self._check, self._bounds, self._details = check, bounds, details
        self.default, self.kept_as = default, kept_as

    def __set_name__(self, cls: type, name: str) -> None:
        self.name = name
        self.kept_as = self.kept_as or name

    def __get__(self, optimizer: Any, cls: type | None = None) -> Any:
        if optimizer is None:
            return self
        try:
            return vars(optimizer)[self.kept_as]
        except KeyError:
            raise AttributeError(self.kept_as) from None

    def __set__(self, optimizer: Any, value: Any) -> None:
        owner, kept = type(optimizer).__name__, vars(optimizer)
        value = self.checked(owner, value)
        before = kept.setdefault(self.kept_as, value)
        if value is before or (type(value) is type(before) and value == before):
            return
        remembered, kept[self.kept_as] = _remembered(optimizer), value
        now = _remembered(optimizer)
        fits = now == remembered if optimizer.built else now.keys() <= remembered.keys()
        if not fits or optimizer.lacks_state():
            kept[self.kept_as] = before
            raise ValueError(
                f"{owner}.{self.name} = {shown(value)}: {self.name} decides what is remembered, "
                f"which was made for {shown(before)}; make a new optimizer."
            )

    def checked(self, owner: str, value: Any) -> Any:
        """The value, as it is kept.

        Raises:
            TypeError: it is of the wrong type.
            ValueError: it is out of range.
        """
        return self._check(owner, self.name, value, *self._bounds, **self._details)


def _remembered(optimizer: Any) -> dict[str, Any]:
    """The roles of the slots, and what the slots that have been made began with."""

    def fill(slot: Any) -> Any:
        return slot.fill if optimizer.built and not callable(slot.fill) else None

    return {role: fill(slot) for role, slot in optimizer.slots().items()}
