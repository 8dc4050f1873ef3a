"""TensorFlow, "Using DTensors with Keras": a layout map, and the optimizers that knew of a mesh.

Keras 3 has no such optimizers (`mesh` is no argument of theirs): right is one device.
"""

import keras
import tensorflow as tf

from tf_graft import dtensor
from tutorials import datasets, tolerances

STOCK_RAISES = True
TOLERANCE = tolerances.ADAM


def model_and_batches():
    (x, y), _ = datasets.digits(256)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu", name="d1"),
            keras.layers.Dense(10, name="d2"),
        ]
    )
    return model, tf.data.Dataset.from_tensor_slices((x, y)).batch(64)


def train_step(model, x, y, optimizer):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=y)
        )
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


def run(optimizers):
    mesh = dtensor.create_mesh({"batch": 2, "model": 2})
    layout_map = dtensor.LayoutMap(
        mesh, {"d1/kernel": [None, "model"], "d1/bias": ["model"], "d2/kernel": ["model", None]}
    )
    model, batches = model_and_batches()
    optimizer = optimizers.Adam(0.01, mesh=mesh)
    dtensor.distribute(model, layout_map)
    step = tf.function(lambda x, y: train_step(model, x, y, optimizer))
    losses = []
    for _ in range(2):
        for x, y in dtensor.DTensorDataset(batches, mesh):
            losses.append(float(dtensor.from_mesh(step(x, y))))
    return losses


def right(optimizers):
    model, batches = model_and_batches()
    optimizer = optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    step = tf.function(lambda x, y: train_step(model, x, y, optimizer))
    return [float(step(x, y)) for x, y in batches.repeat(2)]
