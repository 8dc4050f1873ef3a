"""tf_graft's optimizers where Keras uses optimizers: `fit`, its callbacks, its own wrappers."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft
from support import samples

# What Keras' own saving of model weights warns of, with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

IDS = 7
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(24, 3)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [0.5]]) + 0.3).astype(np.float32)
TOKENS = RANDOM.integers(0, 5, (24, 4)).astype(np.int32)  # two of the ids never occur


def dense_net() -> keras.Model:
    inputs = keras.Input([3], name="features")
    hidden = keras.layers.Dense(4, activation="tanh", name="hidden")(inputs)
    return keras.Model(inputs, keras.layers.Dense(1, name="head")(hidden), name="net")


def token_net() -> keras.Model:
    inputs = keras.Input([4], dtype="int32", name="tokens")
    rows = keras.layers.Embedding(IDS, 3, name="table")(inputs)
    flat = keras.layers.Flatten(name="flat")(rows)
    return keras.Model(inputs, keras.layers.Dense(1, name="head")(flat), name="net")


def fitted(optimizer, epochs: int = 1, net=dense_net, x=X, y=Y, callbacks=(), **compiled):
    """A net, and what `fit` says of it: 6 batches of 4 an epoch, in order."""
    keras.utils.set_random_seed(0)
    model = net()
    model.compile(optimizer=optimizer, loss="mse", **compiled)
    history = model.fit(
        x, y, batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks)
    )
    return model, history.history


def weights_of(model) -> list[np.ndarray]:
    return [v.numpy() for v in model.trainable_variables]


def assert_weights(model, expected, rtol=1e-6, atol=1e-6) -> None:
    for actual, value in zip(weights_of(model), expected, strict=True):
        np.testing.assert_allclose(actual, value, rtol=rtol, atol=atol)


def looped(optimizer, epochs: int = 1, net=dense_net, x=X, y=Y) -> keras.Model:
    """The same training as `fitted`, by hand and eagerly."""
    keras.utils.set_random_seed(0)
    model = net()
    if isinstance(optimizer, tf_graft.Optimizer):
        optimizer.build(model)  # matrices are found in it
    for _ in range(epochs):
        for i in range(0, len(x), 4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x[i : i + 4], training=True) - y[i : i + 4]) ** 2)
            variables = [v.value for v in model.trainable_variables]
            optimizer.apply_gradients(
                zip(tape.gradient(loss, variables), model.trainable_variables, strict=True)
            )
    return model


# fit and the loop.


@samples.each(samples.SAMPLES[1::4], quick=("sgd_momentum", "adam"))
def test_fit_learns_and_equals_the_loop(sample):
    rate = 1.0 if sample.name == "adadelta" else 0.05 if "sgd" not in sample.name else 0.02
    model, history = fitted(sample.make(rate), epochs=3)
    assert history["loss"][-1] < history["loss"][0]
    assert int(model.optimizer.iterations.numpy()) == 18
    optimizer = sample.make(rate)
    loop = looped(optimizer, epochs=3)
    optimizer.finalize_variable_values(loop.trainable_variables)  # as `fit` does when it ends
    assert_weights(model, weights_of(loop), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@samples.each([samples.BY_NAME[n] for n in ("sgd_momentum", "adam", "rmsprop", "adagrad")])
def test_fit_equals_stock_keras(sample):
    model, _ = fitted(sample.make(0.05), epochs=2)
    stock, _ = fitted(sample.make_stock(0.05), epochs=2)
    assert_weights(model, weights_of(stock), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("cls", dict.fromkeys(s.cls for s in samples.SAMPLES if not s.slow))
def test_by_name(cls):
    name = cls.__name__.lower()
    needed = samples.needed_by(next(s for s in samples.SAMPLES if s.cls is cls))
    model, _ = fitted(tf_graft.get({"name": name, **needed}))
    assert int(model.optimizer.iterations.numpy()) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        "steps_per_execution",
        pytest.param("run_eagerly", marks=pytest.mark.slow),
        pytest.param("jit_compile", marks=pytest.mark.slow),
    ],
)
def test_ways_of_compiling_are_equal(how):
    options = samples.OPTIONS["together"]
    expected, _ = fitted(tf_graft.Adam(0.05, **options), epochs=2)
    model, _ = fitted(
        tf_graft.Adam(0.05, **options), epochs=2, **{how: 3 if how.startswith("steps") else True}
    )
    assert int(model.optimizer.iterations.numpy()) == 6
    assert_weights(model, weights_of(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_jit_compile_of_row_sparse_gradients():
    expected, _ = fitted(tf_graft.Adam(0.05), net=token_net, x=TOKENS)
    model, _ = fitted(tf_graft.Adam(0.05), net=token_net, x=TOKENS, jit_compile=True)
    assert_weights(model, weights_of(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@samples.each(samples.SAMPLES[::4], quick=("sgd", "rmsprop_centered_momentum"))
def test_float64_model(sample):
    rate = 1.0 if sample.name == "adadelta" else 0.02
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        model, history = fitted(sample.make(rate), x=X.astype("float64"), epochs=2)
    finally:
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])
    assert {v.dtype for v in model.trainable_variables} == {"float64"}
    state = samples.state_of(model.optimizer)
    assert {state[f"hidden/kernel/{role}"].dtype for role in sample.roles(2)} <= {
        np.dtype("float64")
    }
    assert history["loss"][1] < history["loss"][0]


# Embedding equals one-hot Dense: a batch repeats ids, and some ids never occur.


def one_hot_net() -> keras.Model:
    inputs = keras.Input([4, IDS], name="tokens")
    rows = keras.layers.Dense(3, use_bias=False, name="table")(inputs)
    flat = keras.layers.Flatten(name="flat")(rows)
    return keras.Model(inputs, keras.layers.Dense(1, name="head")(flat), name="net")


def equal_start(net):
    """The net with weights that do not depend on how its table is initialized."""

    def made():
        model = net()
        random = np.random.default_rng(5)
        model.set_weights([random.normal(size=w.shape) for w in model.get_weights()])
        return model

    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("adagrad", {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2}),
        ("adam", {"sparse": "exact"}),
        *(
            pytest.param(name, options, marks=pytest.mark.slow)
            for name, options in (
                ("sgd", {}),
                ("adagrad", {}),
                ("sgd", {"global_clipnorm": 0.5}),
                ("adagrad", {"gradient_accumulation_steps": 2, "loss_scale_factor": 4.0}),
                ("rmsprop_momentum", {"sparse": "exact", "clipnorm": 0.5}),
                ("adamw", {"sparse": "exact", "use_ema": True}),
            )
        ),
    ],
    ids=str,
)
def test_embedding_equals_one_hot_dense(name, options):
    make = samples.BY_NAME[name].make
    one_hot = np.eye(IDS, dtype=np.float32)[TOKENS]
    table, _ = fitted(make(0.05, **options), 2, equal_start(token_net), TOKENS)
    dense, _ = fitted(make(0.05, **options), 2, equal_start(one_hot_net), one_hot)
    assert_weights(table, weights_of(dense), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_lazy_adam_leaves_absent_rows_alone_and_moves_others():
    model, _ = fitted(tf_graft.AdamW(0.05), 2, equal_start(token_net), TOKENS)
    before = weights_of(equal_start(token_net)())[0]
    after = weights_of(model)[0]
    absent = sorted(set(range(IDS)) - set(TOKENS.ravel().tolist()))
    present = sorted(set(TOKENS.ravel().tolist()))
    assert len(absent) == 2
    np.testing.assert_array_equal(after[absent], before[absent])
    assert (after[present] != before[present]).all()


# Keras' own wrappers.


@pytest.mark.slow
def test_inside_loss_scale_optimizer_equals_alone():
    inner = tf_graft.Adam(0.05)
    model, _ = fitted(keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**10), epochs=2)
    alone, _ = fitted(tf_graft.Adam(0.05), epochs=2)
    assert int(inner.iterations.numpy()) == 12
    assert_weights(model, weights_of(alone), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_mixed_float16_fit():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model, history = fitted(tf_graft.Adam(0.05), epochs=3)
    finally:
        keras.config.set_dtype_policy(before)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    inner = model.optimizer.inner_optimizer
    assert isinstance(inner, tf_graft.Adam)
    applied, skipped = int(inner.iterations.numpy()), int(inner.skipped_steps.numpy())
    assert 0 < applied <= 18
    assert skipped == 0  # Keras keeps them from us
    assert history["loss"][-1] < history["loss"][0]


@pytest.mark.parametrize("graph", [False, True])
def test_loss_scale_optimizer_skips_an_infinite_gradient(graph):
    w = keras.Variable([1.0, 2.0], name="w")
    inner = tf_graft.Adam(0.1)
    outer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
    outer.build([w])
    step = (
        tf.function(lambda g: outer.apply([g], [w])) if graph else lambda g: outer.apply([g], [w])
    )
    step(tf.constant([8.0, 16.0]))
    before = samples.state_of(inner, w)
    step(tf.constant([np.inf, 1.0]))
    samples.assert_same_state(samples.state_of(inner, w), before)
    assert float(outer.dynamic_scale.numpy()) == 4.0
    step(tf.constant([4.0, 8.0]))
    assert int(inner.iterations.numpy()) == 2


needs_multi = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="Keras has MultiOptimizer from 3.13 on"
)


def multi(**kwargs):
    """SGD for the head, Adam for the rest; each is returned too."""
    adam, sgd = tf_graft.Adam(0.05, **kwargs), tf_graft.SGD(0.02, momentum=0.9, **kwargs)
    return (
        keras.optimizers.MultiOptimizer(lambda v: sgd if v.path.startswith("head") else adam),
        adam,
        sgd,
    )


@pytest.mark.slow
@needs_multi
def test_inside_multi_optimizer():
    optimizer, adam, sgd = multi()
    model, history = fitted(optimizer, epochs=3)
    assert history["loss"][-1] < history["loss"][0]
    assert int(adam.iterations.numpy()) == int(sgd.iterations.numpy()) == 18
    assert {p for p in samples.state_of(adam) if "/" in p} == {
        f"hidden/{v}/{role}" for v in ("kernel", "bias") for role in ("momentum", "velocity")
    }
    keras.utils.set_random_seed(0)
    by_hand = dense_net()
    alone = tf_graft.Adam(0.05), tf_graft.SGD(0.02, momentum=0.9)
    for _, i in itertools.product(range(3), range(0, 24, 4)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((by_hand(X[i : i + 4]) - Y[i : i + 4]) ** 2)
        variables = by_hand.trainable_variables
        gradients = tape.gradient(loss, [v.value for v in variables])
        alone[0].apply(gradients[:2], variables[:2])
        alone[1].apply(gradients[2:], variables[2:])
    assert_weights(model, weights_of(by_hand), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@needs_multi
def test_state_inside_multi_optimizer_is_carried_by_weights(tmp_path):
    """`.weights.h5` of a MultiOptimizer: ours inside keep their state or refuse."""
    optimizer, adam, _ = multi()
    model, _ = fitted(optimizer)
    values = [v.numpy() for v in optimizer.variables]
    other, other_adam, _ = multi()
    other.build(model.trainable_variables)
    other.set_weights(values)
    samples.assert_same_state(samples.state_of(other_adam), samples.state_of(adam))


# Callbacks.


class Recorder(keras.callbacks.Callback):
    """What `record` returns after each epoch."""

    def __init__(self, record, when="on_epoch_end"):
        super().__init__()
        self.records = []
        setattr(self, when, lambda *args, **kwargs: self.records.append(record(self.model)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "x"),
    [pytest.param(dense_net, X, marks=pytest.mark.slow), (token_net, TOKENS)],
    ids=["dense", "tokens"],
)
def test_swap_ema_weights(net, x):
    """Evaluation sees the averages of all rows; training goes on with the weights."""
    options = {"use_ema": True, "ema_momentum": 0.8}
    swap = keras.callbacks.SwapEMAWeights()
    seen = Recorder(weights_of, when="on_test_begin")
    after = Recorder(weights_of, when="on_test_end")
    keras.utils.set_random_seed(0)
    model = net()
    model.compile(optimizer=tf_graft.Adagrad(0.1, **options), loss="mse")
    model.fit(
        x,
        Y,
        batch_size=4,
        shuffle=False,
        verbose=0,
        epochs=2,
        validation_data=(x, Y),
        validation_batch_size=24,
        callbacks=[swap, seen, after],
    )
    # The same by hand, with dense averages in NumPy.
    keras.utils.set_random_seed(0)
    plain = net()
    optimizer = tf_graft.Adagrad(0.1)
    averages, expected_seen, expected_after = None, [], []
    for _ in range(2):
        for i in range(0, 24, 4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((plain(x[i : i + 4]) - Y[i : i + 4]) ** 2)
            variables = plain.trainable_variables
            optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
            new = weights_of(plain)
            averages = (
                new
                if averages is None
                else [0.8 * a + 0.2 * w for a, w in zip(averages, new, strict=True)]
            )
        expected_seen.append(averages)
        expected_after.append(weights_of(plain))
    for actual, expected in ((seen, expected_seen), (after, expected_after)):
        assert len(actual.records) == 2
        for a, b in zip(itertools.chain(*actual.records), itertools.chain(*expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert not np.allclose(expected_seen[0][0], expected_after[0][0], atol=1e-4)
    assert_weights(model, averages, rtol=1e-4, atol=1e-5)  # when fit has ended


def test_swap_ema_weights_needs_averages():
    with pytest.raises(ValueError, match="use_ema=True"):
        fitted(
            tf_graft.Adagrad(0.1), callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: tf_graft.Adam(0.1, use_ema=True, gradient_accumulation_steps=100),
        lambda: tf_graft.AGN(
            tf_graft.SGD(0.0), center_optimizer=tf_graft.SGD(0.1, use_ema=True, ema_momentum=0.5)
        ),
    ],
    ids=["accumulation", "agn"],
)
def test_a_fit_that_ends_before_the_first_average_leaves_the_weights(make):
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="head")])
    net.compile(make(), "mse")
    before = [w.copy() for w in net.get_weights()]
    net.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, verbose=0)
    for after, w in zip(net.get_weights(), before, strict=True):
        np.testing.assert_array_equal(after, w)


def test_ema_is_in_the_model_when_fit_ends():
    model, _ = fitted(tf_graft.SGD(0.02, use_ema=True, ema_momentum=0.5))
    plain = fitted(tf_graft.SGD(0.02))[0]
    averages = [v.numpy() for v in model.optimizer.synchronized_averages()]
    assert_weights(model, averages, rtol=0, atol=0)
    assert not np.allclose(weights_of(model)[0], weights_of(plain)[0], atol=1e-5)


@pytest.mark.slow
def test_reduce_lr_on_plateau():
    never_better = keras.callbacks.ReduceLROnPlateau(
        monitor="loss", factor=0.5, patience=1, min_delta=1e9, min_lr=0.02
    )
    model, history = fitted(tf_graft.Adam(0.1), epochs=5, callbacks=[never_better])
    np.testing.assert_allclose(history["learning_rate"], [0.1, 0.1, 0.05, 0.025, 0.02], rtol=1e-6)
    assert float(model.optimizer.learning_rate) == np.float32(0.02)


@pytest.mark.slow
def test_learning_rate_scheduler():
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 / (epoch + 1))
    model, history = fitted(tf_graft.SGD(0.5), epochs=3, callbacks=[schedule])
    np.testing.assert_allclose(history["learning_rate"], [0.1, 0.05, 0.1 / 3], rtol=1e-6)
    keras.utils.set_random_seed(0)
    by_hand = tf_graft.SGD(0.5)
    expected = dense_net()
    for epoch, i in itertools.product(range(3), range(0, 24, 4)):
        by_hand.learning_rate = 0.1 / (epoch + 1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((expected(X[i : i + 4]) - Y[i : i + 4]) ** 2)
        variables = expected.trainable_variables
        by_hand.apply(tape.gradient(loss, [v.value for v in variables]), variables)
    assert_weights(model, weights_of(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "callback",
    [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
        keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, min_delta=1e9),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_callbacks_that_set_the_rate_are_refused_beside_a_schedule(callback):
    optimizer = tf_graft.SGD(tf_graft.schedules.PolyDecay(0.1, 100))
    with pytest.raises(TypeError) as caught:
        fitted(optimizer, epochs=3, callbacks=[callback])
    assert str(caught.value).endswith(
        "because PolyDecay(...) computes it; to set it, also with ReduceLROnPlateau or "
        "LearningRateScheduler, make the optimizer with a number."
    )


class Interrupt(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("option", ["together"])
def test_backup_and_restore(option, tmp_path):
    """An interrupted fit, started again in a fresh model, ends where the undisturbed one does."""

    def make():
        return tf_graft.AdamW(0.05, name="optimizer", **samples.OPTIONS[option])

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    undisturbed, _ = fitted(make(), epochs=3)
    with pytest.raises(KeyboardInterrupt):
        fitted(make(), epochs=3, callbacks=[backup(), Interrupt(2)])
    resumed, history = fitted(make(), epochs=3, callbacks=[backup()])
    assert len(history["loss"]) == 1  # the last epoch alone
    expected = samples.state_of(undisturbed.optimizer, *undisturbed.trainable_variables)
    actual = samples.state_of(resumed.optimizer, *resumed.trainable_variables)
    samples.assert_same_state(actual, expected)


@pytest.mark.slow
def test_model_checkpoint_and_load_model(tmp_path):
    keeper = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras")
    model, _ = fitted(tf_graft.AdamW(0.05, name="optimizer"), epochs=2, callbacks=[keeper])
    loaded = keras.saving.load_model(tmp_path / "2.keras")
    samples.assert_same_state(
        samples.state_of(loaded.optimizer, *loaded.trainable_variables),
        samples.state_of(model.optimizer, *model.trainable_variables),
    )
    earlier = keras.saving.load_model(tmp_path / "1.keras")
    earlier.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    assert_weights(earlier, weights_of(model), rtol=0, atol=0)


def test_terminate_on_nan_does_not_stop_over_a_skipped_gradient():
    """The loss of a batch without NaN stays finite after one whose gradient was skipped."""
    x = X.copy()
    x[4] = np.nan
    model, _ = fitted(tf_graft.Adam(0.05), x=x)
    assert int(model.optimizer.skipped_steps.numpy()) == 1
    assert int(model.optimizer.iterations.numpy()) == 5
    assert all(np.isfinite(w).all() for w in weights_of(model))


# The learning rate.


def test_learning_rate_get_and_set():
    optimizer = tf_graft.SGD(0.5)
    w = tf.Variable([1.0])

    @tf.function
    def step():
        optimizer.apply([tf.constant([1.0])], [w])

    step()
    optimizer.learning_rate = 0.25  # seen by what has been traced
    step()
    optimizer.learning_rate.assign(0.125)
    step()
    assert float(optimizer.learning_rate) == 0.125
    assert w.numpy().tolist() == [1 - 0.5 - 0.25 - 0.125]
    with pytest.raises(ValueError, match="learning_rate"):
        optimizer.learning_rate = -1.0
    assert float(optimizer.learning_rate) == 0.125


def test_callable_learning_rate():
    rates = iter([0.5, 0.25])
    optimizer = tf_graft.SGD(lambda: next(rates))
    w = tf.Variable([1.0])
    optimizer.build([w])
    optimizer.apply([tf.constant([1.0])], [w])
    optimizer.apply([tf.constant([1.0])], [w])
    assert w.numpy().tolist() == [0.25]


SCHEDULES = {
    "ours": lambda: tf_graft.schedules.PolyDecay(0.5, 4, power=1.0),
    "keras": lambda: keras.optimizers.schedules.PolynomialDecay(0.5, 4, 0.0),
}


@pytest.mark.parametrize(
    ("kind", "accumulation", "graph"),
    [
        (kind, n, (i + j) % 2 == 1)
        for i, kind in enumerate(SCHEDULES)
        for j, n in enumerate((None, 3))
    ],
)
def test_a_schedule_sees_updates(kind, accumulation, graph):
    """Not micro-steps: the rates are 0.5, 0.375, 0.25 with and without accumulation."""
    optimizer = tf_graft.SGD(SCHEDULES[kind](), gradient_accumulation_steps=accumulation)
    w = tf.Variable([0.0])
    optimizer.build([w])

    def step():
        optimizer.apply([tf.constant([1.0])], [w])

    step = tf.function(step) if graph else step
    for _ in range(3 * (accumulation or 1)):
        step()
    np.testing.assert_allclose(w.numpy(), [-(0.5 + 0.375 + 0.25)], rtol=1e-6)
    assert float(optimizer.learning_rate) == pytest.approx(0.125)
    assert int(optimizer.iterations.numpy()) == 3
    with pytest.raises(TypeError):
        optimizer.learning_rate = 0.1


# Entry points.


def test_apply_gradients_returns_iterations():
    w = tf.Variable([1.0])
    optimizer = tf_graft.SGD(0.5)
    result = optimizer.apply_gradients([(tf.constant([1.0]), w)])
    assert result is optimizer.iterations
    assert int(result.numpy()) == 1
    assert optimizer.apply_gradients(zip([tf.constant([1.0])], [w], strict=True)) is result
    assert w.numpy().tolist() == [0.0]


def test_apply_without_variables_once_built():
    model = [tf.Variable([1.0]), tf.Variable([[2.0]])]
    optimizer = tf_graft.SGD(0.5)
    with pytest.raises(ValueError, match="built first"):
        optimizer.apply([tf.constant([1.0]), tf.constant([[1.0]])])
    optimizer.build(model)
    optimizer.apply([tf.constant([1.0]), tf.constant([[1.0]])])
    assert [v.numpy().ravel().tolist() for v in model] == [[0.5], [1.5]]


def test_update_step_moves_one_variable_and_counts_nothing():
    first, second = keras.Variable([1.0], name="a"), keras.Variable([1.0], name="b")
    optimizer = tf_graft.SGD(0.5, momentum=0.5, clipnorm=0.1, name="optimizer")
    optimizer.build([first, second])
    optimizer.update_step(tf.constant([1.0]), first, 0.25)
    optimizer.update_step(tf.constant([1.0]), first.value, tf.constant(0.25))
    assert first.numpy().tolist() == [1 - 0.25 - 0.375]
    assert second.numpy().tolist() == [1.0]
    assert int(optimizer.iterations.numpy()) == 0


def test_missing_gradient_warns_and_leaves_alone():
    used, unused = keras.Variable([1.0], name="used"), keras.Variable([1.0], name="unused")
    optimizer = tf_graft.Adam(0.5, weight_decay=0.5, use_ema=True, name="optimizer")
    optimizer.build([used, unused])
    before = samples.state_of(optimizer, unused)
    with pytest.warns(UserWarning, match="no gradient for unused; left alone"):
        optimizer.apply([tf.constant([1.0]), None], [used, unused])
    after = samples.state_of(optimizer, unused)
    for path in before:
        if path.startswith("unused") or path == "model 0":
            assert after[path].tobytes() == before[path].tobytes(), path
    assert int(optimizer.iterations.numpy()) == 1


@pytest.mark.slow
def test_clone_from_config():
    schedule = tf_graft.schedules.PolyDecay(0.5, 4)
    original = tf_graft.Adam(schedule, amsgrad=True, clipnorm=0.5, sparse="exact")
    fitted(original)
    clone = tf_graft.Adam.from_config(original.get_config())
    assert clone.get_config() == original.get_config()
    assert not clone.built
    assert int(clone.iterations.numpy()) == 0
    a, b = fitted(clone)[0], fitted(tf_graft.deserialize(tf_graft.serialize(original)))[0]
    assert_weights(a, weights_of(b), rtol=0, atol=0)
    assert_weights(a, weights_of(fitted(tf_graft.Adam.from_config(original.get_config()))[0]), 0, 0)


def test_keras_get_and_deserialize_know_ours():
    config = keras.optimizers.serialize(tf_graft.Adagrad(0.25))
    again = keras.optimizers.deserialize(config)
    assert type(again) is tf_graft.Adagrad
    assert float(again.learning_rate) == 0.25
    assert type(keras.optimizers.get(config)) is tf_graft.Adagrad


@pytest.mark.parametrize("how", ["argument", "method by name", "method by variable"])
def test_exclude_from_weight_decay_survives(how, tmp_path):
    keras.utils.set_random_seed(0)
    model = dense_net()
    excluded = ["bias$"] if how == "argument" else None
    optimizer = tf_graft.SGD(0.1, weight_decay=0.5, exclude_from_weight_decay=excluded)
    if how == "method by name":
        optimizer.exclude_from_weight_decay(var_names=["bias$"])
    if how == "method by variable":
        biases = [v for v in model.trainable_variables if v.path.endswith("bias")]
        optimizer.exclude_from_weight_decay(var_list=biases)
    model.compile(optimizer=optimizer, loss="mse")
    optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    clone = dense_net()
    copied = tf_graft.SGD.from_config(optimizer.get_config())
    for net, decaying in ((model, optimizer), (loaded, loaded.optimizer), (clone, copied)):
        net.set_weights([np.ones(w.shape) for w in net.get_weights()])
        variables = net.trainable_variables
        decaying.apply([tf.zeros(v.shape) for v in variables], variables)
        found = {v.path.split("/")[-1]: float(v.numpy().ravel()[0]) for v in variables}
        assert found == {"bias": 1.0, "kernel": pytest.approx(0.95)}


# What Keras shows.


def test_variable_names_and_paths():
    """`<optimizer>/<variable path>/<role>`."""
    optimizer = tf_graft.Adam(
        0.1, name="mine", use_ema=True, gradient_accumulation_steps=2, amsgrad=True
    )
    optimizer.build(dense_net().trainable_variables)
    paths = [v.path for v in optimizer.variables]
    assert len(set(paths)) == len(paths)
    own = {p for p in paths if p.count("/") == 1}
    counters = ("iteration", "skipped_steps", "micro_steps", "spoiled_micro_steps")
    assert own == {"mine/learning_rate", *(f"mine/{counter}" for counter in counters)}
    roles = "momentum velocity velocity_hat average average_step"
    roles += " gradient_accumulator accumulated_rows"
    model = [f"{layer}/{v}" for layer in ("hidden", "head") for v in ("kernel", "bias")]
    assert set(paths) - own == {f"mine/{v}/{role}" for v in model for role in roles.split()}


@pytest.mark.slow
def test_summary_counts_the_optimizers_parameters():
    model, _ = fitted(tf_graft.Adam(0.1))
    lines: list[str] = []
    model.summary(print_fn=lambda line, **_: lines.append(line))
    (line,) = [x for text in lines for x in text.splitlines() if "Optimizer params" in x]
    count = sum(int(np.prod(v.shape)) for v in model.optimizer.variables)
    assert count == 2 * 21 + 4
    assert f"{count} " in line


REFUSED = {
    "child": (
        lambda: tf_graft.LARC("adam"),
        lambda optimizer, value: setattr(optimizer.optimizer, "clipnorm", value),
        1.0,
    ),
    "center": (
        lambda: tf_graft.AGN("sgd", None, 2, center_optimizer="adam"),
        lambda optimizer, value: setattr(optimizer.center_optimizer, "count_rows", value),
        ["head"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("metrics", [[], ["mae"]], ids=["no metrics", "metrics"])
def test_fit_after_a_refusal(name, metrics):
    """The first `fit` is refused; once the argument is set right, the model trains."""
    make, change, wrong = REFUSED[name]
    optimizer = make()
    change(optimizer, wrong)
    model = dense_net()
    model.compile(optimizer, "mse", metrics=metrics)
    with pytest.raises(ValueError, match=r"clipnorm|count_rows"):
        model.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    change(optimizer, None)
    first = weights_of(model)
    losses = model.fit(X, Y, batch_size=4, epochs=3, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert int(optimizer.iterations.numpy()) == 18
    expected = dense_net()
    expected.set_weights(first)
    expected.compile(make(), "mse")
    expected.fit(X, Y, batch_size=4, epochs=3, shuffle=False, verbose=0)
    assert_weights(model, weights_of(expected), rtol=0, atol=0)


@pytest.mark.slow
def test_frozen_layer_and_compiled_again():
    model, _ = fitted(tf_graft.Adam(0.05))
    frozen = model.get_layer("hidden").get_weights()
    head = model.get_layer("head").get_weights()
    model.get_layer("hidden").trainable = False
    model.compile(optimizer=tf_graft.Adam(0.05), loss="mse")
    model.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    for a, b in zip(model.get_layer("hidden").get_weights(), frozen, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(model.get_layer("head").get_weights()[0], head[0])
    assert len([v for v in model.optimizer.variables if v.path.count("/") > 1]) == 4
    # Thawed, with the same optimizer: it adds state.
    model.get_layer("hidden").trainable = True
    model.compile(optimizer=model.optimizer, loss="mse")
    model.fit(X, Y, batch_size=4, verbose=0)
    assert not np.array_equal(model.get_layer("hidden").get_weights()[0], frozen[0])


@pytest.mark.slow
def test_fewer_variables_with_the_same_optimizer():
    """Freezing a layer and compiling again with the optimizer at hand keeps its state."""
    optimizer = tf_graft.Adam(0.05)
    model, _ = fitted(optimizer)
    model.get_layer("hidden").trainable = False
    model.compile(optimizer=optimizer, loss="mse")
    before = model.get_layer("hidden").get_weights()
    model.fit(X, Y, batch_size=4, verbose=0)
    np.testing.assert_array_equal(model.get_layer("hidden").get_weights()[0], before[0])
    assert int(optimizer.iterations.numpy()) == 12


@pytest.mark.slow
def test_one_optimizer_for_two_models_is_refused():
    optimizer = tf_graft.Adam(0.05)
    fitted(optimizer)
    with pytest.raises(ValueError, match=r"other variables|not one of"):
        fitted(optimizer)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_swapping_half_precision_weights_is_refused_with_the_way_out(dtype):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile(tf_graft.SGD(0.01, use_ema=True), "mse")
        x, y = np.ones((8, 4), "float32"), np.ones((8, 2), "float32")
        with pytest.raises(TypeError, match=rf"SwapEMAWeights cannot swap a variable of {dtype}"):
            model.fit(
                x,
                y,
                verbose=0,
                validation_data=(x, y),
                callbacks=[keras.callbacks.SwapEMAWeights()],
            )
    finally:
        keras.config.set_dtype_policy(before)
