"""Keras, "Text classification from scratch": an embedding, convolution, pooling, dropout.

A batch repeats words: stock Adam squares their gradients before it sums them.
"""

import keras

from tutorials import datasets, tolerances
from tutorials.one_hot import OneHotEmbedding

TOLERANCE = tolerances.ADAM


def run(optimizers, embedding=keras.layers.Embedding):
    inputs = keras.Input(shape=(None,), dtype="int64")
    x = embedding(24, 8)(inputs)
    x = keras.layers.Dropout(0.3)(x)
    x = keras.layers.Conv1D(8, 5, padding="valid", activation="relu", strides=2)(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    predictions = keras.layers.Dense(1, activation="sigmoid", name="predictions")(x)
    model = keras.Model(inputs, predictions)
    model.compile(loss="binary_crossentropy", optimizer=optimizers.Adam(0.01), metrics=["accuracy"])
    x, y = datasets.sentences()
    return model.fit(x, y, 32, 4, 0, shuffle=False).history["loss"]


def right(optimizers):
    return run(optimizers, OneHotEmbedding)
