"""The models on which whole training steps are measured."""

from typing import Any

import keras
import numpy as np

from benchmarks.training import Task

CLASSES = 10
TOKENS, WORDS, WIDTH, HEADS, BLOCKS = 64, 8000, 128, 4, 2
ROWS, FIELDS, OF_A_ROW = 100_000, 8, 32
RANDOM = 0


def resnet() -> Task:
    """Describes ResNet-50 on 8 pictures of 64 x 64."""

    def examples() -> tuple[Any, Any]:
        random = np.random.default_rng(RANDOM)
        return random.random((16, 64, 64, 3), "float32"), random.integers(0, CLASSES, 16)

    def model() -> keras.Model:
        return keras.applications.ResNet50(
            weights=None, input_shape=(64, 64, 3), classes=CLASSES, classifier_activation=None
        )

    return Task(model, examples, 8, keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def transformer() -> Task:
    """Describes a Transformer of 2 blocks of width 128, on 16 texts of 64 of 8,000 words."""

    def examples() -> tuple[Any, Any]:
        words = np.random.default_rng(RANDOM).integers(0, WORDS, (64, TOKENS + 1))
        return words[:, :-1], words[:, 1:]

    return Task(
        _transformer, examples, 16, keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )


def _transformer() -> keras.Model:
    layers = keras.layers
    words = keras.Input((TOKENS,), dtype="int32")
    x = layers.Embedding(WORDS, WIDTH)(words)
    for _ in range(BLOCKS):
        y = layers.LayerNormalization()(x)
        x += layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(y, y, use_causal_mask=True)
        y = layers.Dense(4 * WIDTH, "gelu")(layers.LayerNormalization()(x))
        x += layers.Dense(WIDTH)(y)
    scores = layers.Dense(WORDS)(x)
    return keras.Model(words, scores)


def embedding() -> Task:
    """Describes 8 tables of 100,000 rows of width 32 under two layers, on 256 examples."""

    def examples() -> tuple[Any, Any]:
        random = np.random.default_rng(RANDOM)
        ids = random.zipf(1.2, (1024, FIELDS)) % ROWS
        return ids, random.integers(0, 2, (1024, 1)).astype("float32")

    def model() -> keras.Model:
        layers = keras.layers
        ids = keras.Input((FIELDS,), dtype="int64")
        parts = [layers.Embedding(ROWS, OF_A_ROW)(ids[:, i]) for i in range(FIELDS)]
        x = layers.Dense(64, "relu")(layers.Concatenate()(parts))
        return keras.Model(ids, layers.Dense(1)(x))

    return Task(model, examples, 256, keras.losses.BinaryCrossentropy(from_logits=True))


MODELS = {"ResNet-50": resnet, "Transformer": transformer, "Embeddings": embedding}
