"""TensorFlow, "Overfit and underfit": decay of the rate, L2 and dropout, early stopping."""

import keras

from tutorials import datasets, tolerances

TOLERANCE = tolerances.ADAM


def run(optimizers):
    (x, y), test = datasets.digits()
    rate = keras.optimizers.schedules.InverseTimeDecay(
        0.005, decay_steps=16 * 2, decay_rate=1, staircase=False
    )
    l2 = keras.regularizers.L2(1e-3)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="elu", kernel_regularizer=l2),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(64, activation="elu", kernel_regularizer=l2),
            keras.layers.Dense(10),
        ]
    )
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizers.Adam(rate), crossentropy, metrics=[crossentropy])
    stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=2)
    history = model.fit(x, y, 32, 4, 0, [stop], validation_data=test)
    return history.history["loss"] + history.history["val_loss"]
