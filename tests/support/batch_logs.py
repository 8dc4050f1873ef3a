"""What Keras tells callbacks."""

import keras


class BatchLogs(keras.callbacks.Callback):
    """Keeps what callbacks are told after each batch."""

    def on_train_begin(self, logs=None):
        self.kept = []

    def on_train_batch_end(self, batch, logs=None):
        self.kept.append({name: float(value) for name, value in logs.items()})
