"""TensorFlow, "Writing a training loop from scratch": GradientTape, metrics, eager and compiled."""

import keras
import tensorflow as tf

from tutorials import datasets, tolerances

TOLERANCE = tolerances.ROUNDING


def run(optimizers):
    (x, y), _ = datasets.digits(256)
    train_dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(256, seed=0).batch(64)
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    )
    optimizer = optimizers.SGD(learning_rate=0.1, momentum=0.9)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = keras.metrics.SparseCategoricalAccuracy()

    def train_step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss_value = loss_fn(y, logits)
        grads = tape.gradient(loss_value, model.trainable_weights)
        optimizer.apply_gradients(zip(grads, model.trainable_weights, strict=True))
        accuracy.update_state(y, logits)
        return loss_value

    losses = []
    for step in (train_step, tf.function(train_step), tf.function(train_step)):
        losses += [float(step(*batch)) for batch in train_dataset]
        losses.append(1 - float(accuracy.result()))
        accuracy.reset_state()
    return losses
