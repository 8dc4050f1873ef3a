"""Optimizers within optimizers: in wrappers, in AGN, and in Keras' own wrappers."""

from collections.abc import Iterator, Mapping
from typing import Any

import keras

DEEPEST = 16  # optimizers within one another


def refuse_deep(owner: str, given: Any) -> None:
    """Refuses a config with more nested optimizers than Python's stack could hold.

    Raises:
        ValueError: there are more than `DEEPEST`; the message begins with `owner`.
    """
    depth = 0
    level = [given]
    while level := [held for one in level for held in _held(one)]:
        depth += 1
        if depth > 4 * DEEPEST:  # a serialized optimizer is two dicts, and its arguments have more
            raise _too_deep(owner)


def refuse_deep_around(owner: str, child: keras.optimizers.Optimizer) -> None:
    """Refuses to put a further optimizer around one.

    Raises:
        ValueError: there would be more than `DEEPEST`; the message begins with `owner`.
    """
    level = [child]
    for _ in range(DEEPEST - 1):
        level = [inner for outer in level for inner in _directly_in(outer)]
    if level:
        raise _too_deep(owner)


def _too_deep(owner: str) -> ValueError:
    return ValueError(f"{owner}: optimizers can be nested {DEEPEST} deep.")


def _held(given: Any) -> list[Any]:
    held = given.values() if isinstance(given, Mapping) else given
    return [one for one in held if isinstance(one, Mapping | list | tuple)]


def nested(optimizer: keras.optimizers.Optimizer) -> Iterator[keras.optimizers.Optimizer]:
    """Yields an optimizer and all within it: outer ones first, then in the order of arguments.

    Example:
        >>> import keras
        >>> from tf_graft import LARC, SGD, AdaGraft, Adam
        >>> optimizer = keras.optimizers.LossScaleOptimizer(LARC(AdaGraft(Adam(), SGD())))
        >>> [type(found).__name__ for found in nested(optimizer)]
        ['LossScaleOptimizer', 'LARC', 'AdaGraft', 'Adam', 'SGD']
    """
    level = [optimizer]
    while level:
        yield from level
        level = [inner for outer in level for inner in _directly_in(outer)]


def _directly_in(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    ours = hasattr(optimizer, "children")
    children = optimizer.children().values() if ours else ()
    names = ("inner_optimizer", "center_optimizer")  # Keras' LossScaleOptimizer; AGN
    named = [getattr(optimizer, name) for name in names if hasattr(optimizer, name)]
    several = () if ours else getattr(optimizer, "optimizers", ())  # Keras' MultiOptimizer
    return [*children, *named, *several]
