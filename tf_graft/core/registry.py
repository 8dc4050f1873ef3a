"""Optimizers by name: for configs, for saved models, and for people."""

import difflib
import inspect
import re
from collections.abc import Mapping
from typing import Any

import keras

_CLASSES: dict[str, type[keras.optimizers.Optimizer]] = {}
_KERAS = {
    name.lower(): cls
    for name, cls in vars(keras.optimizers).items()
    if inspect.isclass(cls) and issubclass(cls, keras.optimizers.Optimizer)
}


def register(cls: type) -> type:
    """Makes an optimizer class known by its name, here and to Keras' saving."""
    _CLASSES[cls.__name__] = cls
    return keras.saving.register_keras_serializable(package="tf_graft")(cls)


def get(identifier: Any) -> keras.optimizers.Optimizer:
    """The optimizer that an identifier stands for.

    Args:
        identifier: an optimizer, returned as it is; a name (`"adam"`); a flat config
            (`{"name": "adam", "learning_rate": 0.1}`); or what `serialize` returned. A dict
            given is left unchanged. A name that only Keras has (`"lion"`) gives Keras' optimizer,
            for `wrap`.

    Raises:
        TypeError: something else, or an argument the optimizer does not have.
        ValueError: an unknown name, or a bad argument.

    Example:
        >>> get({"name": "sgd", "momentum": 0.9}).momentum
        0.9
    """
    if isinstance(identifier, keras.optimizers.Optimizer):
        return identifier
    if isinstance(identifier, str):
        return find(identifier)()
    if isinstance(identifier, Mapping) and "class_name" in identifier:
        return deserialize(identifier)
    if isinstance(identifier, Mapping) and isinstance(identifier.get("name"), str):
        arguments = {key: value for key, value in identifier.items() if key != "name"}
        return find(identifier["name"])(**arguments)
    raise TypeError(
        f"get({identifier!r}): an optimizer, a name, or a dict with 'name' or 'class_name' is "
        "wanted."
    )


def serialize(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """The optimizer as plain values, from which `deserialize` makes an equal one, unbuilt."""
    return keras.saving.serialize_keras_object(optimizer)


def deserialize(config: Mapping[str, Any]) -> keras.optimizers.Optimizer:
    """The optimizer that `serialize` described.

    Raises:
        ValueError: the config describes something else.
    """
    result = keras.saving.deserialize_keras_object(dict(config))
    if not isinstance(result, keras.optimizers.Optimizer):
        raise ValueError(f"deserialize: {config.get('class_name')!r} is not an optimizer.")
    return result


def list_optimizers() -> dict[str, str]:
    """Every optimizer's name, as configs write it, with a line on what it is."""
    named = {snake_case(name): cls for name, cls in _CLASSES.items()}
    return {
        name: (inspect.getdoc(cls) or "").partition("\n")[0] for name, cls in sorted(named.items())
    }


def snake_case(name: str) -> str:
    """`AdaGraft` as `ada_graft`, `AdamW` as `adamw`, `SGD` as `sgd`."""
    return re.sub(r"(?<=[a-z])([A-Z])(?=[a-z])", r"_\1", name).lower()


def find(name: str) -> type[keras.optimizers.Optimizer]:
    """The optimizer class of a name, in any case, with underscores or without.

    Raises:
        ValueError: there is none.
    """
    plain = name.replace("_", "").lower()
    for known, cls in _CLASSES.items():
        if known.lower() == plain:
            return cls
    if plain in _KERAS:
        return _KERAS[plain]
    names = list(list_optimizers())
    near = difflib.get_close_matches(name.lower(), names, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(names)}."
    raise ValueError(f"get('{name}'): there is no such optimizer; {hint}")
