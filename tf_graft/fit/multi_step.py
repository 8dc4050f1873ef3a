"""`steps_per_execution` above 1 on several replicas, which Keras 3 does not support by itself.

Keras puts each step but the first into a `tf.cond`, whose branches TensorFlow cannot divide over
several devices within a loop. The loop here needs no `tf.cond`: it runs while there is a batch.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import TypeAlias

import keras
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.core.types import Structure

Function: TypeAlias = Callable[[Iterable[Structure]], Structure]

ON_REPLICAS = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)

PREPARED: weakref.WeakSet[keras.Model] = weakref.WeakSet()


def multi_step(model: keras.Model) -> keras.Model:
    """Makes `steps_per_execution` of a model work on several replicas.

    Keras 3 can compile such a model and predict with it, but its `fit` raises an error on more than
    one replica. After this call `fit` and `evaluate` take several steps in one call of TensorFlow,
    and weights, metrics and logs are those of `steps_per_execution=1`, to the bit: with callbacks,
    validation, a custom `train_step`, any optimizer, and an epoch whose last execution is shorter.
    `multi_worker` includes it. A model on one device does not need it and is left unchanged.

    Args:
        model: a model created in the scope of a `MirroredStrategy` or
            `MultiWorkerMirroredStrategy`; compiled before or after. Modified in place.

    Returns:
        The same model.

    Raises:
        ValueError: the model was created under another strategy, such as that of parameter servers.

    Example:
        ```python
        strategy = tf.distribute.MirroredStrategy()
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile(tg.Adam(1e-3), "mse", steps_per_execution=16)
        tg.multi_step(model)
        model.fit(x, y, batch_size=64)
        ```
    """
    strategy = checks.instance("multi_step", "model", model, keras.Model).distribute_strategy
    if isinstance(strategy, ON_REPLICAS) and model not in PREPARED:
        PREPARED.add(model)
        model.make_train_function = _repeating(model, "train_function")
        model.make_test_function = _repeating(model, "test_function")
    elif not isinstance(strategy, ON_REPLICAS) and not _is_one_device(strategy):
        raise ValueError(
            f"multi_step: the model '{model.name}' was made under a {type(strategy).__name__}; it "
            "must be made under a MirroredStrategy or a MultiWorkerMirroredStrategy."
        )
    return model


def _is_one_device(strategy: tf.distribute.Strategy) -> bool:
    servers = isinstance(strategy, tf.distribute.ParameterServerStrategy)
    return strategy.num_replicas_in_sync == 1 and not servers


def _repeating(model: keras.Model, name: str) -> Callable[..., Function]:
    """Returns a model's method that makes a function, for functions of several steps."""
    make = getattr(model, f"make_{name}")

    def make_function(force: bool = False) -> Function:
        if force or getattr(model, name) is None:
            make(force)
            if model.steps_per_execution > 1:
                setattr(model, name, _repeated(model, getattr(model, name)))
        return getattr(model, name)

    return make_function


def _repeated(model: keras.Model, function: Function) -> Function:
    """Makes a function that calls Keras' own, which takes a list of one batch, on each batch."""
    count = model.steps_per_execution

    def more(done: tf.Tensor, batch: tf.experimental.Optional, _: Structure) -> tf.Tensor:
        return (done < count) & batch.has_value()

    def several(first: Structure, iterator: tf.distribute.DistributedIterator) -> Structure:
        def step(
            done: tf.Tensor, batch: tf.experimental.Optional, _: Structure
        ) -> tuple[tf.Tensor, tf.experimental.Optional, Structure]:
            logs = function([batch.get_value()])
            # The batch after the last belongs to the next execution.
            ahead = tf.cond(done + 1 < count, iterator.get_next_as_optional, lambda: batch)
            return done + 1, ahead, logs

        begun = tf.constant(1), iterator.get_next_as_optional(), function([first])
        return tf.while_loop(more, step, begun)[-1]

    if not model.run_eagerly:
        several = tf.function(several, reduce_retracing=True, autograph=False)

    def execution(batches: Iterable[Structure]) -> Structure:
        if isinstance(batches, tf.distribute.DistributedIterator):
            # Taken here: in the function, a step would draw random numbers after the end, too.
            return several(next(batches), batches)
        return function(batches)  # a call of `train_on_batch`

    return execution
