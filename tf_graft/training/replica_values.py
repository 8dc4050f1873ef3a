"""The values of variables whose copies on the replicas differ: metrics, and AGN's local state.

TensorFlow saves the sum of the copies, or the first one. Neither restores the others bit for bit.
"""

from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core.places import replicas
from tf_graft.dtensor import clients
from tf_graft.processes.gathering import gathered

OF_REPLICAS = "_of_replicas"  # ends the name under which all copies are saved, stacked


def copies(variable: keras.Variable) -> Sequence[tf.Variable]:
    """Returns a variable's copies on the replicas of this process; one device has one."""
    return replicas.strategy_of([variable]).experimental_local_results(variable.value)


def differing(variables: Mapping[str, keras.Variable]) -> dict[str, tf.Variable]:
    """Returns the stacked copies of variables that differ between replicas, by names to save.

    All workers must call it, and get the same result.
    """
    strategy = replicas.strategy_of(list(variables.values()))
    if strategy.num_replicas_in_sync == 1:
        return {}
    own = {name: [copy.numpy() for copy in copies(v)] for name, v in variables.items()}
    of_replicas = zip(*own.values(), strict=True)
    digests = gathered(strategy, [np.array([*map(clients.digest, each)]) for each in of_replicas])
    differ = np.any(digests != digests[0], axis=0)
    return {
        f"{name}{OF_REPLICAS}": tf.Variable(gathered(strategy, values), trainable=False)
        for (name, values), differs in zip(own.items(), differ, strict=True)
        if differs
    }


def fits(variable: keras.Variable, dtype: tf.DType, shape: Sequence[int]) -> bool:
    """Returns whether stacked values fit a variable on the number of replicas here."""
    count = replicas.strategy_of([variable]).num_replicas_in_sync
    return [*shape] == [count, *variable.shape] and dtype == variable.value.dtype


def give(variable: keras.Variable, stacked: np.ndarray) -> None:
    """Assigns each replica its own one of stacked values that fit."""
    strategy = replicas.strategy_of([variable])
    mine = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(stacked[context.replica_id_in_sync_group])
    )
    values = strategy.experimental_local_results(mine)
    for copy, value in zip(copies(variable), values, strict=True):
        copy.assign(value)
