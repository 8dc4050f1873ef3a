"""`fit` and `evaluate` with several workers, which Keras 3 does not support by itself.

Keras fails twice: it averages a batch of features and labels over the workers to create metrics,
and it averages the scalars that a step returns along an axis that they do not have.
"""

import weakref
from collections.abc import Callable
from typing import TypeAlias

import keras
import tensorflow as tf

from tf_graft.core import checks, keras_contract
from tf_graft.core.types import Structure
from tf_graft.fit.multi_step import multi_step

Step: TypeAlias = Callable[[Structure], Structure]

PREPARED: weakref.WeakSet[keras.Model] = weakref.WeakSet()


def multi_worker(model: keras.Model) -> keras.Model:
    """Makes `fit` and `evaluate` of a model work under `MultiWorkerMirroredStrategy`.

    Keras 3 can create such a model and predict with it, but its `fit` and `evaluate` raise errors.
    After this call they work, with callbacks, validation and a custom `train_step`: every worker
    runs the same program, gets its part of each batch, and takes the step that one device would
    take on the whole batch. Logs are the same on all workers, and so are the decisions of callbacks
    such as `EarlyStopping`.

    `batch_size`, or the batch of a data set, counts the examples of all workers together and should
    be divisible by their number. Call `keras.utils.set_random_seed` first, so that all workers
    shuffle in the same way. If one worker saves a file, all must, each to its own path.
    `multi_worker` includes `multi_step`; without `TF_CONFIG`, which describes the workers, it does
    nothing else.

    Args:
        model: a model created in the strategy's scope; compiled before or after. Modified in place.

    Returns:
        The same model.

    Raises:
        ValueError: the model was created outside the scope of a `MultiWorkerMirroredStrategy`.

    Example:
        ```python
        strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before any tensor is made
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile(tg.Adam(1e-3), "mse")
        tg.multi_worker(model)
        model.fit(x, y, batch_size=64)  # two workers: 32 examples each
        ```
    """
    strategy = checks.instance("multi_worker", "model", model, keras.Model).distribute_strategy
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        raise ValueError(
            f"multi_worker: the model '{model.name}' was made outside the scope of a "
            "tf.distribute.MultiWorkerMirroredStrategy; make and compile it within "
            "`with strategy.scope():`."
        )
    multi_step(model)
    if model in PREPARED or not strategy.cluster_resolver.cluster_spec():
        return model
    PREPARED.add(model)
    keras_contract.make_metrics_of_one_replica(model)
    model.train_step = _averaged(model.train_step)
    model.test_step = _averaged(model.test_step)
    return model


def _averaged(step: Step) -> Step:
    """Adds the axis along which Keras averages over the workers to each log of a step."""

    def with_axis(data: Structure) -> Structure:
        return tf.nest.map_structure(lambda value: tf.expand_dims(value, 0), step(data))

    return with_axis
