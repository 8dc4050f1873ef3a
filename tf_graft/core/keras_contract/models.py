"""Models: their layers, and the metrics that Keras makes on the first batch."""

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tf_graft.core.types import Structure


def layers_of(model: keras.Model) -> list[keras.Layer]:
    """Returns the model itself and its layers, including those within layers."""
    return list(model._flatten_layers())


def make_metrics(model: keras.Model, batch: Structure) -> None:
    """Makes the variables of compiled metrics and losses, as Keras does on the first step."""
    model._symbolic_build(data_batch=batch)


def make_metrics_of_one_replica(model: keras.Model) -> None:
    """Makes `fit` and `evaluate` build metrics from one replica's share of the first batch."""
    strategy = model.distribute_strategy

    def first(value: Any) -> Any:
        return strategy.experimental_local_results(value)[0]

    def build(iterator: Iterable[Any] | None = None, data_batch: Structure = None) -> None:
        for _, _, batches in iterator or ():
            data_batch = tf.nest.map_structure(first, next(batches))
            break
        with strategy.scope():
            make_metrics(model, data_batch)

    model._maybe_symbolic_build = build
