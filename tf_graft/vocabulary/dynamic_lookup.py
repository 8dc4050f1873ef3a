"""DynamicLookup: a layer that gives ids rows of an embedding when they first occur."""

from collections.abc import Mapping, MutableMapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import checks, keras_contract
from tf_graft.core.errors import CheckpointError
from tf_graft.core.types import TensorLike

ROW, SEEN, LAST = range(3)  # what is known of an id: its row, how often and when it came
UNKNOWN = 0  # the row that all ids without one of their own share


@keras.saving.register_keras_serializable(package="tf_graft")
class DynamicLookup(keras_contract.HoldsTables):
    """Gives each id a row of an embedding when it has occurred often enough in training.

    Ids may be any int64 numbers, such as hashed words or the numbers of users, and need not be
    known in advance. The embedding has a row for each of `capacity - 1` ids; all others share row
    0, as words out of the vocabulary of `keras.layers.IntegerLookup` do. Rows are given in the
    order in which ids occur. When all are taken, further ids stay in row 0 until `evict`, or the
    callback `EvictRows`, frees the rows of ids that have not occurred for a long time.

    Map the dataset with the layer, so that every strategy, mesh, TPU and program of XLA gets the
    same rows. There, it must see the batches one after the other: leave out `num_parallel_calls`,
    and call `cache` before the map, not after it. It counts every batch that is read: `fit` reads
    the first ones of each call once more under a strategy, and reads ahead with `steps_per_epoch`.
    If that matters, look ids up before `fit`. On one device it can also be a layer of the model,
    outside of XLA.

    ```python
    lookup = tg.vocabulary.DynamicLookup(100_000, admit_after=3)
    model = keras.Sequential([keras.layers.Embedding(lookup.capacity, 32), ...])
    training = dataset.map(lambda ids, y: (lookup(ids, training=True), y))
    validation = held_back.map(lambda ids, y: (lookup(ids), y))
    ```

    Hash strings first: `tf.strings.to_hash_bucket_fast(words, 2**62)`. An id takes about 90 bytes
    of the host's memory. The layer's state is in the files of a model that contains it; to save the
    layer of a dataset, put it before the model: `keras.Sequential([lookup, model])`. Callbacks that
    save the model in training save the layer, too, if it is an attribute: `model.lookup = lookup`.
    Do not use the layer in a cluster, where each worker would have ids of its own.

    Args:
        capacity: the number of rows of the embedding, including row 0.
        admit_after: how often an id must have occurred in training to get a row.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        ids: integers in any shape.
        training: whether to count the ids and give them rows; otherwise they are looked up.

    Returns:
        Row numbers in [0, capacity), an int64 tensor in the shape of the ids.

    Raises:
        TypeError: ids are not integers.
        ValueError: an argument is out of range; or the layer is called in XLA, or by several
            replicas, which would give different rows in each run.

    Example:
        >>> lookup = DynamicLookup(3)
        >>> lookup(np.array([70, 51, 70, -8]), training=True).numpy().tolist()
        [1, 2, 1, 0]
        >>> lookup(np.array([70, 70, 9]), training=True).numpy().tolist()
        [1, 1, 0]
        >>> lookup.evict(unused_for=1).tolist()  # 51 did not come in the last call
        [2]
        >>> lookup(np.array([9]), training=True).numpy().tolist()
        [2]

    Reference:
        Liu et al., 2022, "Monolith: real time recommendation system with collisionless embedding
        table" (arXiv 2209.07663), section 2.1: admission after a number of occurrences, expiry of
        ids that have not occurred for a long time.
    """

    def __init__(self, capacity: int, admit_after: int = 1, **kwargs: Any):
        super().__init__(trainable=False, **kwargs)
        self.capacity = checks.integer("DynamicLookup", "capacity", capacity, 2)
        self.admit_after = checks.integer("DynamicLookup", "admit_after", admit_after, 1)
        self.supports_jit = False
        # Tables are of no strategy: all replicas and datasets share them.
        self._ids = _table(tf.int64, [0, 0, 0])
        self._freed = _table(tf.int64, -1)  # rows by their turn, which is the number of rows in use
        self._counts = _table(tf.string, 0)
        self._alone = tf.CriticalSection()
        self.built = True

    def call(self, ids: tf.Tensor, training: bool | None = False) -> tf.Tensor:
        """Returns the rows of ids; see the class."""
        ids = tf.convert_to_tensor(ids)
        self._refuse(ids)
        flat = tf.reshape(tf.cast(ids, tf.int64), [-1])
        found = self._learned(flat) if training else self._ids.lookup(flat)[:, ROW]
        return tf.reshape(found, tf.shape(ids))

    def compute_output_spec(self, ids: Any, training: bool | None = False) -> keras.KerasTensor:
        """Returns the shape and dtype of the rows."""
        return keras.KerasTensor(ids.shape, "int64")

    def _refuse(self, ids: tf.Tensor) -> None:
        if not ids.dtype.is_integer:
            raise TypeError(
                f"DynamicLookup '{self.name}': ids must be integers, not {ids.dtype.name}; hash "
                "strings with tf.strings.to_hash_bucket_fast."
            )
        replica = tf.distribute.get_replica_context()
        several = replica is not None and replica.num_replicas_in_sync > 1
        if several or keras_contract.in_xla():
            where = "by several replicas" if several else "in XLA"
            raise ValueError(
                f"DynamicLookup '{self.name}' cannot be called {where}; map the dataset with it."
            )

    def _learned(self, ids: tf.Tensor) -> tf.Tensor:
        """Counts ids, gives rows to those that have come often enough, and returns the rows."""
        unique, position, times = tf.unique_with_counts(ids, tf.int64)

        def learn() -> tf.Tensor:
            known = self._ids.lookup(unique)
            seen = known[:, SEEN] + times
            new = (known[:, ROW] == UNKNOWN) & (seen >= self.admit_after)
            row, used = self._given(known[:, ROW], new)
            call = self._count("calls") + 1
            state = tf.stack([row, seen, tf.fill(tf.shape(row), call)], 1)
            with tf.control_dependencies(
                [
                    self._ids.insert(unique, state),
                    self._counts.insert(["calls", "rows"], [call, used]),
                ]
            ):
                return tf.identity(row)

        return tf.gather(self._alone.execute(learn), position)

    def _given(self, row: tf.Tensor, new: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns rows with those of new ids, as far as there are any, and the number in use."""
        used = self._count("rows")
        turn = used + tf.cumsum(tf.cast(new, tf.int64)) - 1
        freed = self._freed.lookup(turn)
        free = tf.where(freed < 0, turn + 1, freed)
        given = new & (turn + 1 < self.capacity)
        return tf.where(given, free, row), used + tf.math.count_nonzero(given)

    def _count(self, name: str) -> tf.Tensor:
        return self._counts.lookup(tf.constant(name))

    @property
    def size(self) -> int:
        """How many ids have a row."""
        return int(self._count("rows"))

    @property
    def calls(self) -> int:
        """How often it was called in training."""
        return int(self._count("calls"))

    def ids(self) -> dict[int, int]:
        """Returns the row of each id that has one."""
        ids, state = _in_order(*self._ids.export())
        has = state[:, ROW] != UNKNOWN
        return dict(zip(ids[has].tolist(), state[has, ROW].tolist(), strict=True))

    def evict(self, unused_for: int) -> np.ndarray:
        """Forgets the ids that have not occurred in the last calls, and frees their rows.

        The next new ids get the freed rows, the lowest first. Before they do, give these rows their
        first weights and state with `Optimizer.reset_rows`; the callback `EvictRows` does so.

        Args:
            unused_for: an id stays if it was in one of the last `unused_for` calls in training.

        Returns:
            The freed rows in order, an int64 array.

        Raises:
            ValueError: `unused_for` is below 1.
        """
        checks.integer("DynamicLookup.evict", "unused_for", unused_for, 1)

        def forget() -> tf.Tensor:
            ids, state = _in_order(*self._ids.export())
            old = state[:, LAST] <= int(self._count("calls")) - unused_for
            self._ids.remove(ids[old])
            self._arrange(state[~old, ROW])
            return tf.constant(np.sort(state[old & (state[:, ROW] != UNKNOWN), ROW]))

        freed: np.ndarray = self._alone.execute(forget).numpy()
        return freed

    def _arrange(self, taken: np.ndarray) -> None:
        """Notes the free rows below the last one that is in use, the lowest first."""
        taken = taken[taken != UNKNOWN]
        free = np.setdiff1d(np.arange(1, taken.max(initial=0)), taken)
        self._freed.remove(self._freed.export()[0])
        self._freed.insert(taken.size + np.arange(free.size), free)
        self._counts.insert(["rows"], tf.constant([taken.size], tf.int64))

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """Saves all ids, and what is known of them, to a file of Keras."""
        known, calls = self._alone.execute(lambda: (self._ids.export(), self._count("calls")))
        store["ids"], store["state"] = _in_order(*known)
        store["calls"] = calls.numpy()

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Loads what `save_own_variables` saved, also of a layer with fewer rows.

        Raises:
            CheckpointError: the file has more rows than the layer, or none of a `DynamicLookup`.
        """
        try:
            ids, state, calls = (np.asarray(store[key]) for key in ("ids", "state", "calls"))
        except KeyError as error:
            raise CheckpointError(
                f"DynamicLookup '{self.name}': the file has no {error} of it."
            ) from None
        if (last := state[:, ROW].max(initial=0)) >= self.capacity:
            raise CheckpointError(
                f"DynamicLookup '{self.name}': the file has the row {last}, and the layer has "
                f"{self.capacity} rows."
            )
        self._ids.remove(self._ids.export()[0])
        self._ids.insert(ids, state)
        self._arrange(state[:, ROW])
        self._counts.insert(["calls"], tf.constant([int(calls)], tf.int64))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        own = {"capacity": self.capacity, "admit_after": self.admit_after}
        config = super().get_config() | own
        del config["trainable"]
        return config


def _in_order(ids: tf.Tensor, state: tf.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids in order, and what is known of each."""
    order = np.argsort(ids)
    return ids.numpy()[order], state.numpy()[order]


def _table(keys: tf.DType, default: TensorLike) -> tf.lookup.experimental.MutableHashTable:
    default = tf.constant(default, tf.int64)
    return tf.lookup.experimental.MutableHashTable(keys, tf.int64, default)
