"""EvictRows: a callback that frees the rows of ids that have not occurred for a long time."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.core.checks import shown
from tf_graft.core.optimizer import Optimizer
from tf_graft.vocabulary.dynamic_lookup import DynamicLookup


class EvictRows(keras.callbacks.Callback):
    """Frees, after each epoch, the rows of ids that have not occurred for a long time.

    A freed row gets the weights with which its embedding was initialized, and the optimizer's state
    as it was at the start: momenta, squares, averages, counts. So a new id begins in it as it would
    have in the first epoch. For a moment this takes the memory of a second table. Give the
    embedding's initializer a seed, so that a run that you resume draws the same first weights.

    Give one callback all embeddings that share a lookup, and put it before callbacks that save the
    model. Do not use it with `EarlyStopping(restore_best_weights=True)`, which gives the weights of
    an earlier epoch to the ids of the last one.

    Args:
        lookup: the layer that gives ids their rows.
        embedding: the layer that has the rows, with as many as `lookup.capacity`; or a list of such
            layers.
        unused_for: an id keeps its row if it occurred in one of the last `unused_for` batches.

    Raises:
        TypeError: a layer has another type; or, when `fit` begins, the optimizer is not one of
            tf_graft.
        ValueError: the layers have different numbers of rows; `unused_for` is below 1.
    """

    def __init__(
        self,
        lookup: DynamicLookup,
        embedding: keras.layers.Embedding | Sequence[keras.layers.Embedding],
        unused_for: int,
    ) -> None:
        super().__init__()
        embeddings: list[Any] = [*embedding] if isinstance(embedding, list | tuple) else [embedding]
        for name, layer, kind in (
            ("lookup", lookup, DynamicLookup),
            *(("embedding", layer, keras.layers.Embedding) for layer in embeddings),
        ):
            if not isinstance(layer, kind):
                raise TypeError(
                    f"EvictRows: {name} is {shown(layer)}; it must be a layer of type "
                    f"{kind.__name__}."
                )
        if not embeddings:
            raise ValueError("EvictRows: embedding is an empty list; give at least one layer.")
        for each in embeddings:
            if each.input_dim != lookup.capacity:
                raise ValueError(
                    f"EvictRows: '{each.name}' has {each.input_dim} rows, and '{lookup.name}' "
                    f"gives {lookup.capacity}."
                )
        self.lookup = lookup
        self.embeddings = embeddings
        self.unused_for = checks.integer("EvictRows", "unused_for", unused_for, 1)
        self._freed = np.empty([0], np.int64)  # the rows that were freed last,
        self._calls = 0  # after so many calls of the lookup

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
        """Frees rows, and gives them their first weights and state.

        If the lookup was not called since rows were freed, the epoch may have trained these rows,
        by row numbers that were looked up before `fit`. They are then reset again.
        """
        rows = self.lookup.evict(self.unused_for)
        if self.lookup.calls == self._calls:
            rows = np.union1d(self._freed, rows)
        self._freed, self._calls = rows, self.lookup.calls
        for layer in self.embeddings if rows.size else ():
            table = layer.embeddings
            first = layer.embeddings_initializer(table.shape, dtype=table.dtype)
            self.model.optimizer.reset_rows(table, rows, weights=tf.gather(first, rows))
