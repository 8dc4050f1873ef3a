"""Keras, `ReduceLROnPlateau` and `LearningRateScheduler`: callbacks that read and set the rate."""

import keras

from tutorials import datasets, tolerances

TOLERANCE = tolerances.ROUNDING


def run(optimizers):
    (x, y), test = datasets.digits()
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = optimizers.SGD(0.5, momentum=0.9, nesterov=True)
    model.compile(optimizer=optimizer, loss=loss)
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)
    plateau = keras.callbacks.ReduceLROnPlateau(min_delta=0.5, patience=1, factor=0.2)
    history = model.fit(x, y, 64, 4, 0, [scheduler, plateau], validation_data=test).history
    clone = type(optimizer).from_config(optimizer.get_config())
    clone.learning_rate = 0.01
    model.compile(optimizer=clone, loss=loss)
    more = model.fit(x, y, 64, verbose=0).history["loss"]
    return history["loss"] + history["learning_rate"] + more
