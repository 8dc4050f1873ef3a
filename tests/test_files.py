"""Files as users meet them: loaded before the first step, by another process, from stock Keras.

What is refused of our own files, and that resuming is bit for bit, is in `test_saving.py`.
"""

import copy
import itertools
import json
import pickle
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft
from support import column_runs, file_models, samples
from support.file_models import compiled, fit, weights
from support.replicas import mirrored
from tf_graft import SGD, Adagrad, Adam, Slot

WRITTEN_BY_0_2_0 = Path(__file__).parent / "goldens" / "files_0_2_0"
KERAS = keras.optimizers
OPTIMIZERS = file_models.optimizers()


def some(names, *quick):
    """All names, those that are not quick among the slow tests."""
    slow = {name: [] if name in quick else [pytest.mark.slow] for name in names}
    return pytest.mark.parametrize("name", [pytest.param(n, marks=m) for n, m in slow.items()])


# Names: two parts of the state never go by one name.


def optimizer_with(slots=(), shared=()):
    class Mine(tf_graft.Optimizer):
        def slots(self):
            return {role: Slot() for role in slots}

        def shared_slots(self):
            return {role: Slot(shape="scalar") for role in shared}

        def step(self, g, w, s, lr, t):
            return -lr * g, {role: s[role] for role in slots}

    return Mine


CLASHES = {
    "average": ("slots", {"use_ema": True}, "float32"),
    "average_step": ("slots", {"use_ema": True}, "float32"),
    "gradient_accumulator": ("slots", {"gradient_accumulation_steps": 2}, "float32"),
    "accumulated_rows": ("slots", {"gradient_accumulation_steps": 2}, "float32"),
    "master": ("slots", {}, "bfloat16"),
    "iteration": ("shared", {}, "float32"),
    "learning_rate": ("shared", {}, "float32"),
    "skipped_steps": ("shared", {}, "float32"),
    "micro_steps": ("shared", {}, "float32"),
    "optimizer": ("shared", {}, "float32"),
}


@pytest.mark.parametrize("role", CLASHES)
def test_a_role_that_the_engine_uses_is_refused(role):
    kind, options, dtype = CLASHES[role]
    optimizer = optimizer_with(**{kind: [role]})(0.1, **options)
    before = len(optimizer.variables)
    with pytest.raises(ValueError, match=rf"Mine\.(shared_)?slots: the role '{role}'"):
        optimizer.build([tf.Variable(tf.zeros(2, dtype))])
    assert not optimizer.built
    assert len(optimizer.variables) == before


def test_a_role_that_slots_and_shared_slots_both_use_is_refused():
    optimizer = optimizer_with(slots=["total"], shared=["total"])(0.1)
    with pytest.raises(ValueError, match=r"Mine\.slots: the role 'total'"):
        optimizer.build([tf.Variable([1.0])])


def test_names_that_look_alike_are_kept_apart():
    names = ["a/b", "a|b", "a%7Cb", "w", "w", "w_1"]

    def built(values):
        variables = [tf.Variable([0.0], name=name) for name in names]
        optimizer = SGD(0.5, momentum=0.9)
        optimizer.apply([tf.constant([float(v)]) for v in values], variables)
        return optimizer

    first, second, store = built(range(6)), built([9.0] * 6), {}
    first.save_own_variables(store)
    second.load_own_variables(store)
    paths = ["a/b", "a|b", "a%7Cb", "w", "w_2", "w_1"]
    named = second.state.named()
    assert [float(named[f"{p}/momentum"][0]) for p in paths] == [-0.5 * v for v in range(6)]


# Loaded before the optimizer is built.


@pytest.mark.slow
def test_the_tutorial_on_saving_and_loading(tmp_path):
    """TensorFlow's: weights by a callback, into a second model; then it trains on."""
    file = str(tmp_path / "model.weights.h5")
    callback = keras.callbacks.ModelCheckpoint(file, save_weights_only=True)
    model = compiled(Adam(0.01, use_ema=True))
    model.fit(file_models.X, file_models.Y, callbacks=[callback], verbose=0)
    fresh = compiled(Adam(0.01, use_ema=True))
    fresh.load_weights(file)
    assert int(fresh.optimizer.iterations.numpy()) == 1
    model.load_weights(file)  # `fit` ends with the averages in the model
    both = [m.evaluate(file_models.X, file_models.Y, verbose=0) for m in (model, fresh)]
    assert both[0] == both[1]
    assert weights(fit(fresh)).tobytes() == weights(fit(model)).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adam", "agn", "stock"])
def test_what_waits_is_saved_on_and_a_rate_set_since_is_kept(name, tmp_path):
    def twin():
        return compiled(Adam(0.01) if name == "stock" else OPTIMIZERS[name]())

    model = fit(compiled(OPTIMIZERS[name]()))
    model.save_weights(tmp_path / "first.weights.h5")
    waiting, last = twin(), twin()
    waiting.load_weights(tmp_path / "first.weights.h5")
    waiting.save_weights(tmp_path / "second.weights.h5")
    last.load_weights(tmp_path / "second.weights.h5")
    last.optimizer.learning_rate = model.optimizer.learning_rate = 0.125
    if name == "stock":
        np.testing.assert_allclose(weights(fit(last)), weights(fit(model)), rtol=0, atol=1e-5)
    else:
        assert weights(fit(last)).tobytes() == weights(fit(model)).tobytes()
    assert float(last.optimizer.learning_rate) == 0.125


def test_what_waits_and_does_not_fit_is_refused_at_build(tmp_path):
    saved = fit(compiled(Adam(0.01)))
    saved.save_weights(tmp_path / "model.weights.h5")
    store = {}
    saved.optimizer.save_own_variables(store)
    target = compiled(Adam(0.25, use_ema=True))
    target.optimizer.load_own_variables(store)
    with pytest.raises(tf_graft.CheckpointError, match="Nothing was loaded"):
        target.optimizer.build(target.trainable_variables)
    assert int(target.optimizer.iterations.numpy()) == 0
    assert float(target.optimizer.learning_rate) == 0.25
    other = compiled(SGD(0.25))
    with pytest.raises(ValueError, match="the state of Adam"):
        other.load_weights(tmp_path / "model.weights.h5")
    assert int(other.optimizer.iterations.numpy()) == 0


def test_weights_without_an_optimizer_load(tmp_path):
    """Of a model that was never compiled: nothing is lost, and a trained optimizer is told so."""
    bare = file_models.net()
    bare.save_weights(tmp_path / "bare.weights.h5")
    fresh, trained = compiled(OPTIMIZERS["graft"]()), fit(compiled(OPTIMIZERS["graft"]()))
    fresh.load_weights(tmp_path / "bare.weights.h5")
    with pytest.warns(UserWarning, match="no optimizer's state was saved"):
        trained.load_weights(tmp_path / "bare.weights.h5")
    assert int(trained.optimizer.iterations.numpy()) == 4
    for model in (fresh, trained):
        assert weights(model).tobytes() == weights(bare).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("name", ["adam", "graft"])
def test_loaded_before_a_fit_on_replicas(name, built, tmp_path):
    """Each replica has all of the state, also where the optimizer is built inside the replicas."""
    model = fit(compiled(OPTIMIZERS[name]()))
    strategy = mirrored()
    with strategy.scope():
        spread = file_models.net()
        spread.compile(optimizer=OPTIMIZERS[name](), loss="mse")
    if built:
        model.save_weights(tmp_path / "model.weights.h5")
        spread.load_weights(tmp_path / "model.weights.h5")
    else:
        store = {}
        model.optimizer.save_own_variables(store)
        spread.optimizer.load_own_variables(store)
        spread.set_weights(model.get_weights())
    assert spread.optimizer.built == built
    np.testing.assert_allclose(weights(fit(spread)), weights(fit(model)), atol=1e-6)
    for variable in spread.optimizer.variables:
        a, b = (copy.numpy() for copy in strategy.experimental_local_results(variable.value))
        assert a.tobytes() == b.tobytes(), variable.path


# A second model in the same process.


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adam", "agn"])
@pytest.mark.parametrize("built", ["before", "after"])
def test_a_checkpoint_loads_into_a_second_model_of_the_process(name, built, tmp_path):
    """As in TensorFlow's guide to checkpoints; Keras numbers the second model's layers anew."""
    model = fit(compiled(OPTIMIZERS[name]()))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = checkpoint.write(str(tmp_path / "checkpoint"))
    second = compiled(OPTIMIZERS[name]())
    assert [v.path for v in second.variables] != [v.path for v in model.variables]
    if built == "before":
        fit(second, 1)
    status = tf.train.Checkpoint(model=second, optimizer=second.optimizer).read(path)
    assert int(second.optimizer.iterations.numpy()) == int(model.optimizer.iterations.numpy())
    assert weights(fit(second)).tobytes() == weights(fit(model)).tobytes()
    status.assert_consumed()


def test_a_checkpoint_refused_before_build_leaves_nothing_behind(tmp_path):
    """RMSprop's momentum would be Adam's, by its name."""
    model = fit(compiled(tf_graft.RMSprop(0.01, momentum=0.9)))
    path = tf.train.Checkpoint(optimizer=model.optimizer).write(str(tmp_path / "checkpoint"))
    target = Adam(0.01)
    with pytest.raises(tf_graft.CheckpointError, match="RMSprop"):
        tf.train.Checkpoint(optimizer=target).read(path)
    target.build(model.trainable_variables)
    slots = [v for n, v in target.state.named().items() if n.endswith("m/momentum")]
    slots += [v for n, v in target.state.named().items() if n.endswith("/velocity")]
    assert len(slots) == 4
    assert not any(np.any(v.numpy()) for v in slots)


# From Keras' own optimizers.

STOCK = {
    "adam": (KERAS.Adam, Adam, {}),
    "amsgrad": (KERAS.Adam, Adam, {"amsgrad": True}),
    "averaged": (KERAS.Adam, Adam, {"use_ema": True, "ema_overwrite_frequency": 3}),
    "accumulated": (KERAS.Adam, Adam, {"gradient_accumulation_steps": 3}),
    "adamw": (KERAS.AdamW, tf_graft.AdamW, {"weight_decay": 0.1}),
    "sgd": (KERAS.SGD, SGD, {}),
    "momentum": (KERAS.SGD, SGD, {"momentum": 0.9, "nesterov": True}),
    "adagrad": (KERAS.Adagrad, Adagrad, {"epsilon": 0.1}),
    "ftrl": (KERAS.Ftrl, tf_graft.Ftrl, {"l1_regularization_strength": 0.01, "beta": 0.5}),
    "rmsprop": (KERAS.RMSprop, tf_graft.RMSprop, {"momentum": 0.9, "centered": True}),
    "adadelta": (KERAS.Adadelta, tf_graft.Adadelta, {"epsilon": 0.01}),
    "lamb": (KERAS.Lamb, tf_graft.LAMB, {"epsilon": 1e-6}),
    "lion": (KERAS.Lion, tf_graft.Lion, {}),
    "adafactor": (KERAS.Adafactor, tf_graft.Adafactor, {}),
    "nadam": (KERAS.Nadam, tf_graft.NAdam, {"use_ema": True}),
    "adamax": (KERAS.Adamax, tf_graft.Adamax, {}),
    "wrapped_nadam": (
        KERAS.Nadam,
        lambda **given: tf_graft.wrap(KERAS.Nadam(**given)),
        {"use_ema": True},
    ),
    "wrapped_adafactor": (  # which has variables that no step uses
        KERAS.Adafactor,
        lambda **given: tf_graft.wrap(KERAS.Adafactor(**given)),
        {"use_ema": True},
    ),
}


def stock_ways(model, folder):
    """What reads the files that a model with a stock optimizer left, by the way of writing."""
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = checkpoint.write(str(folder / "checkpoint"))

    def read(fresh):
        tf.train.Checkpoint(model=fresh, optimizer=fresh.optimizer).read(path)

    return {
        "keras": lambda fresh: fresh.load_weights(folder / "model.keras"),
        "weights.h5": lambda fresh: fresh.load_weights(folder / "model.weights.h5"),
        "checkpoint": read,
    }


@pytest.mark.slow
@some(STOCK, "adam", "accumulated")
def test_one_import_is_swapped(name, tmp_path):
    """The steps after loading are stock's to rounding, as far as any two float32 computations."""
    theirs, ours, options = STOCK[name]
    stock = fit(compiled(theirs(learning_rate=0.02, **options)))
    # In the middle of an update that accumulates, and where no average is the weights.
    stock.train_on_batch(file_models.X, file_models.Y)
    ways = stock_ways(stock, tmp_path)
    expected = weights(fit(stock))
    # Loaded before the optimizer is built and after; where nothing waits, in turn.
    turns = enumerate(ways.items(), list(STOCK).index(name))
    cases = [(way, number % 2) for number, (way, _) in turns]
    if name in ("averaged", "accumulated"):
        cases = itertools.product(ways, (False, True))
    for way, built in cases:
        fresh = compiled(ours(learning_rate=0.5, **options))
        if built:
            fit(fresh, 1)
        ways[way](fresh)
        np.testing.assert_allclose(
            weights(fit(fresh)), expected, rtol=0, atol=1e-6, err_msg=f"{way}, {built}"
        )
        assert float(fresh.optimizer.learning_rate) == np.float32(0.02)
        assert int(fresh.optimizer.iterations.numpy()) == (3 if name == "accumulated" else 9)


def test_rows_that_stock_accumulated_are_updated(tmp_path):
    """Also those that no gradient after loading touches."""

    def table(optimizer):
        layers = [keras.layers.Embedding(9, 2), keras.layers.Flatten(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input([1], dtype="int32"), *layers])
        model.compile(optimizer, loss="mse", run_eagerly=True)
        return model

    def step(model, row):
        model.train_on_batch(np.full((2, 1), row), np.ones((2, 1)))

    stock = table(KERAS.SGD(0.5, gradient_accumulation_steps=2))
    fresh = table(SGD(0.5, gradient_accumulation_steps=2))
    step(stock, 3)
    stock.save_weights(tmp_path / "model.weights.h5")
    fresh.load_weights(tmp_path / "model.weights.h5")
    before = stock.get_weights()[0]
    for model in (stock, fresh):
        step(model, 5)
    np.testing.assert_allclose(weights(fresh), weights(stock), rtol=0, atol=1e-6)
    assert np.flatnonzero((fresh.get_weights()[0] != before).any(axis=1)).tolist() == [3, 5]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_stock_state_in_half_precision_goes_to_float32(dtype, tmp_path):
    stock = fit(compiled(KERAS.SGD(0.02, momentum=0.9), dtype=dtype))
    stock.save_weights(tmp_path / "model.weights.h5")
    fresh = compiled(SGD(0.5, momentum=0.9), dtype=dtype)
    fresh.load_weights(tmp_path / "model.weights.h5")
    fresh.optimizer.build(fresh.trainable_variables)
    theirs = np.concatenate([np.ravel(m.numpy()) for m in stock.optimizer.momentums])
    named = fresh.optimizer.state.named()
    slots = [v for n, v in named.items() if n.endswith("/momentum")]
    assert {v.dtype for v in slots} == {"float32"}
    ours = np.concatenate([np.ravel(v.numpy()) for v in slots])
    assert ours.tobytes() == theirs.astype(np.float32).tobytes()
    assert np.any(ours)


MISFITS = {
    "another optimizer": (lambda: KERAS.SGD(0.02, momentum=0.9), lambda: Adam(0.5)),
    "equal slots": (lambda: KERAS.Adadelta(0.02), lambda: Adam(0.5)),
    "more slots": (lambda: KERAS.Adam(0.02, amsgrad=True), lambda: Adam(0.5)),
    "averages": (lambda: KERAS.Adam(0.02), lambda: Adam(0.5, use_ema=True)),
    "a schedule": (lambda: KERAS.Adam(KERAS.schedules.CosineDecay(0.1, 9)), lambda: Adam(0.5)),
    "another name": (lambda: KERAS.Adam(0.02, name="mine"), lambda: Adam(0.5, name="mine")),
    "a loss scale": (
        lambda: KERAS.LossScaleOptimizer(KERAS.Adam(0.02)),
        lambda: tf_graft.MixedPrecision(Adam(0.5)),
    ),
    "a graft": (lambda: KERAS.Adam(0.02), lambda: tf_graft.AdaGraft(SGD(0.5), Adam(0.5), 0.5)),
}


def load_and_build(load, model):
    load(model)
    model.optimizer.build(model.trainable_variables)


@pytest.mark.slow
@some(MISFITS, "a graft")
def test_stock_state_that_does_not_fit_is_left_with_a_warning(name, tmp_path):
    """The model's weights load; the optimizer starts fresh, its counters and its rate too.

    From one kind of file each, in turn.
    """
    theirs, ours = MISFITS[name]
    stock = fit(compiled(theirs()))
    ways = [*stock_ways(stock, tmp_path).values()]
    load = ways[[*MISFITS].index(name) % len(ways)]
    fresh, same = compiled(ours()), compiled(ours())
    with pytest.warns(UserWarning, match="the optimizer starts fresh"):
        load_and_build(load, fresh)
    assert weights(fresh).tobytes() == weights(stock).tobytes()
    same.set_weights(stock.get_weights())
    assert weights(fit(fresh)).tobytes() == weights(fit(same)).tobytes()

    trained = fit(compiled(ours()), 1)
    before = samples.state_of(trained.optimizer)
    with pytest.warns(UserWarning, match="goes on with the state it has"):
        load(trained)
    samples.assert_same_state(samples.state_of(trained.optimizer), before)


def test_stock_loads_the_weights_of_our_files(tmp_path):
    """The other way: Keras itself warns that its optimizer starts fresh."""
    ours = fit(compiled(Adam(0.02)))
    ours.save_weights(tmp_path / "model.weights.h5")
    stock = compiled(KERAS.Adam(0.02))
    with pytest.warns(UserWarning, match="Skipping variable loading for optimizer"):
        stock.load_weights(tmp_path / "model.weights.h5")
    assert weights(stock).tobytes() == weights(ours).tobytes()


# Copies.


def copies(thing):
    return {"deepcopy": copy.deepcopy(thing), "pickle": pickle.loads(pickle.dumps(thing))}


@pytest.mark.slow
@some([n for n in OPTIMIZERS if n != "stock"], "mixed_agn")
def test_copies_have_the_state(name):
    model = fit(compiled(OPTIMIZERS[name](), dtype="bfloat16" if name == "graft" else None))
    optimizers, models = copies(model.optimizer), copies(model)
    start = model.get_weights()
    count = int(model.optimizer.iterations.numpy())
    expected = weights(fit(model))
    for way, optimizer in optimizers.items():
        assert type(optimizer) is type(model.optimizer)
        assert int(optimizer.iterations.numpy()) == count
        model.set_weights(start)
        model.compile(optimizer=optimizer, loss="mse", run_eagerly=True)
        assert weights(fit(model)).tobytes() == expected.tobytes(), way
    for way, twin in models.items():
        twin.run_eagerly = True
        assert weights(fit(twin)).tobytes() == expected.tobytes(), way


def test_a_copy_of_what_is_not_built_is_not_built():
    for optimizer in copies(Adam(0.125, clipnorm=1.0)).values():
        assert not optimizer.built
        assert optimizer.get_config() == Adam(0.125, clipnorm=1.0).get_config()


# Processes and versions.


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["adam", "agn", "wrapped", "stock"], marks=pytest.mark.slow),
        pytest.param(["adam", "graft", "mixed"], marks=pytest.mark.rare),
    ],
    ids=["some", "others"],
)
def test_every_file_in_a_fresh_process(names, tmp_path):
    """Also without tf_graft: a model to predict with needs none, a compiled one says what to do."""
    expected = {}
    for name in names:
        make = OPTIMIZERS[name]
        keras.utils.clear_session(free_memory=False)
        model = fit(compiled(make()))
        model.save(tmp_path / f"{name}.keras")
        model.save_weights(tmp_path / f"{name}.weights.h5")
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        checkpoint.write(str(tmp_path / f"{name}.checkpoint"))
        (tmp_path / f"{name}.pickle").write_bytes(pickle.dumps(model.optimizer))
        if name == "adam":
            at_saving = weights(model)
        expected[name] = weights(fit(model))
    command = [sys.executable, "-m", "support.file_models", str(tmp_path)]
    said = column_runs.run_alone(command, column_runs.SECONDS)
    found = json.loads(said.splitlines()[-1])
    assert not found["imported"]
    assert "make sure they are all imported" in found["hint"]
    assert "tf_graft" in found["hint"]
    np.testing.assert_array_equal(np.float32(found["weights"]), at_saving)
    for name, after in expected.items():
        assert len(found[name]) == (2 if name == "stock" else 4)
        for way, got in found[name].items():
            difference = np.abs(np.float32(got) - after).max()
            assert difference <= (1e-6 if name == "stock" else 0), (name, way)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(KERAS, "ScheduleFreeAdamW"), reason="Keras 3.15 wrote the files")
@pytest.mark.parametrize("name", ["adam", "agn"])
def test_files_of_0_2_0_load(name):
    expected = np.load(WRITTEN_BY_0_2_0 / f"{name}.npy")
    loaded = keras.saving.load_model(WRITTEN_BY_0_2_0 / f"{name}.keras")
    loaded.run_eagerly = True
    unbuilt, restored = compiled(OPTIMIZERS[name]()), compiled(OPTIMIZERS[name]())
    unbuilt.load_weights(WRITTEN_BY_0_2_0 / f"{name}.keras")
    checkpoint = tf.train.Checkpoint(model=restored, optimizer=restored.optimizer)
    checkpoint.read(str(WRITTEN_BY_0_2_0 / name)).expect_partial()
    for model in (loaded, unbuilt, restored):
        np.testing.assert_allclose(weights(fit(model)), expected, rtol=0, atol=1e-6)
