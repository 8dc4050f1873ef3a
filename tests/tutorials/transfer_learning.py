"""Keras, "Transfer learning & fine-tuning": a frozen base, then compiled again."""

import keras

from tutorials import datasets, tolerances

TOLERANCE = tolerances.ADAM
layers = keras.layers


def base():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Conv2D(16, 3, activation="relu"),
        ],
        name="base",
    )


def run(optimizers):
    (x, y), _ = datasets.digits(256, side=8)
    base_model = base()
    base_model.trainable = False
    inputs = keras.Input((8, 8, 1))
    hidden = layers.GlobalAveragePooling2D()(base_model(inputs, training=False))
    model = keras.Model(inputs, layers.Dense(10)(layers.Dropout(0.2)(hidden)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizers.Adam(0.01), loss=loss)
    frozen = model.fit(x, y, 64, 2, 0).history["loss"]

    base_model.trainable = True
    model.compile(optimizer=optimizers.RMSprop(1e-3), loss=loss)
    tuned = model.fit(x, y, 64, 4, 0, initial_epoch=2).history["loss"]
    return frozen + tuned
