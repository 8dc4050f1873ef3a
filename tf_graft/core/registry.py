"""Optimizers by name: for configs, for saved models, and for people."""

import difflib
import inspect
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import keras

from tf_graft.core import keras_arguments, keras_contract
from tf_graft.core.checks import shown

Class = TypeVar("Class", bound=type)
OURS = "tf_graft>"  # what Keras puts before the name that a class of ours is registered under
_CLASSES: dict[str, type[keras.optimizers.Optimizer]] = {}
_KERAS = {
    name.lower(): cls
    for name, cls in vars(keras.optimizers).items()
    if inspect.isclass(cls)
    and issubclass(cls, keras.optimizers.Optimizer)
    and cls is not keras.optimizers.Optimizer
}


def register(cls: Class) -> Class:
    """Makes an optimizer class known by its name: to `get`, to configs, and to Keras' saving.

    A class of the same name and module replaces the earlier one, as when a notebook's cell runs
    again.

    Raises:
        TypeError: it is no optimizer class.
        ValueError: another class goes by that name, in any case, with underscores or without.
    """
    if not (inspect.isclass(cls) and issubclass(cls, keras.optimizers.Optimizer)):
        raise TypeError(
            f"register({shown(cls)}): it must be a class derived from tf_graft.Optimizer."
        )
    for known in list(_CLASSES.values()):
        same = (known.__module__, known.__qualname__) == (cls.__module__, cls.__qualname__)
        if _plain(known.__name__) == _plain(cls.__name__) and not same:
            raise ValueError(
                f"register({cls.__name__}): {known.__module__}.{known.__qualname__} goes by that "
                "name; give the class another one."
            )
    _CLASSES[cls.__name__] = cls
    return keras.saving.register_keras_serializable(package="tf_graft")(cls)


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def resolve(identifier: Any) -> keras.optimizers.Optimizer:
    """The optimizer that an identifier of `get` stands for, Keras' own where it is one of Keras'.

    Raises:
        TypeError: something else, or an argument the optimizer does not have.
        ValueError: an unknown name, or a bad argument.
    """
    if isinstance(identifier, keras.optimizers.Optimizer):
        return identifier
    if isinstance(identifier, str):
        return find(identifier)()
    if isinstance(identifier, Mapping) and isinstance(identifier.get("class_name"), str):
        if identifier.get("module") or identifier.get("registered_name"):
            return deserialize(identifier)
        config = identifier.get("config", {})
        if not isinstance(config, Mapping):
            raise TypeError(f"get({identifier!r}): 'config' must be a dict.")
        return find(identifier["class_name"]).from_config(dict(config))
    if isinstance(identifier, Mapping) and isinstance(identifier.get("name"), str):
        return _made({**identifier})
    raise TypeError(
        f"get({identifier!r}): an optimizer, a name, or a dict with 'name' or 'class_name' is "
        "wanted."
    )


def _made(config: dict[str, Any]) -> keras.optimizers.Optimizer:
    name = config.pop("name")
    cls = find(name)
    for argument, parameter in inspect.signature(cls).parameters.items():
        needed = (
            parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        )
        if needed and argument not in config:
            raise ValueError(f"get('{name}'): it also needs '{argument}'.")
    return cls(**(keras_arguments.checked(cls, config) if is_of_keras(cls) else config))


def is_of_keras(cls: type) -> bool:
    """Whether a class is one of Keras' own optimizers."""
    return cls in _KERAS.values()


def serialize(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """The optimizer as plain values, from which `deserialize` makes an equal one, unbuilt."""
    return keras.saving.serialize_keras_object(optimizer)


def deserialize(config: Mapping[str, Any]) -> keras.optimizers.Optimizer:
    """The optimizer that `serialize` described.

    Raises:
        TypeError: it is no dict.
        ValueError: the config describes something else, or a class that is not registered.
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"deserialize({config!r}): a dict is wanted, as serialize returns.")
    try:
        result = keras.saving.deserialize_keras_object(dict(config))
    except TypeError as error:
        name = config.get("registered_name")
        of_keras = str(config.get("module")).startswith("keras")
        if not name or of_keras or keras.saving.get_registered_object(name) is not None:
            raise
        raise ValueError(
            f"deserialize: there is no optimizer class '{name}'; put @tf_graft.register above the "
            "class, and import the module that it is in."
        ) from error
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
    """The optimizer class of a name, in any case, with underscores or without; or of the name that
    a class is registered under with Keras, such as `tf_graft>Adam`.

    Raises:
        ValueError: there is none.
    """
    registered = None if name.startswith(OURS) else keras.saving.get_registered_object(name)
    if inspect.isclass(registered) and issubclass(registered, keras.optimizers.Optimizer):
        return registered
    plain = _plain(name.removeprefix(OURS))
    for known, cls in _CLASSES.items():
        if _plain(known) == plain:
            return cls
    if plain in _KERAS:
        if way := keras_contract.own_way(_KERAS[plain]):
            raise ValueError(
                f"get('{name}'): it has a method '{way}' of its own, so it cannot be wrapped; to "
                "scale the loss there is mixed_precision."
            )
        return _KERAS[plain]
    names = list(list_optimizers())
    all_names = [
        *names,
        *(keras for keras, cls in _KERAS.items() if not keras_contract.own_way(cls)),
    ]
    near = difflib.get_close_matches(name.lower().removeprefix(OURS), all_names, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(names)}."
    raise ValueError(f"get('{name}'): there is no such optimizer; {hint}")
