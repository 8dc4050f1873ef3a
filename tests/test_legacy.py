"""Models of tf_keras: the same numbers as models of Keras 3, files, replicas, loops."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support.replicas import mirrored

tf_keras = pytest.importorskip("tf_keras", reason="tf_keras is not installed")

MADE = {
    "SGD": lambda: tg.SGD(0.01, momentum=0.9),
    "Adam": lambda: tg.Adam(0.01, use_ema=True, global_clipnorm=1.0),
    "LARS": lambda: tg.LARS(0.1),
    "LAMB": lambda: tg.LAMB(0.01),
    "AdaGraft": lambda: tg.AdaGraft(tg.Adam(0.01), tg.SGD(1.0)),
}
IDS = np.random.default_rng(0).integers(0, 9, size=(32, 3))  # with repeated rows
TARGETS = IDS.sum(1, keepdims=True).astype("float32")


def model_of(library):
    layers = [
        *(library.layers.InputLayer((3,)), library.layers.Embedding(9, 4, name="table")),
        *(library.layers.Flatten(), library.layers.Dense(1, name="head")),
    ]
    model = library.Sequential(layers)
    random = np.random.default_rng(1)
    model.set_weights([random.normal(size=w.shape).astype("float32") for w in model.get_weights()])
    return model


def fitted(library, optimizer, epochs=2):
    model = model_of(library)
    model.compile(optimizer, "mse")
    model.fit(IDS, TARGETS, batch_size=8, epochs=epochs, verbose=0, shuffle=False)
    return model


@pytest.mark.parametrize("name", MADE)
def test_fit_equals_that_of_a_model_of_keras_3(name):
    ours, expected = fitted(tf_keras, tg.legacy(MADE[name]())), fitted(keras, MADE[name]())
    for value, right in zip(ours.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-6)
    assert int(ours.optimizer.iterations) == 8


def test_a_loop_and_gradients_that_are_summed_already():
    model, other = model_of(tf_keras), model_of(tf_keras)
    one, two = tg.legacy(tg.Adam(0.1)), tg.legacy(tg.Adam(0.1))
    for _ in range(2):
        for each, optimizer, more in (
            (model, one, {}),
            (other, two, {"skip_gradients_aggregation": True}),
        ):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((each(IDS) - TARGETS) ** 2)
            weights = each.trainable_variables
            gradients = tape.gradient(loss, weights)
            optimizer.apply_gradients(zip(gradients, weights, strict=True), **more)
    for value, right in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(value, right)
    before = model.get_weights()
    one.minimize(lambda: tf.reduce_mean(model(IDS) ** 2), model.trainable_variables)
    assert not np.array_equal(model.get_weights()[0], before[0])


def test_replicas_equal_one_device():
    with mirrored().scope():
        several = model_of(tf_keras)
        several.compile(tg.legacy(tg.Adam(0.01)), "mse")
    several.fit(IDS, TARGETS, batch_size=8, epochs=2, verbose=0, shuffle=False)
    one = fitted(tf_keras, tg.legacy(tg.Adam(0.01)))
    for value, right in zip(several.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5:UserWarning")
@pytest.mark.parametrize("form", ["model.keras", "model.h5", "checkpoint"])
def test_state_is_saved_and_goes_on(tmp_path, form):
    model = fitted(tf_keras, tg.legacy(MADE["AdaGraft"]()))
    path = str(tmp_path / form)
    if form == "checkpoint":
        again = fitted(tf_keras, tg.legacy(MADE["AdaGraft"]()), epochs=1)
        saved = tf.train.Checkpoint(optimizer=model.optimizer, model=model).write(path)
        reader = tf.train.Checkpoint(optimizer=again.optimizer, model=again)
        reader.read(saved).assert_consumed()
    else:
        model.save(path)
        again = tf_keras.models.load_model(path)
    for value, right in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(value.numpy(), right.numpy())
    for each in (model, again):
        each.fit(IDS, TARGETS, batch_size=8, verbose=0, shuffle=False)
    np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])


def test_callbacks_read_and_set_the_learning_rate():
    model = model_of(tf_keras)
    model.compile(tg.legacy(tg.SGD(0.5)), "mse")
    halve = tf_keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    history = model.fit(IDS, TARGETS, epochs=2, verbose=0, callbacks=[halve]).history
    assert history["lr"] == [0.25, 0.125]
    model.optimizer.lr = 2.0
    assert float(model.optimizer.learning_rate) == 2.0


def test_a_missing_tf_keras_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tf_keras", None)
    monkeypatch.delitem(sys.modules, "tf_graft.tf_keras_models.optimizer", raising=False)
    with pytest.raises(ImportError, match="tf_keras is not installed; pip install tf_keras"):
        tg.legacy(tg.Adam())


def test_what_is_no_optimizer_is_refused():
    with pytest.raises(ValueError, match="adm"):
        tg.legacy("adm")
