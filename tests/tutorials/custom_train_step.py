"""Keras, "Customizing what happens in fit() with TensorFlow": a `train_step` of one's own."""

import keras
import numpy as np
import tensorflow as tf

from tutorials import tolerances

TOLERANCE = tolerances.ADAM


class CustomModel(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")
        self.loss_fn = keras.losses.MeanSquaredError()

    def train_step(self, data):
        x, y, sample_weight = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_fn(y, y_pred, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

    @property
    def metrics(self):
        return [self.loss_tracker, self.mae_metric]


def run(optimizers):
    random = np.random.default_rng(0)
    x, y = random.random((256, 32)), random.random((256, 1))
    inputs = keras.Input(shape=(32,))
    model = CustomModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile(optimizer=optimizers.Adam())
    history = model.fit(x, y, sample_weight=random.random((256, 1)), epochs=3, verbose=0)
    return history.history["loss"] + history.history["mae"]
