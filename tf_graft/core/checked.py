"""Attributes that are checked whenever they are set: by the constructor, and later by anyone."""

from collections.abc import Callable
from typing import Any

from tf_graft.core.checks import shown


class Checked:
    """An optimizer's argument, in the attribute of its name.

    Args:
        check: one of `tf_graft.core.checks`, which gives the value as it is kept.
        *bounds: its further arguments.
        default: what counts where nothing is given, for arguments that all optimizers take.
        **options: further arguments of `check`.
    """

    def __init__(
        self, check: Callable[..., Any], *bounds: Any, default: Any = None, **options: Any
    ):
        self._check, self._bounds, self._options = check, bounds, options
        self.default = default

    def __set_name__(self, cls: type, name: str) -> None:
        self.name = name

    def __get__(self, optimizer: Any, cls: type | None = None) -> Any:
        if optimizer is None:
            return self
        try:
            return vars(optimizer)[self.name]
        except KeyError:
            raise AttributeError(self.name) from None

    def __set__(self, optimizer: Any, value: Any) -> None:
        owner, kept = type(optimizer).__name__, vars(optimizer)
        value = self.checked(owner, value)
        before = kept.setdefault(self.name, value)
        if value is before or (type(value) is type(before) and value == before):
            return
        remembered, kept[self.name] = _remembered(optimizer), value
        now = _remembered(optimizer)
        fits = now == remembered if optimizer.built else now.keys() <= remembered.keys()
        if not fits or optimizer.lacks_state():
            kept[self.name] = before
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
        return self._check(owner, self.name, value, *self._bounds, **self._options)


def _remembered(optimizer: Any) -> dict[str, Any]:
    """The roles of the slots, and what the slots that have been made began with."""

    def fill(slot: Any) -> Any:
        return slot.fill if optimizer.built and not callable(slot.fill) else None

    return {role: fill(slot) for role, slot in optimizer.slots().items()}
