"""The base class of schedules that contain other schedules."""

import numbers
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Self, TypeAlias

import keras
from keras.optimizers.schedules import LearningRateSchedule

from tf_graft.core import checks
from tf_graft.core.arguments import rates
from tf_graft.core.arguments.checked import Checked
from tf_graft.core.types import Config
from tf_graft.schedules.fixed_lr import FixedLR
from tf_graft.schedules.schedule import Schedule


class Composed(Schedule):
    """A schedule that contains another schedule, or a list of schedules.

    Attributes:
        inner: the name of the argument with the inner schedules; a config contains them serialized.
    """

    inner: ClassVar[str] = "schedule"

    @classmethod
    def made(cls, given: object, get: Callable[[object], LearningRateSchedule]) -> object:
        """Returns the inner schedule, which `get` makes from what a config has in its place."""
        return get(given)

    def get_config(self) -> Config:
        """Returns the constructor's arguments, the schedules in them serialized."""
        serialized = keras.saving.serialize_keras_object(getattr(self, self.inner))
        return {**super().get_config(), self.inner: serialized}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Makes the schedule from the result of `get_config`; the dict is left unchanged."""
        found = keras.saving.deserialize_keras_object(config[cls.inner])
        return cls(**{**config, cls.inner: found})


def schedule(owner: str, name: str, given: object) -> LearningRateSchedule:
    """Returns a schedule; a number becomes a constant learning rate.

    Raises:
        TypeError: it is neither.
        ValueError: the number, or the schedule's rate at step 0, is out of range.
    """
    if isinstance(given, numbers.Real):
        given = FixedLR(checks.number(owner, name, given, low=0))
    if not isinstance(given, LearningRateSchedule):
        raise TypeError(
            f"{owner}({name}={checks.shown(given)}): {name} must be a LearningRateSchedule or a "
            "number; tf_graft.schedules.get makes one from a name or a dict."
        )
    rates.refuse_schedule(f"{owner}({name}={type(given).__name__}(...))", given)
    return given


def schedules(owner: str, name: str, given: object) -> list[LearningRateSchedule]:
    """Returns a list of schedules, each as `schedule` does."""
    listed = checks.listed(f"{owner}({name}={{}}): {name} must be a list of schedules.", given)
    return [schedule(owner, f"{name}[{i}]", each) for i, each in enumerate(listed)]


Given: TypeAlias = Annotated[LearningRateSchedule | float, Checked(schedule)]
GivenList: TypeAlias = Annotated[Sequence[LearningRateSchedule | float], Checked(schedules)]
