"""The interface that the other files here ask of an optimizer."""

from typing import Protocol

import keras
import numpy as np

from tf_graft.core.files.identity import Named
from tf_graft.core.state.parameters import Parameters


class Stateful(Protocol):
    """What is asked of the optimizer whose state it is.

    Attributes:
        parameters: the model's variables; none before it is built.
    """

    parameters: Parameters
    built: bool
    nonfinite: str
    use_ema: bool
    gradient_accumulation_steps: int | None
    iterations: keras.Variable
    variables: list[keras.Variable]

    def signature(self) -> str:
        """Whose state it is: the class, and its children's."""

    def named_variables(self) -> Named:
        """Every variable by path and role; none before it is built."""

    def early_variables(self) -> Named:
        """The variables that are there before it is built, by role."""

    def rate_variables(self) -> Named:
        """The variables that hold learning rates, by role."""

    def namesake(self) -> str | None:
        """The class of the Keras optimizer that keeps the same state."""

    def slots_in_keras(self) -> list[str]:
        """The names of the slots, in the order in which the namesake saves them."""

    def slot_from_keras(self, role: str, value: np.ndarray) -> np.ndarray:
        """A slot's value, converted from the namesake's."""
