"""TensorFlow, "Distributed training with Keras": replicas under `fit`, its callbacks."""

import pathlib
import tempfile

import keras
import tensorflow as tf

from support.replicas import mirrored
from tutorials import datasets, tolerances

TOLERANCE = tolerances.ADAM


def decay(epoch):
    return 1e-2 if epoch < 1 else 1e-3


class PrintLR(keras.callbacks.Callback):
    """What the tutorial prints, kept."""

    def on_epoch_end(self, epoch, logs=None):
        logs["rate"] = float(self.model.optimizer.learning_rate.numpy())


def run(optimizers):
    (x, y), (x_test, y_test) = datasets.digits(256, side=8)
    strategy = mirrored()
    train_dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(64)
    eval_dataset = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(64)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(8, 3, activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(loss=loss, optimizer=optimizers.Adam(), metrics=["accuracy"])
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "ckpt_{epoch}.weights.h5"
        callbacks = [
            keras.callbacks.ModelCheckpoint(path, save_weights_only=True),
            keras.callbacks.LearningRateScheduler(decay),
            PrintLR(),
        ]
        history = model.fit(train_dataset, None, None, 3, 0, callbacks, shuffle=False).history
        model.load_weights(str(path).format(epoch=3))
    eval_loss, _ = model.evaluate(eval_dataset, verbose=0)
    return [*history["loss"], *history["rate"], eval_loss]
