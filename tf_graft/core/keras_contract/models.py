"""Models: their layers, and the metrics that Keras makes on the first batch."""

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tf_graft.core.keras_contract.variables import storage
from tf_graft.core.types import Structure, VariableLike

NORMALIZATIONS = tuple(
    getattr(keras.layers, f"{kind}Normalization")
    for kind in ("Batch", "Group", "Layer", "RMS", "Unit")
    if hasattr(keras.layers, f"{kind}Normalization")
)


def layers_of(model: keras.Model) -> list[keras.Layer]:
    """Returns the model itself and its layers, including those within layers."""
    return list(model._flatten_layers())


class HoldsTables(keras.layers.Layer):
    """A layer with state in tables, which are no variables.

    `save_own_variables` and `load_own_variables` have all of it.
    """


def snapshot_of_tables(model: keras.Model) -> Callable[[], None]:
    """Returns a function that puts the present content back into the tables of a model's layers."""
    stores: list[tuple[keras.Layer, dict[str, Any]]] = []
    for layer in layers_of(model):
        if isinstance(layer, HoldsTables) and layer.built:
            stores.append((layer, {}))
            layer.save_own_variables(stores[-1][1])

    def put_back() -> None:
        for layer, store in stores:
            layer.load_own_variables(store)

    return put_back


def batch_normalizations(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Returns the model's layers of batch normalization, including those within layers."""
    kind = keras.layers.BatchNormalization
    return [layer for layer in layers_of(model) if isinstance(layer, kind)]


def moving_statistics(model: keras.Model) -> list[keras.Variable]:
    """Returns the variables with the moving statistics of batch normalization."""
    layers = batch_normalizations(model)
    return [v for layer in layers for v in (layer.moving_mean, layer.moving_variance)]


def calling_models(variables: Iterable[VariableLike]) -> list[keras.Model]:
    """Returns the model, in a list, that is training the variables; an empty list if there is none.

    Keras gives an optimizer variables only, but it does so in methods of the model. If that model
    trains parts of it apart, as those of a GAN are, the part with these variables is returned.
    """
    wanted = {id(storage(variable)) for variable in variables}
    for caller in _callers():
        if wanted <= _trained(caller):
            parts = [part for part in layers_of(caller) if isinstance(part, keras.Model)]
            return [next((part for part in parts if _trained(part) == wanted), caller)]
    return []


@contextlib.contextmanager
def tracing_anew_after_errors() -> Iterator[None]:
    """A context after whose errors the next `fit` of the calling model makes its function anew.

    A function whose first trace failed cannot create variables later, such as those of metrics.
    """
    try:
        yield
    except Exception:
        for model in _callers():
            model.train_function = None
        raise


def _callers() -> Iterator[keras.Model]:
    """Yields the models in whose methods the caller is, the innermost first."""
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.Model):
            yield caller
        frame = frame.f_back


def _trained(model: keras.Model) -> set[int]:
    return {id(storage(variable)) for variable in model.trainable_variables}


def parts_of(layer: keras.Layer) -> list[keras.Layer]:
    """Returns the layers directly within a layer, in the order in which they were assigned."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


@contextlib.contextmanager
def gathering_from_storage(layer: keras.layers.Embedding) -> Iterator[None]:
    """A context in which a layer's lookup leaves to its table's storage how rows are gathered.

    Otherwise Keras reads the table, and gathers from the whole value.
    """
    table = layer._embeddings
    vars(layer)["_embeddings"] = storage(table)  # past what Keras tracks
    try:
        yield
    finally:
        vars(layer)["_embeddings"] = table


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
