"""A model, its steps, and each way of saving it with its optimizer."""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from support import samples


def net(name: str = "net", width: int = 4) -> keras.Model:
    """An embedding, whose gradient is row-sparse, and two dense layers."""
    return keras.Sequential(
        [
            keras.Input([3], dtype="int32"),
            keras.layers.Embedding(9, width, name="table"),
            keras.layers.Flatten(name="flat"),
            keras.layers.Dense(5, activation="tanh", name="hidden"),
            keras.layers.Dense(1, name="head"),
        ],
        name=name,
    )


def compiled(optimizer, **kwargs) -> keras.Model:
    model = net(**kwargs)
    model.compile(optimizer=optimizer, loss="mse")
    return model


def train(model: keras.Model, first: int, last: int) -> None:
    """Steps number `first` to `last`, each on a batch of its own; ids repeat within a batch."""
    for step in range(first, last):
        random = np.random.default_rng(step)
        ids = random.integers(0, 6, (4, 3)).astype(np.int32)
        targets = random.normal(size=(4, 1)).astype(np.float32)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(ids) - targets) ** 2)
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)


def everything(model: keras.Model) -> dict[str, np.ndarray]:
    """All state by path, without the model's name, which Keras drops when it loads a model."""
    state = samples.state_of(model.optimizer, *model.trainable_variables)
    return {path.removeprefix(f"{model.name}/"): value for path, value in state.items()}


# Each way of saving: what writes, and what reads into a fresh compiled model or returns another.


def keras_file(model, folder: pathlib.Path):
    model.save(folder / "model.keras")
    return lambda fresh: keras.saving.load_model(folder / "model.keras")


def weights_file(model, folder: pathlib.Path):
    model.save_weights(folder / "model.weights.h5")

    def load(fresh):
        fresh.optimizer.build(fresh)
        fresh.load_weights(folder / "model.weights.h5")
        return fresh

    return load


def checkpoint(model, folder: pathlib.Path):
    saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = saved.write(str(folder / "checkpoint"))

    def load(fresh):
        fresh.optimizer.build(fresh)
        restored = tf.train.Checkpoint(model=fresh, optimizer=fresh.optimizer)
        restored.read(path).assert_consumed()
        return fresh

    return load


def deferred_checkpoint(model, folder: pathlib.Path):
    saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = saved.write(str(folder / "checkpoint"))

    def load(fresh):
        assert not fresh.optimizer.built
        status = tf.train.Checkpoint(model=fresh, optimizer=fresh.optimizer).read(path)
        fresh.optimizer.build(fresh)
        status.assert_consumed()
        return fresh

    return load


WAYS = (keras_file, weights_file, checkpoint, deferred_checkpoint)
each_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


def trained(optimizer, **kwargs) -> keras.Model:
    model = compiled(optimizer, **kwargs)
    train(model, 0, 3)
    return model
