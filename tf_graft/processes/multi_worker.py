"""`fit` and `evaluate` with several workers, which Keras 3 cannot do by itself.

It fails twice: where it averages a batch of features and labels over the workers, to make metrics
of it, and where it averages the scalars that a step returns along an axis they do not have.
"""

import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tf_graft.core import checks, keras_contract

PREPARED: weakref.WeakSet[keras.Model] = weakref.WeakSet()


def multi_worker(model: keras.Model) -> keras.Model:
    """Has `fit` and `evaluate` of a model work under `MultiWorkerMirroredStrategy`.

    Keras 3 makes such a model and predicts with it; its `fit` and `evaluate` raise. After this call
    they work, with callbacks, validation and a `train_step` of your own: every worker runs the same
    program, gets its part of each batch, and takes the step that one device would take of the whole
    batch. Logs are the same on all workers, and so are the decisions of callbacks such as
    `EarlyStopping`.

    `batch_size`, and a data set's batch, is that of all workers together and should be divisible by
    their number. Call `keras.utils.set_random_seed` first, so that all workers shuffle alike. All
    workers must save what one saves, each to a path of its own. Without `TF_CONFIG`, which says
    that there are several workers, nothing changes.

    Args:
        model: made in the strategy's scope; compiled before or after. It is changed in place.

    Returns:
        The same model.

    Raises:
        ValueError: the model was made outside the scope of a `MultiWorkerMirroredStrategy`; at the
            first step, it is compiled with `steps_per_execution` above 1.

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
    if model in PREPARED or not strategy.cluster_resolver.cluster_spec():
        return model
    PREPARED.add(model)
    keras_contract.make_metrics_of_one_replica(model)
    model.train_step = _averaged(model, model.train_step)
    model.test_step = _averaged(model, model.test_step)
    return model


def _averaged(model: keras.Model, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A step whose logs Keras averages over the workers: with an axis for it to do so along."""

    def with_axis(data: Any) -> Any:
        if model.steps_per_execution > 1:
            raise ValueError(
                f"multi_worker: the model '{model.name}' is compiled with steps_per_execution="
                f"{model.steps_per_execution}, and Keras cannot do several steps at once on "
                "replicas; leave it at 1."
            )
        return tf.nest.map_structure(lambda value: tf.expand_dims(value, 0), step(data))

    return with_axis
