"""TensorFlow, "Mixed precision": the policy, `fit`, and a loop of one's own with a scaled loss."""

import keras
import tensorflow as tf

from tutorials import datasets, tolerances

TOLERANCE = tolerances.HALF


def run(optimizers):
    (x, y), _ = datasets.digits(256)
    before = keras.config.dtype_policy()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
                keras.layers.Activation("softmax", dtype="float32"),
            ]
        )
    finally:
        keras.config.set_dtype_policy(before)
    loss_object = keras.losses.SparseCategoricalCrossentropy()
    model.compile(loss=loss_object, optimizer=optimizers.RMSprop())
    losses = model.fit(x, y, batch_size=64, epochs=2, verbose=0).history["loss"]

    optimizer = keras.mixed_precision.LossScaleOptimizer(optimizers.RMSprop())

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_object(y, model(x))
            scaled_loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled_loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(64)
    return losses + [float(train_step(*batch)) for batch in batches]
