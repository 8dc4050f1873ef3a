"""Optimizers by name, for configs, saved models and users."""

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

import keras

from tf_graft.core import keras_contract
from tf_graft.core.arguments import keras_arguments
from tf_graft.core.arguments.names import Registry, refuse_missing
from tf_graft.core.checks import refuse_tf_keras, shown
from tf_graft.core.nesting import refuse_deep
from tf_graft.core.spelling import PACKAGE, snake_case

Class = TypeVar("Class", bound=type)
OURS: Registry[keras.optimizers.Optimizer] = Registry(
    "optimizer", listing="tf_graft.list_optimizers()"
)
KERAS: Registry[keras.optimizers.Optimizer] = Registry(
    "optimizer",
    (
        cls
        for cls in vars(keras.optimizers).values()
        if inspect.isclass(cls)
        and issubclass(cls, keras.optimizers.Optimizer)
        and cls is not keras.optimizers.Optimizer
    ),
)

# The keys of a dict in which Keras describes an optimizer.
WRITTEN_BY_KERAS = (
    *("module", "class_name", "config", "registered_name"),
    *("build_config", "compile_config", "shared_object_id"),
)


def register(cls: Class) -> Class:
    """Registers an optimizer class under its name for `get`, configs and Keras' saving.

    A class of the same name and module replaces the earlier one, as when a notebook's cell runs
    again.

    Raises:
        TypeError: `cls` is no optimizer class.
        ValueError: another class has that name.
    """
    if not (inspect.isclass(cls) and issubclass(cls, keras.optimizers.Optimizer)):
        raise TypeError(
            f"register({shown(cls)}): it must be a class derived from tf_graft.Optimizer."
        )
    known = OURS.get(cls.__name__)
    if known and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(
            f"register({cls.__name__}): {known.__module__}.{known.__qualname__} already has that "
            "name; rename the class."
        )
    OURS.add(cls)
    return keras.saving.register_keras_serializable(package="tf_graft")(cls)


def resolve(identifier: Any) -> keras.optimizers.Optimizer:
    """Returns the optimizer that an identifier of `get` stands for; one of Keras stays Keras' own.

    Raises:
        TypeError: `identifier` is something else, or has an argument that the optimizer lacks.
        ValueError: the name is unknown, or an argument is refused.
    """
    if isinstance(identifier, keras.optimizers.Optimizer):
        return identifier
    if isinstance(identifier, str):
        return find(identifier)()
    if isinstance(identifier, Mapping):
        refuse_deep("get", identifier)
    if isinstance(identifier, Mapping) and isinstance(identifier.get("class_name"), str):
        if identifier.get("module") or identifier.get("registered_name"):
            return deserialize(identifier)
        return _configured(identifier)
    if isinstance(identifier, Mapping) and isinstance(identifier.get("name"), str):
        return _made({**identifier})
    refuse_tf_keras(f"get({shown(identifier)})", identifier, "an optimizer")
    raise TypeError(
        f"get({shown(identifier)}): give an optimizer, a name, or a dict with 'name' or "
        "'class_name'."
    )


def _configured(identifier: Mapping[str, Any]) -> keras.optimizers.Optimizer:
    """Returns the optimizer of a dict as Keras writes it, ignoring the module."""
    config, name = identifier.get("config", {}), identifier["class_name"]
    beside = [key for key in identifier if key not in WRITTEN_BY_KERAS]
    if beside:
        raise ValueError(
            f"get({shown(identifier)}): {shown(beside[0])} stands next to 'class_name'; put the "
            "arguments of the optimizer into 'config'."
        )
    if not isinstance(config, Mapping):
        raise TypeError(f"get({shown(identifier)}): 'config' must be a dict.")
    return find(name).from_config(dict(config))


def _made(config: dict[str, Any]) -> keras.optimizers.Optimizer:
    name = config.pop("name")
    cls = find(name)
    refuse_missing(f"get({shown(name)}): it", inspect.signature(cls).parameters, config)
    return cls(**(keras_arguments.checked(cls, config) if is_of_keras(cls) else config))


def only_of_keras() -> dict[str, str]:
    """Returns the names of Keras' optimizers that stand for no class here, with a summary of each.

    Those that need another optimizer are left out.
    """
    return {
        name: summary
        for name, summary in KERAS.summaries().items()
        if OURS.get(name) is None
        and all(
            p.default is not p.empty or p.kind is p.VAR_KEYWORD
            for p in inspect.signature(KERAS.get(name) or object).parameters.values()
        )
    }


def is_of_keras(cls: type) -> bool:
    """Returns whether a class is one of Keras' own optimizers."""
    return cls in KERAS.classes()


def serialize(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """Returns the optimizer as plain values, from which `deserialize` makes an equal one, unbuilt.

    Raises:
        TypeError: the argument is no optimizer.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        refuse_tf_keras(f"serialize({shown(optimizer)})", optimizer, "an optimizer")
        raise TypeError(f"serialize({shown(optimizer)}): give an optimizer.")
    return keras.saving.serialize_keras_object(optimizer)


def deserialize(config: Mapping[str, Any]) -> keras.optimizers.Optimizer:
    """Returns the optimizer that `serialize` described.

    Raises:
        TypeError: the config is no dict.
        ValueError: the config describes something else, or a class that is not registered.
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"deserialize({shown(config)}): give a dict, as serialize returns it.")
    refuse_deep("deserialize", config)
    try:
        result = keras.saving.deserialize_keras_object(dict(config))
    except TypeError as error:
        name = config.get("class_name")
        if f"Could not locate class '{name}'" not in str(error):
            raise
        name = config.get("registered_name") or name
        raise ValueError(
            f"deserialize: there is no optimizer class {shown(name)}; put @tf_graft.register above "
            "the class, and import the module that it is in."
        ) from error
    if not isinstance(result, keras.optimizers.Optimizer):
        raise ValueError(f"deserialize: {shown(config.get('class_name'))} is not an optimizer.")
    return result


def find(name: str) -> type[keras.optimizers.Optimizer]:
    """Returns the optimizer class of a name; case and underscores do not matter.

    The names under which Keras registers classes, such as `mine>Adam`, are accepted too.

    Raises:
        ValueError: no class has that name, or the class cannot be wrapped.
    """
    registered = None if name.startswith(PACKAGE) else keras.saving.get_registered_object(name)
    if inspect.isclass(registered) and issubclass(registered, keras.optimizers.Optimizer):
        return registered
    if ours := OURS.get(name):
        return ours
    stock = KERAS.get(name)
    if stock is None:
        usable = [cls for cls in KERAS.classes() if not keras_contract.own_way(cls)]
        raise OURS.unknown("get", name, [snake_case(cls.__name__) for cls in usable])
    if way := keras_contract.own_way(stock):
        scales = issubclass(stock, keras.optimizers.LossScaleOptimizer)
        hint = (
            "to scale the loss, use mixed_precision" if scales else "wrap the optimizer inside it"
        )
        raise ValueError(
            f"get({shown(name)}): it overrides the method '{way}', so it cannot be wrapped; {hint}."
        )
    return stock
