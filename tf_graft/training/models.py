"""Models by name. Their outputs are logits in float32, whatever they compute in."""

import inspect
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tf_graft.training import click_models
from tf_graft.training.data import Batches, Kind
from tf_graft.training.schema import MODELS, Cnn, Embedding, Mlp, Model, Transformer

MAX_WEIGHTS = 2**30  # they need 12 GB with their gradients and a slot each


def list_models() -> dict[str, str]:
    """Lists the values of `model.name`, with a line on each."""
    known = {name: inspect.getdoc(spec) or "" for name, spec in MODELS.items()}
    networks = ", ".join(sorted(of_keras()))
    return known | {
        "resnet50 ...": f"Networks of keras.applications, from random weights: {networks}."
    }


def build(spec: Model, data: Batches) -> keras.Model:
    """Builds the model that `spec` describes, for the inputs and classes of `data`.

    Raises:
        ConfigError: the model is unknown, too large, or not for this kind of data.
    """
    if spec.name not in BUILDERS:
        return _application(spec, data)
    kind, builder, weights = BUILDERS[spec.name]
    if data.kind != kind:
        message = f"'{spec.name}' is for {kind}, the data are {data.kind}."
        raise spec.error(("model", "name"), message)
    if (count := weights(spec, data)) > MAX_WEIGHTS:
        message = f"the model would have {count:,} weights; at most {MAX_WEIGHTS:,} are allowed."
        raise spec.error(("model",), message)
    inputs = keras.Input(data.shape, dtype="float32" if data.kind == "images" else "int32")
    x = builder(spec, data, inputs, Layers())
    logits = x if kind == "clicks" else _logits(x, data)
    return keras.Model(inputs, logits, name=spec.name)


def metrics(data: Batches) -> list[keras.metrics.Metric]:
    """Returns the metrics in addition to the loss."""
    if data.kind == "clicks":
        return click_models.metrics(data)
    accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
    return [accuracy, BitsPerCharacter()] if data.kind == "characters" else [accuracy]


@keras.saving.register_keras_serializable(package="tf_graft")
class BitsPerCharacter(keras.metrics.SparseCategoricalCrossentropy):
    """The cross-entropy in bits: the length of a character's code under the model."""

    def __init__(
        self, name: str = "bits_per_character", dtype: str | None = None, **_: object
    ) -> None:
        super().__init__(name=name, dtype=dtype, from_logits=True)

    def result(self) -> tf.Tensor:
        """Returns the mean so far."""
        return super().result() / math.log(2)


@keras.saving.register_keras_serializable(package="tf_graft")
class PositionEmbedding(keras.layers.Layer):
    """Adds a learned vector to each position of a sequence."""

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates a vector for each position."""
        self.positions = self.add_weight(
            name="positions", shape=input_shape[1:], initializer="uniform"
        )

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Adds the positions to a sequence, (batch, position, features)."""
        return x + keras.ops.convert_to_tensor(self.positions)


def _logits(x: keras.KerasTensor, data: Batches) -> keras.KerasTensor:
    x = keras.layers.Dense(data.classes, name="classes")(x)
    return keras.layers.Activation("linear", dtype="float32", name="logits")(x)


class Layers:
    """Makes Keras' layers, with the names they have in the first model of a process.

    Those that Keras would choose depend on the models before; configs name layers.
    """

    def __init__(self) -> None:
        self._made: Counter[str] = Counter()

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        def make(*arguments: Any, **options: Any) -> keras.Layer:
            name = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=.)(?=[A-Z][a-z])", "_", kind).lower()
            if "name" not in options:
                number = self._made[name]
                self._made[name] += 1
                options["name"] = f"{name}_{number}" if number else name
            return getattr(keras.layers, kind)(*arguments, **options)

        return make


def _mlp(spec: Mlp, data: Batches, inputs: keras.KerasTensor, layers: Layers) -> keras.KerasTensor:
    return _hidden(layers.Flatten()(inputs), spec.units, spec.dropout, layers)


def _cnn(spec: Cnn, data: Batches, inputs: keras.KerasTensor, layers: Layers) -> keras.KerasTensor:
    x = inputs
    for filters in spec.filters:
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.Activation("relu")(x)
        x = layers.MaxPooling2D(padding="same")(x)
    return _hidden(layers.Flatten()(x), [spec.units], spec.dropout, layers)


def _transformer(
    spec: Transformer, data: Batches, inputs: keras.KerasTensor, layers: Layers
) -> keras.KerasTensor:
    """Stacks pre-norm blocks, as in GPT-2."""
    x = layers.Embedding(data.vocabulary, spec.d_model)(inputs)
    x = PositionEmbedding(name="position_embedding")(x)
    for _ in range(spec.layers):
        attention = layers.MultiHeadAttention(
            spec.heads, spec.d_model // spec.heads, dropout=spec.dropout
        )
        y = layers.LayerNormalization()(x)
        x = x + layers.Dropout(spec.dropout)(attention(y, y, use_causal_mask=True))
        y = layers.LayerNormalization()(x)
        y = layers.Dense(spec.feed_forward, activation="gelu")(y)
        x = x + layers.Dropout(spec.dropout)(layers.Dense(spec.d_model)(y))
    return layers.LayerNormalization()(x)


def _embedding(
    spec: Embedding, data: Batches, inputs: keras.KerasTensor, layers: Layers
) -> keras.KerasTensor:
    x = layers.Embedding(data.vocabulary, spec.dimension, mask_zero=True)(inputs)
    return _hidden(layers.GlobalAveragePooling1D()(x), spec.units, spec.dropout, layers)


def _hidden(
    x: keras.KerasTensor, units: list[int], dropout: float, layers: Layers
) -> keras.KerasTensor:
    for width in units:
        x = layers.Dense(width, activation="relu")(x)
        x = layers.Dropout(dropout)(x)
    return x


def of_keras() -> dict[str, Callable[..., keras.Model]]:
    """Returns the networks of `keras.applications`, by name."""
    given = vars(keras.applications).items()
    return {name: make for name, make in given if name[0].isupper() and callable(make)}


def _application(spec: Model, data: Batches) -> keras.Model:
    name = spec.name
    known = {key.lower(): make for key, make in of_keras().items()}
    if data.kind != "images":
        message = f"'{name}' takes images, the data are {data.kind}."
        raise spec.error(("model", "name"), message)
    try:
        body = known[name.lower()](
            include_top=False, weights=None, input_shape=data.shape, pooling="avg"
        )
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise spec.error(("model", "name"), f"'{name}' refuses the data: {reason}") from None
    return keras.Model(body.input, _logits(body.output, data), name=name.lower())


def _between(*widths: int) -> int:
    """Counts the weights of dense layers of these widths, without biases."""
    return sum(a * b for a, b in itertools.pairwise(widths))


def _mlp_weights(spec: Mlp, data: Batches) -> int:
    return _between(math.prod(data.shape), *spec.units, data.classes)


def _cnn_weights(spec: Cnn, data: Batches) -> int:
    height, width, channels = data.shape
    pools = 2 ** len(spec.filters)
    flat = -(-height // pools) * -(-width // pools) * spec.filters[-1]
    return 9 * _between(channels, *spec.filters) + _between(flat, spec.units, data.classes)


def _transformer_weights(spec: Transformer, data: Batches) -> int:
    tables = (data.vocabulary + data.shape[0] + data.classes) * spec.d_model
    return tables + spec.layers * (4 * spec.d_model + 2 * spec.feed_forward) * spec.d_model


def _embedding_weights(spec: Embedding, data: Batches) -> int:
    return _between(data.vocabulary, spec.dimension, *spec.units, data.classes)


BUILDERS: dict[str, tuple[Kind, Callable[..., keras.KerasTensor], Callable[..., int]]] = {
    "mlp": ("images", _mlp, _mlp_weights),
    "cnn": ("images", _cnn, _cnn_weights),
    "transformer": ("characters", _transformer, _transformer_weights),
    "embedding": ("words", _embedding, _embedding_weights),
    "two_tower": ("clicks", click_models.two_tower, click_models.two_tower_weights),
    "dlrm": ("clicks", click_models.dlrm, click_models.dlrm_weights),
    "wide_and_deep": ("clicks", click_models.wide_and_deep, click_models.wide_and_deep_weights),
}
