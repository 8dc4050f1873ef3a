"""`tg.multi_step`: several steps in one call on two replicas are the steps of single calls."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support.replicas import mirrored

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(44, 3)).astype("float32")
Y = X.sum(1, keepdims=True)
BATCH, STEPS, EPOCHS = 8, 6, 2  # the last batch of an epoch has 4 examples


class OwnStep(keras.Model):
    """A model with a `train_step` of its own, which returns what no metric keeps."""

    def train_step(self, data):
        x, y, *_ = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"own": loss}


class Logs(keras.callbacks.Callback):
    """Keeps what callbacks are told after each execution."""

    def on_train_begin(self, logs=None):
        self.kept = []

    def on_train_batch_end(self, batch, logs=None):
        self.kept.append(dict(logs))


def network(make, strategy=None, cls=keras.Model, **compiled):
    keras.utils.set_random_seed(1)
    with (strategy or mirrored()).scope():
        inputs = keras.Input([3])
        hidden = keras.layers.Dense(4, "relu")(inputs)
        model = cls(inputs, keras.layers.Dense(1)(keras.layers.Dropout(0.3, seed=2)(hidden)))
        model.compile(make(), "mse", metrics=["mae"], **compiled)
    return model


def of_unknown_size():
    """Batches that nobody knows the number of; copies, as TensorFlow may write into views."""
    batches = tf.data.Dataset.from_generator(
        lambda: (
            (X[i : i + BATCH].copy(), Y[i : i + BATCH].copy()) for i in range(0, len(X), BATCH)
        ),
        output_signature=(tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1])),
    )
    return (batches,)


def trained(steps, make, data=lambda: (X, Y, BATCH), **compiled):
    """What is left of training with that many steps an execution, and what was told meanwhile."""
    model = tg.multi_step(network(make, steps_per_execution=steps, **compiled))
    logs = Logs()
    told = {"verbose": 0, "callbacks": [logs], "validation_data": (X[:20], Y[:20])}
    model.fit(*data(), epochs=EPOCHS, shuffle=False, validation_batch_size=BATCH, **told)
    numbers = {
        "history": model.history.history,
        "predicted": model.predict(X, BATCH, verbose=0).tolist(),
        "one batch": model.train_on_batch(X[:8], Y[:8], return_dict=True),
        "weights": [v.numpy().tolist() for v in (*model.variables, *model.optimizer.variables)],
    }
    return numbers, logs.kept


def adam():
    return tg.Adam(0.02, global_clipnorm=0.5, use_ema=True)


def scaled():
    return tg.MixedPrecision(tg.SGD(0.1), loss_scale="backoff")


RARE = pytest.mark.rare
CASES = {
    "no multiple of an execution": (4, adam, {}),
    "shorter than an execution, eager": (50, scaled, {"run_eagerly": True}),
    "a multiple, of unknown size, a step of one's own": (
        3,
        keras.optimizers.Adam,
        {"data": of_unknown_size, "cls": OwnStep},
    ),
}


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras says so of each such epoch
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if "own" in case else RARE) for case in CASES],
)
def test_several_steps_are_single_ones(case):
    count, make, options = CASES[case]
    several, by_execution = trained(count, make, **options)
    # Of known size: Keras draws once too often after the last single step of unknown size.
    one, by_step = trained(1, make, **{k: v for k, v in options.items() if k != "data"})
    assert several == one
    ends = [min(start + count, STEPS) - 1 for start in range(0, STEPS, count)]
    assert by_execution == [by_step[STEPS * epoch + end] for epoch in range(EPOCHS) for end in ends]


@pytest.mark.slow
def test_keras_alone_cannot():
    """When it can, there is no need of `multi_step`."""
    model = network(adam, steps_per_execution=4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="You must feed a value"):
        model.fit(X, Y, BATCH, verbose=0)


@pytest.mark.slow
def test_steps_of_a_model_that_is_compiled_again():
    """Prepared once, before it is compiled; Keras' own functions where an execution is a step."""
    model = tg.multi_step(tg.multi_step(network(adam, steps_per_execution=1)))
    model.compile(tg.SGD(0.1), "mse", steps_per_execution=4)
    logs = Logs()
    model.fit(X, Y, BATCH, verbose=0, callbacks=[logs])
    assert len(logs.kept) == 2
    assert int(model.optimizer.iterations.numpy()) == STEPS


@pytest.mark.parametrize(
    "scope", [contextlib.nullcontext, tf.distribute.OneDeviceStrategy("CPU:1").scope]
)
def test_a_model_of_one_device_is_left_unchanged(scope):
    with scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    assert tg.multi_step(model) is model
    assert "make_train_function" not in vars(model)


def test_other_strategies_are_refused():
    strategy = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
    model = network(keras.optimizers.SGD, strategy)
    with pytest.raises(ValueError, match=r"was made under a CentralStorageStrategy\w*; it must be"):
        tg.multi_step(model)
    with pytest.raises(TypeError, match="model must be a Model"):
        tg.multi_step("model")
