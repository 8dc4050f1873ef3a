"""Makes a second optimizer with the same arguments."""

from collections.abc import Iterator
from typing import TypeVar

import keras

from tf_graft.compose.of_keras import Wrapped
from tf_graft.compose.wrapper import Around
from tf_graft.core import keras_contract
from tf_graft.core.nesting import nested
from tf_graft.core.optimizer import Optimizer

Copied = TypeVar("Copied", bound=Optimizer)


def copied(optimizer: Copied) -> Copied:
    """Returns an optimizer with the same arguments, without state.

    The two share schedules and callables for the learning rate, because a config cannot hold a
    lambda or a schedule of a class that Keras does not know.
    """
    given = list(_with_rates(optimizer))
    with keras_contract.without_schedules(given):
        copy = type(optimizer).from_config(optimizer.get_config())
    for one, other in zip(given, _with_rates(copy), strict=True):
        keras_contract.share_schedule(one, other)
    return copy


def share_exclusions(optimizer: Optimizer, copy: Optimizer) -> None:
    """Excludes from a copy's weight decay all that the original excludes by now."""
    for one, other in zip(nested(optimizer), nested(copy), strict=True):
        other.exclude_from_weight_decay(var_names=one.decay_exclusions)


def _with_rates(optimizer: Optimizer) -> Iterator[keras.optimizers.Optimizer]:
    """Yields those of an optimizer and all within it that have a learning rate of their own."""
    for found in nested(optimizer):
        if not isinstance(found, Around):
            yield found
        if isinstance(found, Wrapped):
            yield found.optimizer
