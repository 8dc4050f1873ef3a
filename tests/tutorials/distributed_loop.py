"""TensorFlow, "Custom training with tf.distribute.Strategy": strategy.run, reduce, a checkpoint.

Stock Adam raises when it is first used within the function ("You must feed a value for placeholder
tensor"): right is one that was built before.
"""

import pathlib
import tempfile

import keras
import tensorflow as tf

from support.replicas import mirrored
from tutorials import datasets, tolerances

STOCK_RAISES = True
TOLERANCE = tolerances.ADAM
BATCH = 64


def run(optimizers, build=False):
    (x, y), _ = datasets.digits(256)
    strategy = mirrored()
    train_dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    train_dist_dataset = strategy.experimental_distribute_dataset(train_dataset)
    with strategy.scope():
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        model = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)]
        )
        optimizer = optimizers.Adam(0.01)
        if build:
            optimizer.build(model.trainable_variables)
        checkpoint = tf.train.Checkpoint(optimizer=optimizer, model=model)

    def train_step(images, labels):
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            loss = tf.nn.compute_average_loss(
                loss_object(labels, predictions), global_batch_size=BATCH
            )
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def distributed_train_step(images, labels):
        per_replica_losses = strategy.run(train_step, args=(images, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)

    losses = [float(distributed_train_step(*batch)) for batch in train_dist_dataset]
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint.save(pathlib.Path(folder) / "ckpt")
        before = [float(distributed_train_step(*batch)) for batch in train_dist_dataset]
        checkpoint.restore(path)
        after = [float(distributed_train_step(*batch)) for batch in train_dist_dataset]
    assert after == before
    return losses + after


def right(optimizers):
    return run(optimizers, build=True)
