"""TensorFlow, "Time series forecasting": windows, an LSTM, early stopping."""

import keras

from tutorials import datasets, tolerances

TOLERANCE = tolerances.ADAM


def run(optimizers):
    series = datasets.waves()
    windows = keras.utils.timeseries_dataset_from_array(
        series[:-1], series[12:, :1], sequence_length=12, batch_size=64
    )
    train, validation = windows.skip(1), windows.take(1)
    model = keras.Sequential([keras.Input((12, 3)), keras.layers.LSTM(16), keras.layers.Dense(1)])
    early_stopping = keras.callbacks.EarlyStopping(
        monitor="val_loss", patience=2, restore_best_weights=True
    )
    model.compile(
        loss=keras.losses.MeanSquaredError(),
        optimizer=optimizers.Adam(clipnorm=1.0),
        metrics=[keras.metrics.MeanAbsoluteError()],
    )
    callbacks = [early_stopping]
    history = model.fit(
        train, epochs=3, validation_data=validation, callbacks=callbacks, verbose=0, shuffle=False
    )
    return history.history["loss"] + history.history["val_loss"]
