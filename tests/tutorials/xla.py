"""TensorFlow, "Use XLA with tf.function": the whole step compiled, the update with it."""

import keras
import tensorflow as tf

from tutorials import datasets, tolerances

TOLERANCE = tolerances.ADAM


def run(optimizers):
    (x, y), _ = datasets.digits()
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(64).repeat(2)
    layer = keras.layers.Dense(10)
    layer.build((None, 64))
    optimizer = optimizers.Adam(0.01)
    optimizer.build(layer.trainable_variables)

    @tf.function(jit_compile=True)
    def train(images, labels):
        with tf.GradientTape() as tape:
            predicted_labels = layer(images)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    logits=predicted_labels, labels=labels
                )
            )
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        return loss

    return [float(train(images, labels)) for images, labels in batches]
