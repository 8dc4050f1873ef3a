"""Keras, `gradient_accumulation_steps`: an update of the mean of four batches, under a schedule.

Stock Keras' schedule counts batches in place of updates: right is the large batch.
"""

import keras

from tutorials import datasets, tolerances

TOLERANCE = tolerances.ADAM


def train(optimizer, batch_size):
    (x, y), _ = datasets.digits()
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss)
    losses = []
    for _ in range(3):
        model.fit(x, y, batch_size=batch_size, verbose=0, shuffle=False)
        losses.append(model.evaluate(x, y, verbose=0))
    return losses


def schedule():
    return keras.optimizers.schedules.CosineDecay(0.01, decay_steps=24)


def run(optimizers):
    return train(optimizers.Adam(schedule(), gradient_accumulation_steps=4), 16)


def right(optimizers):
    return train(optimizers.Adam(schedule()), 64)
