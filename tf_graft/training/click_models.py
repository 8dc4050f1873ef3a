"""Models of clicks: they retrieve items, or say how likely a click is."""

import itertools
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tf_graft.core.places import replicas
from tf_graft.training.data import Batches
from tf_graft.training.schema import Dlrm, TwoTower, WideAndDeep

LEFT_OUT = -1e9  # the score of a candidate that does not compete
RECALL_AT = 100


def metrics(data: Batches) -> list[keras.metrics.Metric]:
    """Returns the metrics in addition to the loss: the recall of retrieval, or the AUC."""
    if data.classes == 1:
        name = f"recall_at_{RECALL_AT}"
        return [keras.metrics.SparseTopKCategoricalAccuracy(RECALL_AT, name=name)]
    return [ClickAUC()]


@keras.saving.register_keras_serializable(package="tf_graft")
class ClickAUC(keras.metrics.AUC):
    """The area under the ROC curve, of the logits of two classes."""

    def __init__(self, name: str = "auc", dtype: str | None = None, **_: object) -> None:
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Counts a batch."""
        clicked = ops.softmax(y_pred)[:, 1]
        super().update_state(ops.reshape(y_true, [-1]), clicked, sample_weight)


@keras.saving.register_keras_serializable(package="tf_graft")
class Candidates(keras.layers.Layer):
    """Scores the right item, in the first column, and the wrong ones that it competes with.

    In training, these are the other items of the batch. Frequent items are wrong more often there,
    so that the scores learn to tell users apart. Otherwise all items compete, and the log of an
    item's count in training is added to its score.

    Args:
        items: the number of items.
        dimension: the length of an item's vector.
    """

    def __init__(self, items: int, dimension: int, **options: Any) -> None:
        super().__init__(**options)
        self.items, self.dimension = items, dimension
        policy = self.dtype_policy
        self.table = keras.layers.Embedding(items, dimension, name="item", dtype=policy)

    def build(self, *_: object) -> None:
        """Creates the table of the items, and their counts."""
        self.table.build()
        self.counts = self.add_weight(
            name="counts",
            shape=(self.items,),
            initializer="zeros",
            trainable=False,
            dtype="float32",
            autocast=False,
            aggregation="mean",
        )

    def call(self, users: tf.Tensor, items: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the scores, of shape [batch, 1 + candidates]."""
        candidates = items if training else ops.arange(self.items, dtype="int32")
        right = ops.sum(users * self.table(items), axis=-1, keepdims=True)
        wrong = ops.matmul(users, ops.transpose(self.table(candidates)))
        right, wrong = ops.cast(right, "float32"), ops.cast(wrong, "float32")
        if training:
            ones = ops.ones_like(items, dtype="float32")
            seen = ops.segment_sum(ones, items, num_segments=self.items)
            (seen,) = replicas.summed([seen], [self.items])
            self.counts.assign(self.counts + seen)
        else:
            popularity = ops.log1p(ops.convert_to_tensor(self.counts))
            right += ops.take(popularity, items)[:, None]
            wrong += popularity
        wrong = ops.where(items[:, None] == candidates[None], LEFT_OUT, wrong)
        return ops.concatenate([right, wrong], axis=1)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        return {**super().get_config(), "items": self.items, "dimension": self.dimension}


@keras.saving.register_keras_serializable(package="tf_graft")
class PairwiseDots(keras.layers.Layer):
    """The dot products of all pairs of the vectors of an example."""

    def call(self, vectors: tf.Tensor) -> tf.Tensor:
        """Maps [batch, fields, dimension] to [batch, pairs]."""
        dots = ops.matmul(vectors, ops.transpose(vectors, [0, 2, 1]))
        pairs = [i * vectors.shape[1] + j for i in range(vectors.shape[1]) for j in range(i)]
        flat = ops.reshape(dots, [-1, vectors.shape[1] ** 2])
        return ops.take(flat, ops.convert_to_tensor(pairs, "int32"), axis=1)


@keras.saving.register_keras_serializable(package="tf_graft")
class WideIds(keras.layers.Layer):
    """Numbers the ids of all fields, and of crosses of two of them, one after the other.

    Args:
        sizes: the number of ids of each field.
        crosses: pairs of fields, by their numbers.
        cross_size: the number of ids of each cross.
    """

    def __init__(
        self, sizes: list[int], crosses: list[list[int]], cross_size: int, **options: Any
    ) -> None:
        super().__init__(**options)
        self.sizes, self.crosses, self.cross_size = sizes, crosses, cross_size

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        """Maps [batch, fields] to [batch, fields and crosses]."""
        ids = ops.cast(ids, "int64")
        columns = [ids[:, field] for field in range(len(self.sizes))]
        for one, other in self.crosses:
            columns.append((ids[:, one] * self.sizes[other] + ids[:, other]) % self.cross_size)
        sizes = [*self.sizes, *[self.cross_size] * len(self.crosses)]
        starts = itertools.accumulate(sizes, initial=0)
        numbered = [column + start for column, start in zip(columns, starts, strict=False)]
        return ops.cast(ops.stack(numbered, axis=1), "int32")

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        of_ids = {"sizes": self.sizes, "crosses": self.crosses, "cross_size": self.cross_size}
        return {**super().get_config(), **of_ids}


def two_tower(
    spec: TwoTower, data: Batches, inputs: keras.KerasTensor, layers: Any
) -> keras.KerasTensor:
    """Scores items for users, the first and the second field."""
    if data.classes != 1:
        message = "'two_tower' learns from the clicks alone; set data.classes to [1]."
        raise spec.error(("model", "name"), message)
    if len(data.fields) != 2:
        message = f"'two_tower' takes two fields, user and item, not {len(data.fields)}."
        raise spec.error(("model", "name"), message)
    users, items = data.fields.values()
    vectors = layers.Embedding(users, spec.dimension, name="user")(inputs[:, 0])
    return Candidates(items, spec.dimension, name="scores")(vectors, inputs[:, 1])


def dlrm(spec: Dlrm, data: Batches, inputs: keras.KerasTensor, layers: Any) -> keras.KerasTensor:
    """Returns the logits of a click model with interactions of all pairs of fields."""
    rows = _embedded(spec, data, inputs, layers)
    x = layers.Flatten()(rows)
    if len(data.fields) > 1:
        x = layers.Concatenate()([x, PairwiseDots(name="pairs")(rows)])
    return _two_logits(_deep(spec, x, layers), layers)


def wide_and_deep(
    spec: WideAndDeep, data: Batches, inputs: keras.KerasTensor, layers: Any
) -> keras.KerasTensor:
    """Returns the logits of a linear model and a deep one together."""
    names = list(data.fields)
    for name in itertools.chain(*spec.crosses):
        if name not in names:
            message = f"crosses: data.fields has no '{name}'; it has {', '.join(names)}."
            raise spec.error(("model", "crosses"), message)
    crosses = [[names.index(name) for name in pair] for pair in spec.crosses]
    ids = WideIds([*data.fields.values()], crosses, spec.cross_size, name="wide_ids")(inputs)
    weights = _wide_size(spec, data)
    wide = layers.Embedding(weights, 1, embeddings_initializer="zeros", name="wide")(ids)
    x = layers.Flatten()(_embedded(spec, data, inputs, layers))
    deep = _deep(spec, x, layers)
    return _two_logits(layers.Add()([deep, ops.sum(wide, axis=1)]), layers)


def _embedded(
    spec: Dlrm | WideAndDeep, data: Batches, inputs: keras.KerasTensor, layers: Any
) -> keras.KerasTensor:
    """Looks up each field in its own table, a layer with the field's name."""
    if data.classes != 2:
        message = f"'{spec.name}' tells clicks from others; leave data.classes out."
        raise spec.error(("model", "name"), message)
    rows = [
        layers.Embedding(size, spec.dimension, name=f"field_{name}")(inputs[:, number])
        for number, (name, size) in enumerate(data.fields.items())
    ]
    return ops.stack(rows, axis=1)


def _deep(spec: Dlrm | WideAndDeep, x: keras.KerasTensor, layers: Any) -> keras.KerasTensor:
    for width in spec.units:
        x = layers.Dropout(spec.dropout)(layers.Dense(width, activation="relu")(x))
    return layers.Dense(1, name="click")(x)


def _two_logits(logit: keras.KerasTensor, layers: Any) -> keras.KerasTensor:
    """Returns the logits of no click, always 0, and of a click."""
    both = ops.pad(logit, [[0, 0], [1, 0]])
    return layers.Activation("linear", dtype="float32", name="logits")(both)


def _wide_size(spec: WideAndDeep, data: Batches) -> int:
    return sum(data.fields.values()) + len(spec.crosses) * spec.cross_size


def two_tower_weights(spec: TwoTower, data: Batches) -> int:
    """Counts the weights of a two-tower model."""
    return sum(data.fields.values()) * spec.dimension


def dlrm_weights(spec: Dlrm, data: Batches) -> int:
    """Counts the weights of a click model, but for its biases."""
    fields = len(data.fields)
    return _deep_weights(spec, data, fields * spec.dimension + fields * (fields - 1) // 2)


def wide_and_deep_weights(spec: WideAndDeep, data: Batches) -> int:
    """Counts the weights of a wide and deep model, but for its biases."""
    return _wide_size(spec, data) + _deep_weights(spec, data, len(data.fields) * spec.dimension)


def _deep_weights(spec: Dlrm | WideAndDeep, data: Batches, width: int) -> int:
    widths = [width, *spec.units, 1]
    dense = sum(a * b for a, b in itertools.pairwise(widths))
    return sum(data.fields.values()) * spec.dimension + dense
