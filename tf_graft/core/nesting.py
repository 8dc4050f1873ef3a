"""Optimizers within optimizers: in wrappers, in AGN, and in what Keras puts around one."""

from collections.abc import Iterator

import keras


def nested(optimizer: keras.optimizers.Optimizer) -> Iterator[keras.optimizers.Optimizer]:
    """An optimizer and all within it: outer ones first, then in the order of arguments.

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
    children = optimizer.children().values() if hasattr(optimizer, "children") else ()
    names = ("inner_optimizer", "center_optimizer")  # Keras' LossScaleOptimizer; AGN
    named = [getattr(optimizer, name) for name in names if hasattr(optimizer, name)]
    several = getattr(optimizer, "optimizers", ())  # Keras' MultiOptimizer
    return [*children, *named, *several]
