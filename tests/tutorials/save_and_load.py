"""TensorFlow, "Save and load models": checkpoints of `fit`, weights, the whole model.

Weights that are loaded before the optimizer is built leave stock Keras' without its state: right is
one that was built.
"""

import pathlib
import tempfile

import keras
import numpy as np

from tutorials import datasets, tolerances

TOLERANCE = tolerances.ADAM


def create_model(optimizers):
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizers.Adam(), loss=loss, metrics=["accuracy"])
    return model


def run(optimizers, build=False):
    (x, y), test = datasets.digits()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        path = folder / "cp-{epoch:04d}.weights.h5"
        saves = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
        model = create_model(optimizers)
        losses = model.fit(x, y, epochs=2, verbose=0, callbacks=[saves]).history["loss"]
        model.save(folder / "my_model.keras")

        fresh = create_model(optimizers)
        untrained, _ = fresh.evaluate(*test, verbose=0)
        if build:
            fresh.optimizer.build(fresh.trainable_variables)
        fresh.load_weights(folder / "cp-0002.weights.h5")
        restored, _ = fresh.evaluate(*test, verbose=0)
        np.testing.assert_allclose(restored, model.evaluate(*test, verbose=0)[0])

        loaded = keras.models.load_model(folder / "my_model.keras")
    for one in (fresh, loaded):
        losses += one.fit(x, y, epochs=1, verbose=0, shuffle=False).history["loss"]
    return [untrained, restored, *losses]


def right(optimizers):
    return run(optimizers, build=True)
