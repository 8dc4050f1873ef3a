"""A second optimizer of the same arguments."""

from collections.abc import Iterator
from typing import TypeVar

import keras

from tf_graft.compose.of_keras import Wrapped
from tf_graft.compose.wrapper import Around
from tf_graft.core import keras_contract
from tf_graft.core.arguments.registry import deserialize, serialize
from tf_graft.core.nesting import nested
from tf_graft.core.optimizer import Optimizer

Copied = TypeVar("Copied", bound=Optimizer)


def copied(optimizer: Copied) -> Copied:
    """Returns an optimizer of the same arguments, without state.

    It shares schedules and callables for the learning rate with the given one, since a config does
    not hold a lambda or a schedule of a class that Keras does not know.
    """
    given = list(_with_rates(optimizer))
    with keras_contract.without_schedules(given):
        config = serialize(optimizer)
        copy = deserialize(config)
    for one, other in zip(given, _with_rates(copy), strict=True):
        keras_contract.share_schedule(one, other)
    return copy


def _with_rates(optimizer: Optimizer) -> Iterator[keras.optimizers.Optimizer]:
    """The optimizers within one, and itself, that have a learning rate of their own."""
    for found in nested(optimizer):
        if not isinstance(found, Around):
            yield found
        if isinstance(found, Wrapped):
            yield found.optimizer
