"""The interface that the other files here ask of an optimizer."""

from collections.abc import Mapping
from typing import Protocol

import keras

from tf_graft.core.files.identity import Named
from tf_graft.core.state.namesake import Namesake
from tf_graft.core.state.parameters import Parameters
from tf_graft.core.state.rule import Rule


class State(Protocol):
    """The variables of an optimizer, as files need them.

    Attributes:
        parameters: the model's variables; none before the optimizer is built.
        counters: the counters, by role.
    """

    parameters: Parameters
    counters: Mapping[str, keras.Variable]

    def named(self) -> Named:
        """Returns every variable by path and role; none before the optimizer is built."""

    def early(self) -> Named:
        """Returns the variables that exist before the optimizer is built, by role."""

    def rate_variables(self) -> Named:
        """Returns the variables that hold learning rates, by role."""


class Stateful(Protocol):
    """An optimizer whose state is saved and loaded."""

    rule: Rule
    state: State
    built: bool
    namesake: Namesake | None
    nonfinite: str
    use_ema: bool
    gradient_accumulation_steps: int | None
    iterations: keras.Variable
    variables: list[keras.Variable]
