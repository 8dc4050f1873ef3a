"""TensorFlow, "Quickstart for beginners": Sequential, compile, fit, evaluate, by steps."""

import keras

from tutorials import datasets, tolerances

TOLERANCE = tolerances.ADAM


def run(optimizers):
    (x, y), (x_test, y_test) = datasets.digits()
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizers.Adam(), loss=loss, metrics=["accuracy"])
    history = model.fit(x, y, epochs=3, verbose=0)
    test_loss, _ = model.evaluate(x_test, y_test, verbose=0)
    return [*history.history["loss"], test_loss]
