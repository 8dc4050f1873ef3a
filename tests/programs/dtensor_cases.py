"""A Keras model on a mesh trains, predicts, is saved and comes back as on one device.

Run by `test_dtensor.py`, in a process of its own.
"""

import functools
import json
import math
import pickle
import re
import subprocess
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import tf_graft as tg
from support import forked
from tf_graft import dtensor as td

DEVICES = len(tf.config.list_logical_devices("CPU"))
U = dtensor.UNSHARDED
RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 8)).astype("float32")
Y = RNG.integers(0, 4, 24)
IDS = RNG.integers(0, 16, (24, 6)).astype("int32")
IMAGES = RNG.normal(size=(24, 8, 8, 1)).astype("float32")


@functools.cache
def mesh(rows: int = 2) -> dtensor.Mesh:
    return td.create_mesh({"batch": rows, "model": -1})


def mlp() -> keras.Model:
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(16, activation="relu", name="up")(inputs)
    hidden = keras.layers.Dropout(0.25, seed=3)(hidden)
    return keras.Model(inputs, keras.layers.Dense(4, name="down")(hidden))


MLP = {"up/kernel": [None, "model"], "up/bias": ["model"], "down/kernel": ["model", None]}


def ends(model: keras.Model):
    return model.inputs, model.outputs


def cnn() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.SpatialDropout2D(0.2, seed=1),
            keras.layers.Flatten(),
            keras.layers.Dense(4, name="out"),
        ]
    )


CNN = {"out/kernel": [None, "model"], "out/bias": ["model"]}


def transformer(tokens_trainable: bool = True) -> keras.Model:
    layers = keras.layers
    inputs = keras.Input((6,), dtype="int32")
    hidden = layers.Embedding(16, 8, name="tokens", trainable=tokens_trainable)(inputs)
    attention = layers.MultiHeadAttention(4, 2, dropout=0.1, seed=1, name="attention")
    hidden = layers.LayerNormalization()(hidden + attention(hidden, hidden, use_causal_mask=True))
    wide = layers.Dense(16, activation="gelu", name="up")(hidden)
    wide = layers.Dropout(0.2, seed=2)(wide)
    hidden = layers.LayerNormalization()(hidden + layers.Dense(8, name="down")(wide))
    return keras.Model(inputs, layers.Dense(16, name="logits")(hidden))


TRANSFORMER = {
    "tokens": [None, "model"],
    "attention/(query|key|value)/kernel": [None, "model", None],
    "attention/(query|key|value)/bias": ["model", None],
    "attention/attention_output/kernel": ["model", None, None],
    "up/kernel": [None, "model"],
    "up/bias": ["model"],
    "down/kernel": ["model", None],
}


def made(make, optimizer=None, **compiled) -> keras.Model:
    """The model, the same each time."""
    keras.utils.set_random_seed(7)
    keras.backend.clear_session(free_memory=False)
    model = make()
    if optimizer is not None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, **{"metrics": ["accuracy"]} | compiled)
    return model


def state(model) -> dict[str, np.ndarray]:
    return {v.path: v.numpy() for v in model.variables} | optimizer_state(model)


def saved(model) -> dict[str, np.ndarray]:
    """What Keras saves: neither metrics nor the states of seeds."""
    return {v.path: v.numpy() for v in model.weights} | optimizer_state(model)


def optimizer_state(model) -> dict[str, np.ndarray]:
    if not model.compiled:
        return {}
    return {f"o/{v.path}": td.from_mesh(v.value).numpy() for v in model.optimizer.variables}


def assert_close(actual, expected, rtol=2e-5, atol=2e-6) -> None:
    assert actual.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(actual[path], value, rtol=rtol, atol=atol, err_msg=path)


def adam(rate=0.01, **options) -> tg.Adam:
    return tg.Adam(rate, name="optimizer", **options)


def train(make, layouts, data, mesh_=None, batch_dim="batch", optimizer=adam, **options):
    """The same fit on one device (no mesh) or on a mesh: (history, predictions, state)."""
    compiled = {k: options.pop(k) for k in ("run_eagerly", "steps_per_execution") if k in options}
    model = made(make, optimizer(), **compiled)
    if mesh_ is not None:
        td.distribute(model, td.LayoutMap(mesh_, layouts), batch_dim)
    history = model.fit(*data, **{"batch_size": 8, "epochs": 2, "verbose": 0} | options).history
    return history, model, state(model)


def assert_trains_alike(make, layouts, data, mesh_, **options):
    one, _, expected = train(make, layouts, data, **options)
    many, model, actual = train(make, layouts, data, mesh_, **options)
    for name, values in one.items():
        np.testing.assert_allclose(many[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
    assert_close(actual, expected)
    return model


def test_a_larger_vocabulary_on_a_mesh(tmp_path):
    def make(words):
        model = keras.Sequential([keras.Input([2], dtype="int32")])
        model.add(keras.layers.Embedding(words, 4, name="table"))
        return model

    former = made(lambda: make(5), adam(use_ema=True))
    former.fit(np.array([[0, 1], [3, 4]]), np.zeros([2, 2]), verbose=0)
    former.save_weights(tmp_path / "former.weights.h5")
    tf.train.Checkpoint(model=former).write(tmp_path / "former")
    rows, was = [-1, 4, 2, 0, -1, -1], state(former)
    for file in ("former.weights.h5", "former"):
        many, one = (made(lambda: make(6), adam(use_ema=True)) for _ in range(2))
        td.distribute(many, td.LayoutMap(mesh(), {"table": [None, "model"]}))
        for model in (many, one):
            tg.vocabulary.load(model, tmp_path / file, {"table/embeddings": rows})
        found = {k.partition("table")[2]: v for k, v in state(many).items()}
        right = {k.partition("table")[2]: v for k, v in state(one).items()}
        np.testing.assert_equal(found, right)
        for path, value in was.items():
            if "table" in path:
                kept = found[path.partition("table")[2]][[1, 2, 3]]
                np.testing.assert_array_equal(kept, value[[4, 2, 0]], path)


# Meshes.


def test_a_model_says_how_it_is_called():
    model = td.distribute(mlp(), td.LayoutMap(mesh(), MLP))
    for x in (X[:8], tf.constant(X[:8])):
        with pytest.raises(
            TypeError, match=r"ordinary tensor; call it with .*pack_batch\(batch, m"
        ):
            model(x)
    right = model.predict(X[:8], verbose=0)
    packed = td.from_mesh(model(td.pack_batch(X[:8], mesh())))
    np.testing.assert_allclose(packed, right, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(td.collect(model)(X[:8]), right, rtol=1e-5, atol=1e-6)


def test_mesh_of_all_devices_and_of_some():
    whole = td.create_mesh({"batch": 2, "model": -1})
    assert whole.shape() == [2, DEVICES // 2]
    some = td.create_mesh({"x": 2}, devices=["CPU:1", "/device:cpu:0"])
    assert [name[-5:] for name in some.local_devices()] == ["CPU:1", "CPU:0"]
    assert td.logical_cpus(DEVICES) == [f"CPU:{i}" for i in range(DEVICES)]


@pytest.mark.parametrize(
    ("dims", "options", "message"),
    [
        ({"x": 3, "y": 3}, {}, "it takes 9 devices, and there are .*logical_cpus"),
        ({"x": 1}, {}, "it takes 1 devices, and there are .*Name fewer"),
        ({"x": 3, "y": -1}, {}, "a multiple of 3 devices"),
        ({"x": -1, "y": -1}, {}, "only one size can be -1"),
        ({"x": 0}, {}, "x is 0; it must be a whole number of at least 1"),
        ({"x": 2.0}, {}, "x is 2.0; it must be a whole number"),
        ({}, {}, "at least one dimension"),
        ({"x": 1}, {"devices": ["CPU:99"]}, "there is no CPU:99, only CPU:0"),
        ({"x": 2}, {"devices": ["CPU:0", "cpu:0"]}, "CPU:0 is given twice"),
        ({"x": 1}, {"devices": []}, "no device is given"),
    ],
)
def test_meshes_that_are_refused(dims, options, message):
    with pytest.raises(ValueError, match=message):
        td.create_mesh(dims, **options)


def test_cpus_cannot_be_divided_once_tensorflow_runs():
    with pytest.raises(RuntimeError, match=f"started with {DEVICES} CPU device"):
        td.logical_cpus(DEVICES + 1)


# Layout maps.


def test_layouts_by_path_and_by_expression():
    layout_map = td.LayoutMap(mesh(), {"up/kernel": [None, "model"]})
    layout_map["down/bias"] = dtensor.Layout(["batch"], mesh())
    layout_map["bias"] = ["model"]
    assert layout_map["model/up/kernel"].sharding_specs == [U, "model"]
    assert layout_map["down/bias"].sharding_specs == ["batch"]  # itself, before an expression
    assert layout_map["up/bias"].sharding_specs == ["model"]
    assert layout_map["up/scale"] is None
    assert layout_map.layout_for("up/scale", (3, 4)) == dtensor.Layout.replicated(mesh(), 2)
    assert list(layout_map) == ["up/kernel", "down/bias", "bias"]
    assert len(layout_map) == 3
    assert "bias" in layout_map
    assert "up/bias" not in layout_map
    del layout_map["bias"]
    assert layout_map["up/bias"] is None
    assert repr(layout_map) == "LayoutMap({'up/kernel': [None, 'model'], 'down/bias': ['batch']})"


@pytest.mark.parametrize(
    ("pattern", "layout", "error", "message"),
    [
        ("a(", [None], ValueError, r"LayoutMap\['a\('\]: it is not a regular expression"),
        (3, [None], TypeError, "must be text"),
        ("a", ["depth"], ValueError, "no dimension 'depth', only 'batch', 'model'"),
        ("a", ["model", "model"], ValueError, "'model' can divide one dimension only"),
        ("a", "model", TypeError, "a list with a mesh dimension or None"),
        ("a", None, TypeError, "a list with a mesh dimension or None"),
        ("set", [None], ValueError, "it is set already"),
    ],
)
def test_layouts_that_are_refused(pattern, layout, error, message):
    layout_map = td.LayoutMap(mesh(), {"set": [None]})
    with pytest.raises(error, match=message):
        layout_map[pattern] = layout


def test_a_layout_map_is_of_one_mesh():
    with pytest.raises(TypeError, match="mesh must be a Mesh or DeviceMesh"):
        td.LayoutMap(None)
    other = dtensor.create_mesh([("batch", 2)], devices=["CPU:0", "CPU:1"])
    with pytest.raises(ValueError, match="the layout is on another mesh"):
        td.LayoutMap(mesh(), {"a": dtensor.Layout(["batch"], other)})


# Onto the mesh and back.


def test_distribute_and_collect_keep_every_value():
    model = made(mlp, adam())
    model.fit(X, Y, batch_size=8, verbose=0)
    before = state(model)
    assert td.distribute(model, td.LayoutMap(mesh(), MLP)) is model
    assert_close(state(model), before, 0, 0)
    up, bias, down, _ = (v.value.layout.sharding_specs for v in model.trainable_weights)
    assert (up, bias, down) == ([U, "model"], ["model"], ["model", U])
    for variable in [*model.variables, *model.optimizer.variables]:
        assert isinstance(variable.value, dtensor.DVariable), variable.path
    slots = {v.path: v.value.layout.sharding_specs for v in model.optimizer.variables}
    assert slots["optimizer/up/kernel/velocity"] == [U, "model"]
    shares = dtensor.unpack(model.layers[1].kernel.value.read_value())
    assert [x.shape.as_list() for x in shares] == [[8, 16 // (DEVICES // 2)]] * DEVICES
    assert td.layout_map_of(model).mesh == mesh()
    unbuilt = td.distribute(made(mlp, adam()), td.LayoutMap(mesh(), MLP))
    assert unbuilt.optimizer.iterations.value.layout.mesh == mesh()

    assert td.collect(model) is model
    assert_close(state(model), before, 0, 0)
    for variable in [*model.variables, *model.optimizer.variables]:
        assert not isinstance(variable.value, dtensor.DVariable), variable.path
    assert td.layout_map_of(model) is None
    assert not vars(model).keys() & {"make_train_function", "export"}
    one = made(mlp, adam())
    one.fit(X, Y, batch_size=8, verbose=0)
    one.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
    model.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
    assert_close(state(model), state(one), 0, 0)


def frozen(make=adam):
    """A model whose first layer is frozen since it was trained."""
    model = made(mlp, make())
    model.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
    model.get_layer("up").trainable = False
    model.compile(model.optimizer, model.loss)
    return model


def thawed(model):
    model.get_layer("up").trainable = True
    model.compile(model.optimizer, model.loss)
    model.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
    return model


AGN = functools.partial(tg.AGN, tg.SGD(0.1, momentum=0.9), communication_period=2)


@pytest.mark.parametrize("back", [False, True], ids=["on the mesh", "collected"])
def test_a_layer_that_is_frozen_meanwhile_keeps_its_state_and_trains_again(back):
    one = thawed(frozen())
    model = td.distribute(frozen(), td.LayoutMap(mesh(), MLP))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of state that is left out, and of absent gradients
        thawed(td.collect(model) if back else model)
    assert_close(state(model), state(one), 1e-5, 1e-6)


def test_an_optimizer_that_can_add_no_variables_moves_with_a_frozen_layer():
    model = td.distribute(frozen(AGN), td.LayoutMap(mesh(), MLP))
    assert int(model.optimizer.iterations.numpy()) == 3
    thawed(td.collect(model))
    assert int(model.optimizer.iterations.numpy()) == 6


class Halved(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that Keras does not know."""

    def __call__(self, step):
        return 0.01 / (1.0 + tf.cast(step, tf.float32))


def test_a_schedule_that_keras_does_not_know_moves_along():
    model = made(mlp, tg.SGD(Halved()))
    model.fit(X, Y, batch_size=8, verbose=0)
    td.distribute(model, td.LayoutMap(mesh(), MLP))
    model.fit(X, Y, batch_size=8, verbose=0)
    td.collect(model)
    model.fit(X, Y, batch_size=8, verbose=0)
    np.testing.assert_allclose(model.optimizer.learning_rate, 0.01 / 10, rtol=1e-6)


@keras.saving.register_keras_serializable(package="tests")
class Refuses(tg.SGD):
    """An optimizer whose config cannot be made."""

    refuses = False

    def get_config(self):
        if Refuses.refuses:
            raise ValueError("no config")
        return super().get_config()


def test_a_collect_that_fails_changes_nothing(monkeypatch):
    model = td.distribute(made(mlp, Refuses(0.1)), td.LayoutMap(mesh(), MLP))
    model.fit(X, Y, batch_size=8, verbose=0)
    monkeypatch.setattr(Refuses, "refuses", True)
    with pytest.raises(ValueError, match="no config"):
        td.collect(model)
    model.fit(X, Y, batch_size=8, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 6
    monkeypatch.setattr(Refuses, "refuses", False)
    td.collect(model).predict(X, verbose=0)


def test_every_device_holds_its_share_of_the_slots_and_no_more():
    def slots_of(model):
        """Adam's and the average, of the layer that can be divided by eight."""
        roles = ("momentum", "velocity", "average")
        found = [v for v in model.optimizer.variables if "up/" in v.path]
        return [v.value for v in found if v.path.endswith(roles)]

    model = made(mlp, adam(use_ema=True))
    model.fit(X, Y, batch_size=8, verbose=0)
    entries = sum(np.prod(slot.shape) for slot in slots_of(model))
    assert entries == 3 * (8 * 16 + 16)
    layouts = {"up/kernel": [None, "model"], "up/bias": ["model"]}
    td.distribute(model, td.LayoutMap(td.create_mesh({"model": -1}), layouts), batch_dim=None)
    shares = [dtensor.unpack(slot.read_value()) for slot in slots_of(model)]
    for device in range(DEVICES):
        assert sum(np.prod(share[device].shape) for share in shares) == entries / DEVICES


@pytest.mark.parametrize(
    ("layouts", "message"),
    [
        ({"up/kernal": [None, "model"]}, "'up/kernal'.: it matches no weight of .*up/kernel"),
        ({"up/kernel": ["model"]}, r"'up/kernel' has shape \(8, 16\), of rank 2, .* of rank 1"),
        ({"up": [None], "p/k": [None]}, "'up/kernel' is matched by 'up' and 'p/k'"),
        ({"odd/bias": ["model"]}, r"dimension 0 of 'odd/bias', of shape \(3,\), cannot be divided"),
        ({"table": ["batch", "model"]}, r"leave its columns whole: \['batch', None\]"),
        ({"conv/kernel": [None, None, "model"]}, "leave 'conv/kernel' out of the layout map"),
    ],
)
def test_layouts_that_do_not_fit_the_model(layouts, message):
    def make():
        inputs = keras.Input((8,), dtype="int32")
        hidden = keras.layers.Embedding(4, 8, name="table")(inputs)
        hidden = keras.layers.Conv1D(8, 3, name="conv")(hidden)
        hidden = keras.layers.GlobalAveragePooling1D()(hidden)
        hidden = keras.layers.Dense(16, name="up")(hidden)
        return keras.Model(inputs, keras.layers.Dense(3, name="odd")(hidden))

    model = made(make)
    with pytest.raises(ValueError, match=message):
        td.distribute(model, td.LayoutMap(mesh(), layouts))
    assert not any(isinstance(v.value, dtensor.DVariable) for v in model.variables)
    assert td.layout_map_of(model) is None


def test_a_process_that_used_dtensor_before_is_refused(monkeypatch):
    """What TensorFlow then does in place is in `test_fit_evaluate_and_predict`: its batch logs."""
    monkeypatch.setenv("DTENSOR_ENABLE_COMBINE_ALL_REDUCES_OPTIMIZATION", "1")
    with pytest.raises(RuntimeError, match="Import tf_graft before you use DTensor"):
        td.distribute(made(mlp), td.LayoutMap(mesh()))


def test_models_that_are_refused():
    layout_map = td.LayoutMap(mesh())
    unbuilt = keras.Sequential([keras.layers.Dense(3, name="late")])
    with pytest.raises(ValueError, match=r"is not built \(.*late\); call it on a batch"):
        td.distribute(unbuilt, layout_map)
    model = made(mlp)
    with pytest.raises(ValueError, match="is not on a mesh"):
        td.collect(model)
    with pytest.raises(ValueError, match=r"batch_dim='data'\): the mesh has no such dimension"):
        td.distribute(model, layout_map, batch_dim="data")
    td.distribute(model, layout_map)
    with pytest.raises(ValueError, match="is on a mesh already"):
        td.distribute(model, layout_map)
    sharing = keras.Model(model.inputs, model.layers[1].output)
    with pytest.raises(ValueError, match="shares 'up/kernel' with a model that is on a mesh"):
        td.distribute(sharing, layout_map)
    recurrent = keras.Sequential([keras.Input((4, 3)), keras.layers.LSTM(2, name="loop")])
    with pytest.raises(ValueError, match=r"'loop', LSTM: .*unroll=True"):
        td.distribute(recurrent, layout_map)
    depthwise = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.DepthwiseConv2D(3)])
    depthwise.compile(tg.SGD(), "mse")
    td.distribute(depthwise, layout_map)
    with pytest.raises(ValueError, match="no gradient of a depthwise convolution"):
        depthwise.fit(np.ones((4, 8, 8, 3)), np.ones((4, 6, 6, 3)), verbose=0)
    elsewhere = made(mlp, tg.SGD(mesh=td.create_mesh({"x": 2}, ["CPU:0", "CPU:1"])))
    with pytest.raises(ValueError, match="an optimizer of another mesh"):
        td.distribute(elsewhere, layout_map)


# Optimizers of Keras' own.

STOCK = [
    (keras.optimizers.Adam, "compile the model with tf_graft.Adam"),
    (keras.optimizers.AdamW, "compile the model with tf_graft.AdamW"),
    (keras.optimizers.Ftrl, "compile the model with tf_graft.Ftrl"),
]


@pytest.mark.parametrize(("optimizer", "message"), STOCK)
def test_stock_optimizers_are_refused(optimizer, message):
    compiled = made(mlp, optimizer())
    with pytest.raises(TypeError, match=message):
        td.distribute(compiled, td.LayoutMap(mesh(), MLP))
    assert not any(isinstance(v.value, dtensor.DVariable) for v in compiled.variables)
    late = td.distribute(made(mlp), td.LayoutMap(mesh(), MLP))
    late.compile(optimizer(), "mse")
    before = state(late)
    for train in (late.fit, late.train_on_batch):
        with pytest.raises(TypeError, match=message):
            train(X[:8], X[:8, :4])
    assert_close({p: v for p, v in state(late).items() if p in before}, before, 0, 0)


@pytest.mark.parametrize("make", [keras.optimizers.SGD, keras.optimizers.Adam])
def test_stock_optimizers_in_a_function_of_ones_own_are_refused(make):
    model = td.distribute(made(mlp), td.LayoutMap(mesh(), MLP))
    optimizer = make(0.1)
    optimizer.build(model.trainable_variables)
    before = state(model)
    step = own_step(model, optimizer)
    with pytest.raises(ValueError, match=r"updated once per device.*tf_graft"):
        step(*td.pack_batch((X[:8], Y[:8]), mesh()))
    assert_close(state(model), before, 0, 0)


def own_step(model, optimizer):
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(autograph=False)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step


# Metrics and variables of one's own.


def seen_on(mesh_, updated="in the function"):
    """What metrics saw of three steps: a mean, one that makes its variables late, a counter."""
    model = made(mlp)
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    score = keras.metrics.F1Score(average="macro", threshold=0.5)
    counter = keras.Variable(0, dtype="int64")
    batches = [(X[i : i + 8], Y[i : i + 8]) for i in (0, 8, 16)]
    if mesh_ is not None:
        td.distribute(model, td.LayoutMap(mesh_, MLP))
        batches = td.DTensorDataset(batches, mesh_)
        metrics = {"of two": [accuracy, score], "count": counter}
        assert td.replicate(metrics, mesh_) is metrics
    optimizer = adam()
    optimizer.build(model.trainable_variables)

    def update(y, outputs):
        accuracy.update_state(y, outputs)
        score.update_state(tf.one_hot(y, 4), tf.nn.softmax(outputs))
        counter.assign_add(1)

    @tf.function(autograph=False)
    def step(x, y):
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            loss = tf.reduce_mean(tf.square(outputs))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        if updated == "in the function":
            update(y, outputs)
        return outputs

    for _ in range(2):
        accuracy.reset_state()
        for x, y in batches:
            outputs = step(x, y)
            if updated == "eagerly":
                update(y, outputs)
    if mesh_ is not None:
        for variable in (*accuracy.variables, *score.variables, counter):
            assert variable.value.layout == dtensor.Layout.replicated(mesh_, len(variable.shape))
    return [float(accuracy.result()), float(score.result()), int(counter)]


@pytest.mark.parametrize("updated", ["in the function", "eagerly"])
def test_replicated_metrics_of_ones_own_see_what_one_device_sees(updated):
    expected = seen_on(None, updated)
    assert expected[2] == 6
    assert 0 < expected[0] < 1
    np.testing.assert_allclose(seen_on(mesh(), updated), expected, rtol=1e-6)


def test_a_function_that_uses_what_is_off_the_mesh_is_refused():
    """Whatever comes first, and whether or not it has an optimizer."""
    model = td.distribute(made(mlp), td.LayoutMap(mesh(), MLP))
    (x,) = td.pack_batch((X[:8],), mesh())
    metric, optimizer, other = keras.metrics.Mean(), tg.SGD(0.1), tg.SGD(0.1)
    counter, factor = tf.Variable(0, name="counter"), tf.Variable(2.0, name="factor")
    values = dtensor.DVariable(td.to_mesh(X[0], dtensor.Layout(["model"], mesh())))
    before = state(model)
    counted = tf.function(lambda: counter.assign_add(1), autograph=False)

    def train(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        metric.update_state(loss)

    def train_other(x):
        other.apply([x[0]], [values])
        metric.update_state(x)

    def evaluate(x):
        counter.assign_add(1)
        return model(x)

    def scaled(x):
        return model.layers[1].kernel * factor

    def nested(x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: model(x), lambda: model(x)), counted()

    for body, what in [
        (train, "mean/total"),
        (train_other, "mean/total"),
        (evaluate, "counter"),
        (scaled, "factor"),
        (nested, "counter"),
    ]:
        message = f"is on a mesh, .* also uses {what}.* which is not: .* once per device.*replicate"
        with pytest.raises(ValueError, match=message):
            tf.function(body, autograph=False)(x)
    assert counter.numpy() == metric.count.numpy() == 0
    assert_close(state(model), before, 0, 0)


def test_what_cannot_be_replicated():
    with pytest.raises(TypeError, match=r"Make a keras\.Variable of it"):
        td.replicate([keras.metrics.Mean(), tf.Variable(0)], mesh())
    with pytest.raises(TypeError, match=r"replicate\(3\): it must be a keras.metrics.Metric"):
        td.replicate(3, mesh())
    mean = td.replicate(keras.metrics.Mean(), mesh())
    with pytest.raises(ValueError, match=r"its '.*total' is on another mesh"):
        td.replicate(mean, mesh(1))


# Batches.


def test_batches_on_the_mesh():
    batch = {"x": X[:8], "y": (tf.constant(Y[:8]), None), "scale": np.float32(2)}
    packed = td.pack_batch(batch, mesh())
    assert dtensor.fetch_layout(packed["x"]).sharding_specs == ["batch", U]
    assert dtensor.fetch_layout(packed["y"][0]).sharding_specs == ["batch"]
    assert packed["y"][1] is None
    assert dtensor.fetch_layout(packed["scale"]).rank == 0
    np.testing.assert_array_equal(td.from_mesh(packed["x"]), X[:8])
    shares = dtensor.unpack(packed["x"])
    assert [s.shape.as_list() for s in shares] == [[4, 8]] * DEVICES
    np.testing.assert_array_equal(shares[-1], X[4:8])
    assert td.pack_batch(packed, mesh())["x"] is packed["x"]
    whole = td.pack_batch(X[:7], mesh(), batch_dim=None)
    assert dtensor.fetch_layout(whole) == dtensor.Layout.replicated(mesh(), 2)


def test_batches_that_are_refused():
    with pytest.raises(ValueError, match=r"a batch of 7 examples cannot be divided .* 2 devices"):
        td.pack_batch(X[:7], mesh())
    with pytest.raises(TypeError, match="RaggedTensor cannot lie on a mesh"):
        td.pack_batch(tf.ragged.constant([[1], [1, 2]]), mesh())
    with pytest.raises(ValueError, match="batch_dim='z'"):
        td.DTensorDataset([], mesh(), "z")


@pytest.mark.parametrize("source", ["tf.data", "list"])
def test_datasets_on_the_mesh(source):
    batches = [(X[i : i + 8], Y[i : i + 8]) for i in (0, 8, 16)]
    if source == "tf.data":
        batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8, drop_remainder=True)
    dataset = td.DTensorDataset(batches, mesh())
    assert len(dataset) == 3
    for _ in range(2):
        seen = list(dataset)
        np.testing.assert_array_equal(np.concatenate([td.from_mesh(x) for x, _ in seen]), X)
        np.testing.assert_array_equal(np.concatenate([td.from_mesh(y) for _, y in seen]), Y)


@pytest.mark.parametrize("layout", [[U, U], ["batch", U], [U, "model"], ["model", "batch"]])
def test_a_value_onto_the_mesh_and_back(layout):
    value = np.arange(16 * 8).reshape(16, 8)
    moved = td.to_mesh(value, dtensor.Layout(layout, mesh()))
    assert dtensor.fetch_layout(moved).sharding_specs == layout
    np.testing.assert_array_equal(td.from_mesh(moved), value)
    with pytest.raises(ValueError, match=r"shape \(16,\) cannot have a layout of rank 2"):
        td.to_mesh(value[:, 0], dtensor.Layout(layout, mesh()))
    if layout[1] == "model":
        with pytest.raises(ValueError, match=r"dimension 1 of a value of shape \(16, 7\)"):
            td.to_mesh(value[:, :7], dtensor.Layout(layout, mesh()))


# Training.


def test_a_function_of_ones_own():
    batches = [(X[i : i + 8], Y[i : i + 8]) for i in (0, 8, 16)]
    one, many = made(mlp, adam()), made(mlp, None)
    td.distribute(many, td.LayoutMap(mesh(), MLP))
    optimizer = adam()
    optimizer.build(many.trainable_variables)
    one.optimizer.build(one.trainable_variables)
    expected = [own_step(one, one.optimizer)(*batch) for batch in batches[:1]]
    step = own_step(many, optimizer)
    actual = [step(*batch) for batch in td.DTensorDataset(batches[:1], mesh())]
    np.testing.assert_allclose([td.from_mesh(x) for x in actual], expected, rtol=1e-6)
    assert_close(
        {v.path: v.numpy() for v in many.weights}, {v.path: v.numpy() for v in one.weights}
    )


def test_fit_evaluate_and_predict():
    """With a short last batch, validation, callbacks and a metric with more than a number."""
    batches = []

    class Spy(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            batches.append(float(logs["loss"]))

    data, options = (X[:22], Y[:22]), {"shuffle": False, "validation_data": (X[:8], Y[:8])}
    options["callbacks"] = [Spy()]
    one, alone, expected = train(mlp, MLP, data, **options)
    many, model, actual = train(mlp, MLP, data, mesh(), **options)
    assert many.keys() == one.keys() == {"loss", "accuracy", "val_loss", "val_accuracy"}
    for name in one:
        np.testing.assert_allclose(many[name], one[name], rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(batches[6:], batches[:6], rtol=1e-5)
    assert_close(actual, expected)
    predicted = model.predict(X[:22], batch_size=8, verbose=0)
    np.testing.assert_allclose(predicted, alone.predict(X[:22], verbose=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        model.evaluate(X[:8], Y[:8], verbose=0), alone.evaluate(X[:8], Y[:8], verbose=0), rtol=1e-5
    )


def test_the_comparison_notices_another_rate():
    """What the other comparisons rely on."""
    one = train(mlp, MLP, (X, Y), epochs=1)[2]
    other = train(mlp, MLP, (X, Y), optimizer=lambda: adam(0.0101), epochs=1)[2]
    with pytest.raises(AssertionError, match="up/kernel"):
        assert_close(other, one)


def test_a_batch_that_cannot_be_divided_is_refused_by_fit():
    model = made(mlp, tg.SGD(0.1))
    td.distribute(model, td.LayoutMap(mesh()))
    with pytest.raises(ValueError, match="a batch of 7 examples cannot be divided evenly"):
        model.fit(X, Y, batch_size=7, verbose=0)


# Saving.


def test_weights_are_read_and_written_whole(tmp_path):
    model, other = made(mlp), made(mlp)
    td.distribute(model, td.LayoutMap(mesh(), MLP))
    for variable in other.trainable_variables:
        variable.assign(variable + 1.0)
    model.set_weights(other.get_weights())
    assert_close(state(model), state(other), 0, 0)
    assert model.weights[0].value.layout.sharding_specs == [U, "model"]
    model.save_weights(tmp_path / "model.weights.h5")
    fresh = made(mlp)
    fresh.load_weights(tmp_path / "model.weights.h5")
    assert_close(state(fresh), state(other), 0, 0)
    again = td.distribute(made(mlp), td.LayoutMap(mesh(), MLP))
    again.load_weights(tmp_path / "model.weights.h5")
    assert_close(state(again), state(other), 0, 0)


def test_a_saved_model_loads_off_the_mesh_and_onto_another(tmp_path):
    model = made(mlp, adam())
    td.distribute(model, td.LayoutMap(mesh(), MLP))
    model.optimizer.build(model.trainable_variables)
    with pytest.raises(ValueError, match=r"after tf_graft.dtensor.collect\(model\)"):
        model.export(tmp_path / "exported")
    model.save(tmp_path / "model.keras")
    assert "CPU" not in json.dumps(model.optimizer.get_config())
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.mesh is None
    for variable in [*loaded.variables, *loaded.optimizer.variables]:
        assert not isinstance(variable.value, dtensor.DVariable), variable.path
    assert_close(saved(loaded), saved(model), 0, 0)
    td.distribute(loaded, td.LayoutMap(mesh(DEVICES), MLP))
    assert loaded.optimizer.mesh == mesh(DEVICES)
    assert_close(saved(loaded), saved(model), 0, 0)
    copied = pickle.loads(pickle.dumps(model))
    assert copied.optimizer.mesh is None
    assert_close(saved(copied), saved(model), 0, 0)


ELSEWHERE = """
import sys
import keras
import numpy as np
import tensorflow as tf
import tf_graft as tg
(cpu,) = tf.config.list_logical_devices("CPU")
x = np.load(sys.argv[1])
losses = []
for on_mesh in (False, True):
    model = keras.models.load_model(sys.argv[2])
    if on_mesh:
        mesh = tg.dtensor.create_mesh({"batch": 1})
        tg.dtensor.distribute(model, tg.dtensor.LayoutMap(mesh, {"up/kernel": [None, "batch"]}))
    losses += model.fit(x, x[:, 0] > 0, batch_size=8, shuffle=False, verbose=0).history["loss"]
print("LOSSES", *losses)
"""


@pytest.mark.slow
def test_a_saved_model_loads_in_a_process_with_one_device(tmp_path):
    model = made(mlp, adam())
    td.distribute(model, td.LayoutMap(mesh(), MLP))
    model.fit(X, Y, batch_size=8, verbose=0)
    file, data = (str(tmp_path / name) for name in ("model.keras", "x.npy"))
    model.save(file)
    np.save(data, X)
    done = subprocess.run(
        [forked.python(), "-c", ELSEWHERE, data, file],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = [float(x) for x in re.search("LOSSES (.*)", done.stdout)[1].split()]
    model = keras.models.load_model(file)  # with its seeds at their start
    expected = model.fit(X, X[:, 0] > 0, batch_size=8, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(found, expected * 2, rtol=1e-5)


def test_checkpoints_from_one_layout_into_another(tmp_path):
    """2 x 2, 4 x 1, one device and back, with the optimizer."""

    def fresh(rows):
        model = made(mlp, adam())
        if rows:
            td.distribute(model, td.LayoutMap(mesh(rows), MLP))
        model.optimizer.build(model.trainable_variables)
        return model

    model = made(mlp, adam())
    model.fit(X, Y, batch_size=8, verbose=0)
    td.distribute(model, td.LayoutMap(mesh(2), MLP))
    expected = saved(model)
    for number, rows in enumerate((DEVICES, None, 2)):
        path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(
            str(tmp_path / str(number))
        )
        model = fresh(rows)
        assert not np.allclose(model.weights[0].numpy(), expected["up/kernel"])
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        checkpoint.read(path)
        assert_close(saved(model), expected, 0, 0)
    assert model.weights[0].value.layout.sharding_specs == [U, "model"]


def off_the_mesh(step: int):
    """Variables that a loop of one's own keeps beside a model: numbers, a text, random numbers."""
    return {
        "step": tf.Variable(step, dtype=tf.int64),
        "best": keras.Variable(step / 4),
        "note": tf.Variable(f"at {step}"),
        "random": tf.random.Generator.from_seed(step),
    }


def test_variables_that_are_not_where_the_optimizer_is():
    def weights(name, at):
        value = tf.ones([4, 2])
        if at is None:
            return tf.Variable(value, name=name)
        layout = dtensor.Layout.replicated(at, 2)
        return dtensor.DVariable(dtensor.copy_to_mesh(value, layout), name=name)

    plain, on, elsewhere = weights("plain", None), weights("on", mesh()), weights("other", mesh(1))
    where, nowhere = (
        r"Adam\.build: '{}' is on Mesh\(.*and the optimizer on {}",
        r"Adam\.build: 'plain' is on no mesh, and the optimizer on Mesh\(batch=2, model=2\)",
    )
    for given, variables, message in (
        ({"mesh": mesh()}, [plain], nowhere),
        ({}, [plain, on], nowhere),
        ({}, [on, elsewhere], where.format("other", "Mesh")),
    ):
        optimizer = tg.Adam(**given)
        with pytest.raises(ValueError, match=message):
            optimizer.build(variables)
    optimizer = tg.Adam()
    with pytest.raises(ValueError, match=nowhere):
        optimizer.build([on, plain])
    optimizer.build([plain])  # nothing has moved
    with pytest.raises(ValueError, match=where.format("on", "no mesh")):
        optimizer.build([plain, on])


@pytest.mark.parametrize(
    "on", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["mesh", "one_device"]
)
def test_checkpoints_with_variables_off_the_mesh(tmp_path, on):
    """`save` counts in a variable of its own, and so does `CheckpointManager.save`."""
    model = td.distribute(made(mlp, adam()), td.LayoutMap(mesh(), MLP))
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(5)
    checkpoint = tf.train.Checkpoint(model=model, **off_the_mesh(7))
    manager = tf.train.CheckpointManager(checkpoint, tmp_path / "managed", max_to_keep=1)
    manager.save()
    paths = [checkpoint.write(tmp_path / "w"), checkpoint.save(tmp_path / "s"), manager.save()]
    assert checkpoint.save_counter.numpy() == 3
    assert manager.checkpoints == [paths[2]]
    for path in paths:
        other = made(mlp, adam())
        if on:
            td.distribute(other, td.LayoutMap(mesh(1), MLP))
        other.optimizer.build(other.trainable_variables)
        found = off_the_mesh(1)
        other.weights[0].assign(tf.zeros_like(other.weights[0].numpy()))
        status = tf.train.Checkpoint(model=other, **found).restore(path)
        status.assert_existing_objects_matched()
        assert_close(saved(other), saved(model), 0, 0)
        assert found["step"].numpy() == 7
        assert float(found["best"]) == 1.75
        assert found["note"].numpy() == b"at 7"
        np.testing.assert_array_equal(found["random"].state, [7, 0, 0])


def test_what_a_checkpoint_on_a_mesh_cannot_hold(tmp_path):
    """DTensor would write a table, and fail to restore it."""
    model = td.distribute(made(mlp), td.LayoutMap(mesh(), MLP))
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    table.insert(["a"], [4])
    for name, held in {"iterator": iter(tf.data.Dataset.range(9)), "table": table}.items():
        checkpoint = tf.train.Checkpoint(model=model, **{name: held})
        with pytest.raises(RuntimeError, match=r"a table or an iterator, .*Checkpoint of its own"):
            checkpoint.save(tmp_path / name)
        assert not list(tmp_path.glob(f"{name}*index"))
    path = tf.train.Checkpoint(table=table).save(tmp_path / "alone")
    table.insert(["a"], [5])
    tf.train.Checkpoint(table=table).restore(path).assert_consumed()
    assert table.lookup(["a"]).numpy() == [4]


# Whole models: slow, because TensorFlow divides every operation of every function anew.

# Their steps, and those of all others, are held against one device in `mesh_cases.py`.
SOME = {
    "averaging": lambda: tg.RMSprop(0.01, centered=True, use_ema=True, name="optimizer"),
    "accumulating": lambda: tg.Adam(0.01, gradient_accumulation_steps=3, name="optimizer"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_optimizers_in_fit(name):
    one, _, expected = train(mlp, MLP, (X, Y), optimizer=SOME[name])
    many, _, actual = train(mlp, MLP, (X, Y), mesh(), optimizer=SOME[name])
    np.testing.assert_allclose(many["loss"], one["loss"], rtol=1e-5)
    assert_close(actual, expected)


@pytest.mark.slow
def test_a_cnn():
    assert_trains_alike(cnn, CNN, (IMAGES, Y), mesh(), shuffle=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layouts", "trainable"), [({}, False), (TRANSFORMER, True)], ids=["replicated", "divided"]
)
def test_a_transformer(layouts, trainable):
    make = functools.partial(transformer, trainable)
    # The keys' bias has no gradient but rounding, which Adam would blow up without an epsilon.
    options = {"epochs": 4, "optimizer": lambda: adam(epsilon=1e-4)}
    model = assert_trains_alike(make, layouts, (IDS, IDS), mesh(), **options)
    if layouts:
        divided = [v for v in model.weights if set(v.value.layout.sharding_specs) != {U}]
        assert len(divided) == 11
        assert math.prod(dtensor.unpack(divided[0].value.read_value())[0].shape) * (
            DEVICES // 2
        ) == math.prod(divided[0].shape)


@pytest.mark.slow
@pytest.mark.parametrize("batch_dim", ["model", None])
def test_examples_divided_over_another_dimension_or_none(batch_dim):
    layouts = {} if batch_dim == "model" else MLP
    assert_trains_alike(mlp, layouts, (X, Y), mesh(), batch_dim=batch_dim)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"run_eagerly": True}, {"steps_per_execution": 2}])
def test_ways_of_running(options):
    assert_trains_alike(mlp, MLP, (X, Y), mesh(), **options)


@pytest.mark.slow
def test_callbacks_that_save_and_change_the_rate(tmp_path):
    def callbacks():
        return [
            keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras"),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (epoch + 1)),
            keras.callbacks.EarlyStopping("loss", patience=0, min_delta=1e9),
        ]

    one, _, expected = train(mlp, MLP, (X, Y), epochs=3, callbacks=callbacks())
    many, _, actual = train(mlp, MLP, (X, Y), mesh(), epochs=3, callbacks=callbacks())
    assert len(one["loss"]) == len(many["loss"]) == 2
    np.testing.assert_allclose(many["learning_rate"], one["learning_rate"])
    assert_close(actual, expected)
    loaded = keras.models.load_model(tmp_path / "2.keras")
    np.testing.assert_array_equal(loaded.get_layer("up").kernel.numpy(), actual["up/kernel"])


@pytest.mark.slow
def test_a_model_with_a_step_of_its_own_and_a_metric_of_several_numbers():
    class Model(keras.Model):
        def train_step(self, data):
            logs = super().train_step(data)
            return logs | {"twice": 2 * logs["loss"]}

    def make():
        inner = mlp()
        return Model(inner.inputs, keras.ops.sigmoid(inner.outputs[0]))

    def fitted(mesh_):
        keras.utils.set_random_seed(7)
        keras.backend.clear_session(free_memory=False)
        model = make()
        score = keras.metrics.F1Score(average="macro", threshold=0.5)
        model.compile(tg.SGD(0.1, name="optimizer"), "binary_crossentropy", metrics=[score])
        if mesh_ is not None:
            td.distribute(model, td.LayoutMap(mesh_, MLP))
        return model.fit(X, np.eye(4)[Y], batch_size=8, epochs=2, shuffle=False, verbose=0).history

    one, many = fitted(None), fitted(mesh())
    assert one.keys() == many.keys() >= {"loss", "twice", "f1_score"}
    for name, values in one.items():
        np.testing.assert_allclose(many[name], values, rtol=1e-5, err_msg=name)


@pytest.mark.slow
def test_a_step_of_its_own_with_a_metric_that_makes_its_variables_late():
    class Model(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                outputs = keras.ops.softmax(self(x, training=True))
                loss = keras.losses.CategoricalCrossentropy()(y, outputs)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            self.score.update_state(y, outputs)
            return {"score": self.score.result()}

    def fitted(mesh_):
        model = made(lambda: Model(*ends(mlp())))
        model.score = keras.metrics.F1Score(average="macro", threshold=0.3)
        model.compile(adam())
        if mesh_ is not None:
            td.distribute(model, td.LayoutMap(mesh_, MLP))
        history = model.fit(X, np.eye(4)[Y], batch_size=8, epochs=2, shuffle=False, verbose=0)
        if mesh_ is not None:
            assert isinstance(model.score.true_positives.value, dtensor.DVariable)
            assert "add_variable" not in vars(td.collect(model).score)
        return history.history["score"]

    np.testing.assert_allclose(fitted(mesh()), fitted(None), rtol=1e-5)


def towers(join) -> keras.Model:
    inputs = keras.Input((8,))
    hidden = join(inputs, keras.layers.Dense(8, name="up")(inputs))
    return keras.Model(inputs, keras.layers.Dense(4, name="down")(hidden))


@pytest.mark.slow
@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("layouts", [MLP, {"down/kernel": ["model", None]}], ids=["both", "rows"])
def test_towers_that_are_concatenated(layouts, axis):
    """TensorFlow alone joins the shards of each device, and the loss is another."""
    make = functools.partial(towers, lambda *x: keras.layers.Concatenate(axis)(x))
    assert_trains_alike(make, layouts, (X, Y), mesh(), shuffle=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("join", "error", "says"),
    [
        (lambda *x: keras.ops.concatenate(x, -1), tf.errors.UnknownError, "Concat op"),
        (lambda _, x: x[:, ::-1], ValueError, r"strided_slice': .* reverse an axis .* gather"),
    ],
    ids=["concatenate", "reverse"],
)
def test_an_order_that_would_be_wrong_is_refused(join, error, says):
    model = made(lambda: towers(join), tg.SGD(0.1))
    td.distribute(model, td.LayoutMap(mesh(), MLP))
    with pytest.raises(error, match=says):
        model.fit(X, Y, batch_size=8, verbose=0)


@pytest.mark.slow
def test_an_operation_that_cannot_be_divided_says_what_helps():
    model = made(mlp)
    backwards = keras.Model(model.inputs, keras.ops.flip(model.outputs[0], axis=0))
    backwards.compile(tg.SGD(0.1), "mse")
    td.distribute(backwards, td.LayoutMap(mesh()))
    with pytest.raises(tf.errors.UnknownError, match="ReverseV2") as caught:
        backwards.predict(X, batch_size=8, verbose=0)
    assert "keep the activations between layers whole" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("make", "gathers", "flags"),
    # Shampoo: steps, both roots, and which of the matrices have roots that failed. SOAP: steps and
    # mean squares; with new bases the mean squares again; both bases, the first and the next ones.
    [
        (tg.Muon, 1, 0),
        pytest.param(tg.Shampoo, 3, 1, marks=pytest.mark.slow),
        pytest.param(tg.SOAP, 7, 0, marks=pytest.mark.slow),
    ],
)
def test_bytes_of_divided_work(make, gathers, flags):
    """One gather for each result; 64 rows are so many that TensorFlow folds no identity matrix."""
    side, sent = 64, {}
    x = RNG.normal(size=(8, side)).astype("float32")
    for divide in (True, False):
        layers = [keras.layers.Dense(side, use_bias=False) for _ in range(DEVICES + 1)]
        model = keras.Sequential([keras.Input([side]), *layers])
        model.compile(make(divide=divide), "mse")
        td.distribute(model, td.LayoutMap(mesh(DEVICES)), batch_dim="batch")
        sent[divide] = td.traffic(model, (x, x)).sent
    each = 2 * 4 * (DEVICES - 1)  # by a ring, 4 bytes, in an all-reduce of CPUs
    assert sent[True] - sent[False] == each * (gathers * side * side + flags)


@pytest.mark.slow
def test_an_embedding_sends_rows_of_the_batch_and_not_its_table():
    """Each device sums all rows of the batch; sums of its own would be as large as the table."""

    def sent(rows):
        table, head = keras.layers.Embedding(rows, 8), keras.layers.Dense(2)
        model = keras.Sequential([keras.Input([3], dtype="int32"), table, head])
        model.compile(tg.Adam(0.1), "mse")
        td.distribute(model, td.LayoutMap(mesh()), batch_dim="batch")
        x = RNG.integers(0, rows, (8, 3))
        return td.traffic(model, (x, np.zeros([8, 3, 2], "float32"))).sent

    small, large = sent(64), sent(6400)
    assert small == large < 64 * 8 * 4
