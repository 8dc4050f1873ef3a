"""Which of an optimizer's slots Keras' optimizer of the same name keeps, and in which order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tf_graft.core.state.parameters import Parameters


class Namesake:
    """The Keras optimizer that has the name of a class here, and the same state.

    Args:
        *groups: roles of slots. Keras saves the slots of a group together, variable by variable,
            and one group after the other.
        gaps: whether Keras also saves a variable for a slot that is not there.
        converted: functions of the optimizer and of a slot's value in Keras that return the value
            here, by role.
        returned: the inverse functions, by role.
        unlike: a function of the optimizer that returns, by name, why Keras' class cannot express
            the present value of an argument.
    """

    def __init__(
        self,
        *groups: Sequence[str],
        gaps: bool = False,
        converted: Mapping[str, Callable[[Any, np.ndarray], np.ndarray]] | None = None,
        returned: Mapping[str, Callable[[Any, np.ndarray], np.ndarray]] | None = None,
        unlike: Callable[[Any], Mapping[str, str]] = lambda optimizer: {},
    ):
        self._groups, self._gaps = groups, gaps
        self._converted, self._returned = converted or {}, returned or {}
        self._unlike = unlike

    def name(self, optimizer: Any) -> str:
        """Returns the name of the Keras optimizer."""
        return type(optimizer).__name__

    def slots(self, optimizer: Any, parameters: Parameters) -> list[str | None]:
        """Returns the names of the slots as Keras saves them; None where it has one more."""
        if not len(parameters):
            return []
        own = [
            f"{p.path}/{role}" if role in p.slots else None
            for group in self._groups
            for p in parameters
            for role in group
            if self._gaps or role in p.slots
        ]
        return [*own, *optimizer.shared_slots()]

    def convert(self, optimizer: Any, role: str, value: np.ndarray) -> np.ndarray:
        """Returns the value of a slot for its value in Keras."""
        return self._converted[role](optimizer, value) if role in self._converted else value

    def give_back(self, optimizer: Any, role: str, value: np.ndarray) -> np.ndarray:
        """Returns the value of a slot in Keras for its value here."""
        return self._returned[role](optimizer, value) if role in self._returned else value

    def unlike(self, optimizer: Any) -> Mapping[str, str]:
        """Returns the arguments that Keras' class cannot express, each with the reason."""
        return self._unlike(optimizer)
