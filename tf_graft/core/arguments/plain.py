"""Arguments that are objects of plain values: made from a config, equal if their values are."""

from collections.abc import Mapping
from typing import Any, Self, TypeVar

import keras

from tf_graft.core.checks import shown
from tf_graft.core.types import Config

P = TypeVar("P", bound="Plain")


class Plain:
    """An object whose attributes are the arguments of its constructor."""

    def get_config(self) -> Config:
        """Returns the arguments of the constructor."""
        return dict(vars(self))

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Returns the object of a config."""
        return cls(**config)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({arguments})"


def configured(
    where: str, config: Config, base: type[P], what: str, kinds: Mapping[str, type[P]]
) -> P:
    """Returns the object that a config describes: one of Keras, or a flat one with a `name`.

    Args:
        where: the call that has the config, for messages.
        config: the config.
        base: the class of the object.
        what: what the object is, for messages.
        kinds: the classes by the names that a flat config gives.

    Raises:
        TypeError, ValueError: the config describes no such object.
    """
    if "class_name" in config:
        made = keras.saving.deserialize_keras_object(dict(config))
        if not isinstance(made, base):
            raise TypeError(f"{where}: {shown(config['class_name'])} is not a class of {what}.")
        return made
    arguments = dict(config)
    found = kinds.get(str(arguments.pop("name", None)).lower())
    if found is None:
        names = " or ".join(map(repr, kinds))
        raise ValueError(f"{where}: this config describes no {what}; its 'name' must be {names}.")
    try:
        return found(**arguments)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{where}: {error}") from None


def serialized(given: Any) -> Any:
    """Returns a value as a config if it is such an object, and any other value as it is."""
    return keras.saving.serialize_keras_object(given) if isinstance(given, Plain) else given
