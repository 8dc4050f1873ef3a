"""Keras' callbacks that read or set something of the optimizer, with every wrapper."""

import itertools

import keras
import numpy as np
import pytest

import tf_graft as tg
from support.saving import net
from support.wrappers import WRAPPERS
from tf_graft.core import tensorboard

RANDOM = np.random.default_rng(0)
X = RANDOM.integers(0, 9, (8, 3)).astype(np.int32)
Y = RANDOM.normal(size=(8, 1)).astype(np.float32)


def trained(optimizer, callback):
    """The model and the history of two epochs, of two steps each."""
    model = net()
    model.compile(optimizer, "mse", run_eagerly=True)
    fitted = model.fit(
        *(X, Y), batch_size=4, epochs=2, verbose=0, validation_data=(X, Y), callbacks=[callback]
    )
    return model, fitted.history


def halves(model, history):
    """What is set is the rate of the outermost optimizer, which is a factor on all others."""
    assert float(model.optimizer.learning_rate) == float(history["learning_rate"][0]) / 2


def nothing_more(model, history):
    assert int(model.optimizer.iterations) == 4


def averages(model, history):
    for variable, average in zip(
        model.trainable_variables, model.optimizer.synchronized_averages(), strict=True
    ):
        np.testing.assert_array_equal(variable.numpy(), average.numpy())


# How to make each callback, given a folder, and what must hold after `fit`.
CALLBACKS = {
    "BackupAndRestore": (lambda f: keras.callbacks.BackupAndRestore(f / "backup"), nothing_more),
    "LearningRateScheduler": (
        lambda f: keras.callbacks.LearningRateScheduler(lambda n, rate: rate / 2 if n else rate),
        halves,
    ),
    "ModelCheckpoint": (lambda f: keras.callbacks.ModelCheckpoint(f / "m.keras"), nothing_more),
    "ReduceLROnPlateau": (
        lambda f: keras.callbacks.ReduceLROnPlateau(
            monitor="loss", factor=0.5, patience=0, min_delta=1e9
        ),
        halves,
    ),
    "SwapEMAWeights": (lambda f: keras.callbacks.SwapEMAWeights(), averages),
    "TensorBoard": (lambda f: keras.callbacks.TensorBoard(f / "logs"), nothing_more),
}


@pytest.mark.parametrize(
    ("name", "callback"),
    [
        (name, callback)
        if name == "MultiOptimizer"
        else pytest.param(name, callback, marks=pytest.mark.slow)
        for name, callback in itertools.product(WRAPPERS, CALLBACKS)
        if (name, callback) != ("AGN", "SwapEMAWeights")  # its averages are the center's
    ],
)
def test_callback(name, callback, tmp_path):
    if callback == "TensorBoard" and not tensorboard.installed():
        pytest.skip(tensorboard.MISSING)
    make, holds = CALLBACKS[callback]
    options = {"use_ema": True, "ema_momentum": 0.5} if callback == "SwapEMAWeights" else {}
    holds(*trained(WRAPPERS[name](tg.SGD(0.1), **options), make(tmp_path)))
