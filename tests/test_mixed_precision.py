"""`MixedPrecision`: the steps are those of the optimizer alone, and overflows leave no trace."""

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft
from support.replicas import mirrored, per_replica
from support.samples import assert_same_state, gradients, slices, state_of, variables, weights
from support.saving import WAYS, compiled, everything, train
from tf_graft import MixedPrecision, scaling

SHAPES = {"table": (5, 2), "kernel": (4, 3), "bias": ()}
IDS = [1, 1, 3]
SCALE = 2.0**10
BAD = {"inf": np.inf, "nan": np.nan}
OPTIMIZERS = {
    "sgd": lambda **kw: tf_graft.SGD(0.5, **kw),
    "adagrad": lambda **kw: tf_graft.Adagrad(0.5, **kw),
    "adam": lambda **kw: tf_graft.Adam(0.5, **kw),
    "graft": lambda **kw: tf_graft.AdaGraft(tf_graft.SGD(0.5), tf_graft.Adam(0.1), **kw),
    "keras_sgd": lambda **kw: keras.optimizers.SGD(0.5, momentum=0.9, **kw),
    "keras_nadam": lambda **kw: keras.optimizers.Nadam(0.5, **kw),
}
EXECUTIONS = {
    "eager": lambda step: step,
    "function": tf.function,
    "xla": functools.partial(tf.function, jit_compile=True),
}
HALF = ("float16", "bfloat16")


def problem(dtype="float32"):
    return list(variables(weights(SHAPES), dtype).values())


def batch(seed=2, scale=1.0, dtype="float32", bad=None, where="kernel"):
    """Gradients of a loss times `scale`; the table's are of some rows, one of them twice."""
    values = gradients(1, SHAPES | {"table": (len(IDS), 2)}, seed=seed)[0]
    # few enough bits that the product is the same in half precision
    values = {path: np.round(value * 8) / 8 * scale for path, value in values.items()}
    if bad is not None:
        values[where] = np.array(values[where])
        values[where][(-1,) * values[where].ndim] = bad
    result = {path: tf.cast(value, dtype) for path, value in values.items()}
    result["table"] = slices(IDS, result["table"])
    return list(result.values())


def stepper(optimizer, model, execution="eager"):
    optimizer.build(model)

    @EXECUTIONS[execution]
    def step(table, kernel, bias):
        optimizer.apply([tf.IndexedSlices(table, tf.constant(IDS, tf.int64)), kernel, bias], model)

    return lambda grads: step(grads[0].values, *grads[1:])


def without_scaler(state):
    return {
        name.replace("optimizer/", "", 1): value
        for name, value in state.items()
        if not name.startswith("loss_scale/")
    }


# The steps.


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for i, name in enumerate(OPTIMIZERS)
        for j, dtype in enumerate(("float16", "float32", "bfloat16"))
        if (i + j) % 2 == 0
    ],
)
def test_steps_are_the_optimizers_own(name, dtype):
    """A scale that is a power of two costs no digit: bit for bit."""
    mixed, alone = problem(dtype), problem(dtype)
    outer = MixedPrecision(OPTIMIZERS[name](), SCALE)
    inner = tf_graft.wrap(OPTIMIZERS[name]())
    scaled, plain = stepper(outer, mixed), stepper(inner, alone)
    for seed in range(3):
        scaled(batch(seed, SCALE, dtype))
        plain(batch(seed, dtype=dtype))
    actual, expected = (
        {v.path.rpartition("/")[2]: v.numpy() for v in model} for model in (mixed, alone)
    )
    assert_same_state(actual, expected)
    states = [without_scaler(state_of(o, *m)) for o, m in ((outer, mixed), (inner, alone))]
    shared = states[1].keys() - {"learning_rate"}  # which is under the optimizer's name
    assert len(shared) >= 3
    assert_same_state(*[{name: state[name] for name in shared} for state in states])
    assert int(outer.iterations.numpy()) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("execution", "dtype", "scale"),
    [
        ("function", "float32", SCALE),
        ("function", "float16", "logmax"),
        pytest.param("function", "float32", "backoff", marks=pytest.mark.slow),
        pytest.param("xla", "float16", "backoff", marks=pytest.mark.slow),
        pytest.param("xla", "float32", "logmax", marks=pytest.mark.slow),
    ],
)
def test_executions_agree(execution, dtype, scale):
    """An overflow included."""

    def run(how):
        model = problem(dtype)
        optimizer = MixedPrecision(OPTIMIZERS["adam"](), scale)
        step = stepper(optimizer, model, how)
        for seed in range(4):
            step(batch(seed, 16.0, dtype, bad=np.inf if seed == 1 else None))
        return state_of(optimizer, *model)

    actual, expected = run(execution), run("eager")
    assert actual["skipped_steps"] == 1
    assert actual["iteration"] == 3
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        rtol = 1e-5 if execution == "xla" or scale == "logmax" else 0
        np.testing.assert_allclose(
            actual[name].astype("float64"), value.astype("float64"), rtol=rtol, atol=1e-7
        )


def test_the_scale_is_in_use_from_loss_to_gradient():
    w = tf.Variable([1.0, -2.0])
    optimizer = MixedPrecision(tf_graft.SGD(0.5), "backoff")
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(tf.reduce_sum(w * w))
    assert float(loss) == 5 * 2.0**14
    optimizer.apply(tape.gradient(loss, [w]), [w])
    np.testing.assert_array_equal(w.numpy(), [0.0, 0.0])


def test_the_default_scale_is_dynamic():
    """As with Keras' own optimizer, which `compile` wraps for float16."""
    optimizer, w = MixedPrecision("sgd"), tf.Variable([1.0])
    assert float(optimizer.loss_scale()) == 2.0**14
    optimizer.apply([tf.constant([np.inf])], [w])
    assert float(optimizer.loss_scale()) == 2.0**13


def test_half_precision_losses_are_scaled_in_float32():
    """2^14 times 30 is beyond float16."""
    loss = MixedPrecision("sgd", "backoff").scale_loss(tf.constant(30.0, tf.float16))
    assert loss.dtype == tf.float32
    assert float(loss) == 30 * 2.0**14


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALF)
def test_masters_keep_what_half_precision_cannot(dtype):
    w = tf.Variable(tf.ones([3], dtype))
    optimizer = MixedPrecision(tf_graft.SGD(0.1), 1024)
    for _ in range(200):
        optimizer.apply([tf.fill([3], tf.cast(0.001 * 1024, dtype))], [w])
    step = 0.1 * float(tf.cast(0.001 * 1024, dtype)) / 1024
    ulp = {"float16": 2**-11, "bfloat16": 2**-8}[dtype]
    np.testing.assert_allclose(tf.cast(w, tf.float32), 1 - 200 * step, atol=ulp / 2)
    assert float(w[0]) < 1


def test_clipping_sees_unscaled_gradients_and_the_scaler_sees_them_unclipped():
    w = tf.Variable([0.0, 0.0])
    optimizer = MixedPrecision(
        tf_graft.SGD(1.0, global_clipnorm=1.0), scaling.LogMaxScaler(beta1=0.5, beta2=0.5)
    )
    optimizer.apply([tf.constant([300.0, 400.0])], [w])
    np.testing.assert_allclose(w.numpy(), [-0.6, -0.8], rtol=1e-6)
    # the largest magnitude is 400, not 0.8, of which the scale would be 2^14
    np.testing.assert_allclose(float(optimizer.loss_scale()), 2.0**16 / 400, rtol=1e-5)


def test_scale_moves_once_an_update():
    model = problem()
    optimizer = MixedPrecision(
        tf_graft.SGD(0.5, gradient_accumulation_steps=4), {"name": "backoff", "step_window": 1}
    )
    assert optimizer.gradient_accumulation_steps == 4
    step = stepper(optimizer, model)
    for micro_step in range(8):
        step(batch(micro_step, bad=np.inf if micro_step == 1 else None))
    assert float(optimizer.loss_scale()) == 2.0**14  # halved once, doubled once
    assert int(optimizer.skipped_steps.numpy()) == 1
    assert int(optimizer.iterations.numpy()) == 1


# A step that overflows leaves no trace.

ALL_ON = {
    "use_ema": True,
    "ema_momentum": 0.7,
    "ema_overwrite_frequency": 2,
    "weight_decay": 0.1,
    "global_clipnorm": 0.5,
}


def assert_no_trace(after, before, micro_steps=0):
    for counter, more in (("skipped_steps", 1), ("micro_steps", micro_steps)):
        assert after.pop(counter) == before.pop(counter) + more
    assert after.pop("loss_scale/scale") == before.pop("loss_scale/scale") / 2
    for state in (after, before):
        for role in ("iteration", "last_overflow_iteration"):
            state.pop(f"loss_scale/{role}")
    assert_same_state(after, before)


@pytest.mark.parametrize(
    ("execution", "bad"),
    [
        *(("eager", bad) for bad in BAD),
        ("function", "nan"),
        ("xla", "inf"),
    ],
)
def test_an_overflow_leaves_no_trace(bad, execution):
    model = problem("float16")
    optimizer = MixedPrecision(tf_graft.Adam(0.5, **ALL_ON), "backoff")
    step = stepper(optimizer, model, execution)
    for where in SHAPES:
        step(batch(1, dtype="float16"))
        before = state_of(optimizer, *model)
        step(batch(2, dtype="float16", bad=BAD[bad], where=where))
        assert_no_trace(state_of(optimizer, *model), before)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "execution"), [("float32", "function"), ("float16", "eager")])
def test_an_overflow_in_one_micro_batch_of_four_leaves_no_trace(dtype, execution):
    """In each of the four in turn."""
    model = problem(dtype)
    optimizer = MixedPrecision(
        tf_graft.Adam(0.5, gradient_accumulation_steps=4, **ALL_ON), "backoff"
    )
    step = stepper(optimizer, model, execution)

    def steps(bads):
        for micro_step, bad in enumerate(bads):
            where = ("table", "kernel", "bias", "table")[micro_step]
            step(batch(micro_step, dtype=dtype, bad=bad, where=where))
        return state_of(optimizer, *model)

    good = [None] * 4
    before = steps(good)
    for at in range(4):
        assert before["iteration"] == at + 1
        assert_no_trace(steps([*good[:at], np.inf, *good[at + 1 :]]), before, micro_steps=4)
        after = steps(good)
        assert (after["model 1"] != before["model 1"]).any()
        before = after


def on_replicas(optimizer, model, graph=False):
    """Takes, for each replica, the values of the gradients."""

    def replica_step(values):
        table, *others = values
        optimizer.apply([tf.IndexedSlices(table, tf.constant(IDS, tf.int64)), *others], model)

    def step(*values):
        mirrored().run(replica_step, args=(values,))

    step = tf.function(step) if graph else step

    def apply(*batches):
        columns = zip(*[[b[0].values, *b[1:]] for b in batches], strict=True)
        step(*[per_replica(column) for column in columns])

    return apply


def replicated(make, dtype="float32"):
    with mirrored().scope():
        model, optimizer = problem(dtype), make()
        optimizer.build(model)
    return optimizer, model


@pytest.mark.slow
@pytest.mark.parametrize("graph", [False, True])
def test_an_overflow_on_either_replica_leaves_no_trace(graph):
    optimizer, model = replicated(lambda: MixedPrecision(tf_graft.Adam(0.5, **ALL_ON), "backoff"))
    apply = on_replicas(optimizer, model, graph)
    for replica, where in itertools.product((0, 1), SHAPES if graph else ["kernel"]):
        apply(batch(1), batch(2))
        before = state_of(optimizer, *model)
        bads = [np.inf if r == replica else None for r in range(2)]
        apply(*[batch(3 + r, bad=bad, where=where) for r, bad in enumerate(bads)])
        assert_no_trace(state_of(optimizer, *model), before)
        for variable in (*model, *optimizer.variables):  # on both replicas
            first, second = mirrored().experimental_local_results(variable.value)
            np.testing.assert_array_equal(first.numpy(), second.numpy())


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "scale"), [("float32", "logmax"), ("float16", SCALE)])
def test_two_replicas_equal_one_device(dtype, scale):
    options = {"gradient_accumulation_steps": 2}
    optimizer, model = replicated(
        lambda: MixedPrecision(OPTIMIZERS["adam"](**options), scale, name="optimizer"), dtype
    )
    alone = problem(dtype)
    one = MixedPrecision(OPTIMIZERS["adam"](**options), scale, name="optimizer")
    apply = on_replicas(optimizer, model, graph=True)
    for seed in range(4):
        first, second = (batch(2 * seed + r, 4.0, dtype) for r in range(2))
        apply(first, second)
        both = tf.concat([first[0].values, second[0].values], 0)
        rest = [
            tf.cast(a, "float32") + tf.cast(b, "float32")
            for a, b in zip(first[1:], second[1:], strict=True)
        ]
        one.apply([slices(IDS * 2, both), *rest], alone)
    actual, expected = state_of(optimizer, *model), state_of(one, *alone)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            actual[name].astype("float64"), value.astype("float64"), rtol=1e-5, atol=1e-6
        )


# In Keras.


@pytest.fixture
def mixed_float16():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(before)


def classifier(optimizer, **options):
    model = keras.Sequential(
        [keras.Input([8]), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3)]
    )
    model.compile(
        optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options
    )
    return model


def data(count=96):
    random = np.random.default_rng(3)
    x = random.normal(size=(count, 8)).astype("float32")
    return x, np.argmax(x[:, :3], -1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"jit_compile": True}, marks=pytest.mark.slow),
        pytest.param({"steps_per_execution": 3}, marks=pytest.mark.slow),
    ],
)
def test_fit_under_mixed_float16(mixed_float16, options):
    """The first scales overflow; Keras does not put its own scaling around it."""
    optimizer = MixedPrecision(tf_graft.Adam(0.02), scaling.BackoffScaler(scale_max=2.0**24))
    model = classifier(optimizer, **options)
    assert model.optimizer is optimizer
    logs = model.fit(
        *data(), batch_size=16, epochs=8, verbose=0, callbacks=[scaling.LossScaleLogger()]
    ).history
    assert logs["loss"][-1] < 0.6 * logs["loss"][0]
    skipped = int(optimizer.skipped_steps.numpy())
    assert 0 < skipped < 20
    assert logs["skipped_steps"][-1] == skipped
    assert logs["loss_scale"][-1] == float(optimizer.loss_scale()) == 2.0 ** (24 - skipped)
    assert int(optimizer.iterations.numpy()) == 48 - skipped
    assert all(v.dtype == "float32" for v in model.trainable_variables)
    assert not [v.path for v in optimizer.variables if v.path.endswith("/master")]


@pytest.mark.slow
def test_fit_with_half_precision_variables():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float16")
    try:
        model = classifier(MixedPrecision(tf_graft.Adam(0.02), "logmax"))
    finally:
        keras.config.set_dtype_policy(before)
    logs = model.fit(*data(), batch_size=16, epochs=8, verbose=0).history
    assert all(v.dtype == "float16" for v in model.trainable_variables)
    assert logs["loss"][-1] < 0.6 * logs["loss"][0]
    assert float(model.optimizer.loss_scale()) > 1


@pytest.mark.slow
def test_fit_on_two_replicas(mixed_float16):
    with mirrored().scope():
        optimizer = MixedPrecision(tf_graft.Adam(0.02), scaling.BackoffScaler(scale_max=2.0**24))
        model = classifier(optimizer)
    x, y = data()
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    logs = model.fit(batches, epochs=8, verbose=0, shuffle=False).history
    assert logs["loss"][-1] < 0.6 * logs["loss"][0]
    skipped = int(optimizer.skipped_steps.numpy())
    assert 0 < skipped < 20
    assert float(optimizer.loss_scale()) == 2.0 ** (24 - skipped)


def test_nothing_of_keras_class_is_in_use():
    """It stands among the bases for `compile` only: what it defines, ours define before it."""
    keras_class = keras.optimizers.LossScaleOptimizer
    for name in vars(keras_class):
        if name.startswith("__") and name != "__init__":
            continue
        owner = next(cls for cls in MixedPrecision.__mro__ if name in vars(cls))
        unused = name == "check_finite" or name.startswith(("stateless", "_stateless", "_tf_apply"))
        unused |= name.startswith(("_common_apply", "_stateful", "_unscale", "_api_export"))
        assert owner is not keras_class or unused, name
    assert not hasattr(MixedPrecision("sgd"), "inner_optimizer")


@pytest.mark.slow
def test_swap_ema_weights_and_reduce_lr_on_plateau(mixed_float16):
    x, y = data()
    optimizer = MixedPrecision(tf_graft.Adam(0.02, use_ema=True, ema_momentum=0.5), "backoff")
    model = classifier(optimizer)
    model.fit(
        *(x, y),
        batch_size=16,
        epochs=3,
        verbose=0,
        validation_data=(x, y),
        callbacks=[
            keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
            keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=0, min_delta=1e9),
        ],
    )
    assert float(optimizer.learning_rate.numpy()) == pytest.approx(0.02 / 4)
    assert float(optimizer.optimizer.learning_rate.numpy()) == pytest.approx(0.02 / 4)


def test_keras_own_loss_scaling_around_it_is_refused():
    with pytest.raises(ValueError, match=r"^MixedPrecision: it scales the loss itself and must"):
        keras.optimizers.LossScaleOptimizer(MixedPrecision("sgd", "backoff"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: MixedPrecision("sgd"),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
    ],
)
def test_it_must_be_the_outermost(make):
    name = type(make()).__name__
    with pytest.raises(
        TypeError, match=rf"^MixedPrecision\(optimizer={name}\(...\)\): .* put {name} around Mixed"
    ):
        MixedPrecision(make())
    with pytest.raises(TypeError, match=rf"^AdaGraft\(magnitude_optimizer={name}"):
        tf_graft.AdaGraft(make(), "adam")


def test_the_logger_refuses_other_optimizers():
    model = classifier(tf_graft.Adam(0.02))
    with pytest.raises(TypeError, match=r"^LossScaleLogger: Adam has no loss scale; compile"):
        model.fit(*data(16), verbose=0, callbacks=[scaling.LossScaleLogger()])


# Saving.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "way"), list(zip(itertools.cycle(["logmax", "backoff"]), WAYS, strict=False))
)
def test_resume_bit_for_bit(scale, way, tmp_path):
    def make():
        options = {"gradient_accumulation_steps": 2, "use_ema": True, "ema_momentum": 0.7}
        return MixedPrecision(tf_graft.Adam(0.05, **options), scale, name="optimizer")

    def spoil(model):
        wrong = [tf.fill(v.shape, np.inf) for v in model.trainable_variables]
        model.optimizer.apply(wrong, model.trainable_variables)

    undisturbed = compiled(make())
    train(undisturbed, 0, 4)
    spoil(undisturbed)
    resumed = way(undisturbed, tmp_path)(compiled(make()))
    assert_same_state(everything(resumed), everything(undisturbed))
    assert float(resumed.optimizer.loss_scale()) == float(undisturbed.optimizer.loss_scale())
    for model in (undisturbed, resumed):
        train(model, 4, 9)
    expected = everything(undisturbed)
    assert_same_state(everything(resumed), expected)
    assert expected["skipped_steps"] == 1
    assert expected["iteration"] == 4


def test_state_of_another_scaler_is_refused(tmp_path):
    model = compiled(MixedPrecision(tf_graft.SGD(0.1), "backoff"))
    train(model, 0, 1)
    store: dict = {}
    model.optimizer.save_own_variables(store)
    other = MixedPrecision(tf_graft.SGD(0.1), "logmax")
    other.build(model.trainable_variables)
    with pytest.raises(tf_graft.CheckpointError, match="entries differ"):
        other.load_own_variables(store)


# Arguments.


@pytest.mark.parametrize("scale", [None, 8, 8.0, np.float32(8), "Backoff", "logmax"], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_config_round_trip(name, scale):
    optimizer = MixedPrecision(
        OPTIMIZERS[name](global_clipnorm=0.5, use_ema=True, gradient_accumulation_steps=3), scale
    )
    config = tf_graft.serialize(optimizer)
    copy = tf_graft.deserialize(config)
    assert tf_graft.serialize(copy) == config
    assert type(copy.scaler) is type(optimizer.scaler)
    assert copy.scaler.get_config() == optimizer.scaler.get_config()


def test_options_are_lifted():
    inner = tf_graft.Adam(0.1, clipnorm=2.0, use_ema=True, ema_momentum=0.8, sparse="exact")
    outer = MixedPrecision(inner, 8)
    assert (outer.clipnorm, outer.use_ema, outer.ema_momentum, outer.sparse) == (
        2.0,
        True,
        0.8,
        "exact",
    )
    assert (inner.clipnorm, inner.use_ema, inner.sparse) == (None, False, "lazy")
    kept = MixedPrecision(tf_graft.Adam(0.1, clipnorm=2.0, weight_decay=0.1), 8, clipnorm=1.0)
    assert (kept.clipnorm, kept.weight_decay, kept.optimizer.weight_decay) == (1.0, 0.1, 0.1)


def test_the_rate_is_the_optimizers():
    optimizer = MixedPrecision(tf_graft.SGD(0.5), 8)
    w = tf.Variable([0.0])
    optimizer.learning_rate = 0.25
    optimizer.apply([tf.constant([8.0])], [w])
    np.testing.assert_array_equal(w.numpy(), [-0.25])
    assert (
        float(MixedPrecision(tf_graft.SGD(0.5), 8, learning_rate=0.125).learning_rate.numpy())
        == 0.125
    )


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"loss_scale": True}, TypeError, r"scaling\.get\(True\)"),
        ({"loss_scale": 0}, ValueError, r"FixedScaler\(loss_scale=0\)"),
        ({"loss_scale": -1.0}, ValueError, r"FixedScaler\(loss_scale=-1\.0\)"),
        ({"loss_scale": float("nan")}, ValueError, r"FixedScaler\(loss_scale=nan\)"),
        ({"loss_scale": "back"}, ValueError, r"did you mean 'backoff'"),
        ({"loss_scale_factor": 8}, ValueError, r"^MixedPrecision\(loss_scale_factor=8\): the loss"),
        ({"optimizer": tf_graft.SGD(loss_scale_factor=8)}, ValueError, "would be scaled twice"),
        ({"optimizer": 3}, TypeError, r"^get\(3\)"),
        ({"optimizer": "adamm"}, ValueError, "did you mean 'adam'"),
        ({"losscale": 3}, TypeError, "losscale"),
    ],
)
def test_refuses(kwargs, error, message):
    with pytest.raises(error, match=message):
        MixedPrecision(**({"optimizer": "sgd"} | kwargs))


def test_by_name_and_flat_config():
    optimizer = tf_graft.get(
        {
            "name": "mixed_precision",
            "optimizer": {"name": "sgd", "momentum": 0.9},
            "loss_scale": {"name": "backoff", "step_window": 10},
            "learning_rate": 0.5,
        }
    )
    assert (optimizer.optimizer.momentum, optimizer.scaler.step_window) == (0.9, 10)
    assert "mixed_precision" in tf_graft.list_optimizers()


# Penalties on the masters.


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_regularization_is_computed_on_the_master(dtype):
    """1e-6 * 2 * w is nothing in float16 beside a scaled gradient, and it adds up."""
    layer = keras.layers.Dense(
        1, use_bias=False, dtype=dtype, kernel_regularizer=scaling.MasterRegularizer("l2")
    )
    layer.build([None, 2])
    kernel = layer.kernel
    kernel.assign(np.array([[1.0], [-2.0]]))
    optimizer = MixedPrecision(tf_graft.SGD(0.5), 1024)
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.add_n(layer.losses))
        grads = tape.gradient(loss, [kernel.value])
        grads = [tf.zeros_like(kernel.value) if g is None else g for g in grads]
        optimizer.apply(grads, [kernel])
    factor = (1 - 0.5 * 2 * 0.01) ** 2
    expected = np.array([[1.0], [-2.0]]) * factor
    state = state_of(optimizer, kernel)
    found = state["model 0"] if dtype == "float32" else state[f"{kernel.path}/master"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_regularization_of_an_embedding_reaches_every_row():
    regularizer = scaling.MasterRegularizer(keras.regularizers.L2(0.5))
    table = keras.Variable(np.ones((3, 2)), dtype="float16", name="table")
    table.regularizer = regularizer
    optimizer = MixedPrecision(tf_graft.SGD(0.5), 8)
    optimizer.apply([slices([1], tf.zeros([1, 2], tf.float16))], [table])
    np.testing.assert_array_equal(table.numpy(), np.full((3, 2), 0.5))


def test_the_regularizer_is_saved():
    regularizer = scaling.MasterRegularizer("l2")
    config = keras.regularizers.serialize(regularizer)
    copy = keras.regularizers.deserialize(config)
    assert keras.regularizers.serialize(copy) == config
    assert float(copy(tf.constant([2.0]))) == pytest.approx(0.04)
    assert float(copy(tf.constant([2.0], tf.float16))) == 0


# The checks notice what they are for.


def test_notices_a_trace():
    model = problem()
    optimizer = MixedPrecision(tf_graft.Adam(0.5), "backoff", nonfinite="apply")
    step = stepper(optimizer, model)
    step(batch(1))
    before = state_of(optimizer, *model)
    step(batch(2, bad=np.inf))
    with pytest.raises(AssertionError):
        assert_no_trace(state_of(optimizer, *model), before)
