"""EvictRows: a callback that frees the rows of ids that have not come for long."""

import warnings
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.core.checks import shown
from tf_graft.core.optimizer import Optimizer
from tf_graft.vocabulary.dynamic_lookup import DynamicLookup


class EvictRows(keras.callbacks.Callback):
    """Frees, after each epoch, the rows of ids that have not come for long.

    A freed row gets the weights with which its embedding was initialized, and the optimizer's state
    of the start: momenta, squares, averages, counts. So a new id begins in it as it would have in
    the first epoch. For a moment this takes the memory of a second table. Give the embedding's
    initializer a seed, so that a run that you resume draws the same first weights.

    Args:
        lookup: the layer that gives ids their rows.
        embedding: the layer that has the rows, with as many as `lookup.capacity`.
        unused_for: an id keeps its row if it came in one of so many last batches.

    Raises:
        TypeError: a layer has another type; or, when `fit` begins, the optimizer is not one of
            tf_graft.
        ValueError: the layers have different numbers of rows; `unused_for` is below 1.
    """

    def __init__(
        self, lookup: DynamicLookup, embedding: keras.layers.Embedding, unused_for: int
    ) -> None:
        super().__init__()
        for name, layer, kind in (
            ("lookup", lookup, DynamicLookup),
            ("embedding", embedding, keras.layers.Embedding),
        ):
            if not isinstance(layer, kind):
                raise TypeError(
                    f"EvictRows: {name} is {shown(layer)}; it must be a layer of type "
                    f"{kind.__name__}."
                )
        if embedding.input_dim != lookup.capacity:
            raise ValueError(
                f"EvictRows: '{embedding.name}' has {embedding.input_dim} rows, and "
                f"'{lookup.name}' gives {lookup.capacity}."
            )
        self.lookup = lookup
        self.embedding = embedding
        self.unused_for = checks.integer("EvictRows", "unused_for", unused_for, 1)

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Refuses an optimizer that cannot reset rows."""
        if not isinstance(self.model.optimizer, Optimizer):
            raise TypeError(
                f"EvictRows: the optimizer {shown(self.model.optimizer)} cannot reset rows; "
                "compile the model with an optimizer of tf_graft."
            )

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Warns if the model was trained, but not the lookup: its ids were not in the file."""
        updates = int(self.model.optimizer.iterations)
        if updates and not self.lookup.calls:
            warnings.warn(
                f"EvictRows: the optimizer has taken {updates} updates, but '{self.lookup.name}' "
                "has seen no id. If the model was loaded, load the lookup, too; otherwise ids get "
                "rows with the weights of others.",
                stacklevel=2,
            )

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Frees rows, and gives them their first weights and state."""
        rows = self.lookup.evict(self.unused_for)
        if rows.size:
            table = self.embedding.embeddings
            first = self.embedding.embeddings_initializer(table.shape, dtype=table.dtype)
            self.model.optimizer.reset_rows(table, rows, weights=tf.gather(first, rows))
