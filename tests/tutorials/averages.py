"""Keras, `SwapEMAWeights`: validation sees the averages, and so does what is saved in the end."""

import keras

from tutorials import datasets, tolerances

TOLERANCE = tolerances.ADAM


def run(optimizers):
    (x, y), test = datasets.digits()
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = optimizers.AdamW(0.005, weight_decay=0.01, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer=optimizer, loss=loss)
    callbacks = [keras.callbacks.SwapEMAWeights(swap_on_epoch=False)]
    history = model.fit(x, y, 64, 3, 0, callbacks, validation_data=test).history
    return [*history["loss"], *history["val_loss"], model.evaluate(*test, verbose=0)]
