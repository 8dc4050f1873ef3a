"""`fit` and `evaluate` with several workers, which Keras 3 cannot do by itself.

Keras' own loops run, without knowing of the strategy: it fails where it gathers what the workers
say. They are given distributed data, and functions that run a step on every worker.
"""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tf_graft.core import keras_contract


def install(model: keras.Model, strategy: tf.distribute.Strategy, example: Any) -> None:
    """Has a model make functions for the workers, and its metrics.

    Args:
        model: made outside the strategy's scope, of layers that were made inside it.
        strategy: the strategy.
        example: a batch, of this worker alone, from which metrics are made.
    """
    with strategy.scope():
        keras_contract.make_metrics(model, example)

    def make_train_function(force: bool = False) -> Any:
        if model.train_function is None or force:
            model.train_function = _on_workers(strategy, model.train_step)
        return model.train_function

    def make_test_function(force: bool = False) -> Any:
        if model.test_function is None or force:
            model.test_function = _on_workers(strategy, model.test_step)
        return model.test_function

    of_this_worker = model.get_metrics_result

    def get_metrics_result() -> Any:
        if tf.distribute.has_strategy():  # within a step
            return of_this_worker()
        with strategy.scope():  # where reading a metric's variables adds up all workers'
            return of_this_worker()

    model.get_metrics_result = get_metrics_result
    model.make_train_function = make_train_function
    model.make_test_function = make_test_function


def _on_workers(
    strategy: tf.distribute.Strategy, step: Callable[[Any], Any]
) -> Callable[[Iterator[Any]], Any]:
    @tf.function
    def on_all(batch: Any) -> Any:
        return strategy.run(step, args=(batch,))

    def function(iterator: Iterator[Any]) -> Any:
        logs = on_all(next(iterator))
        return {name: strategy.experimental_local_results(v)[0] for name, v in logs.items()}

    return function
