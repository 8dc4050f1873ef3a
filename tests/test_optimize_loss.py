"""`tg.optimize_loss` and what goes with it; `test_openseq2seq.py` has the recordings."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support.replicas import mirrored, per_replica
from tf_graft import scaling
from tf_graft.core import tensorboard
from tf_graft.openseq2seq.optimizers import NAMES as OPTIMIZERS
from tf_graft.openseq2seq.summaries import NAMES as SUMMARIES

X = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.25], [-2.0, 1.0]], "float32")
Y = np.array([1.0, -1.0, 0.5, 2.0], "float32")


def problem(dtype="float32"):
    """A linear model, a scalar among its variables, and one that the loss does not depend on."""
    w = tf.Variable([0.5, -0.25], dtype=dtype, name="linear/w")
    b = tf.Variable(0.125, dtype=dtype, name="linear/b")
    unused = tf.Variable([1.0], dtype=dtype, name="unused")

    def loss(x, y):
        weights, bias = (tf.cast(tf.convert_to_tensor(v), tf.float32) for v in (w, b))
        return tf.reduce_mean((tf.linalg.matvec(x, weights) + bias - y) ** 2)

    return [w, b, unused], loss


def gradient(w, b, x=X, y=Y):
    error = x @ w + b - y
    return 2 * x.T @ error / len(x), 2 * error.mean()


def make(optimizer="SGD", params=None, rate=0.1, dtype="float32", **options):
    variables, loss = problem("float32" if dtype == "mixed" else dtype)
    return tg.optimize_loss(loss, variables, optimizer, params, rate, dtype, **options)


# What it returns.


@pytest.mark.slow
def test_the_loss_is_of_before_the_update():
    step = make()
    for _ in range(3):
        w, b = (v.numpy() for v in step.variables[:2])
        loss, metrics = step(X, Y)
        assert float(loss) == pytest.approx(((X @ w + b - Y) ** 2).mean(), rel=1e-6)
        g, h = gradient(w, b)
        np.testing.assert_allclose(step.variables[0].numpy(), w - 0.1 * g, rtol=1e-5)
        norm = np.sqrt((g**2).sum() + h**2)
        assert float(metrics["global_gradient_norm"]) == pytest.approx(norm, rel=1e-6)
        assert metrics.keys() == {"learning_rate", "global_gradient_norm", "loss_scale"}
    assert int(step.optimizer.iterations.numpy()) == 3
    np.testing.assert_array_equal(step.variables[2].numpy(), [1.0])


@pytest.mark.slow
def test_it_is_compiled_once():
    traces = []
    variables, loss = problem()

    def counted(x, y):
        traces.append(1)
        return loss(x, y)

    step = tg.optimize_loss(counted, variables, "Adam", {}, 0.1, clip_gradients=1.0)
    for _ in range(4):
        step(tf.constant(X), tf.constant(Y))
    assert len(traces) == 1


def test_the_loss_may_branch_on_tensors():
    w = tf.Variable([1.0])

    def loss(x):
        if x > 0:  # noqa: SIM108
            value = tf.reduce_sum(w * x)
        else:
            value = -tf.reduce_sum(w * x)
        return value

    step = tg.optimize_loss(loss, [w], "SGD", learning_rate_decay_fn=1)
    step(tf.constant(0.25))
    step(tf.constant(-0.5))
    np.testing.assert_array_equal(w.numpy(), [0.25])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_all_summaries(dtype):
    clip = 0.75
    step = make(dtype=dtype, summaries=SUMMARIES, clip_gradients=clip)
    w, b = (v.numpy().astype("float32") for v in step.variables[:2])
    _, metrics = step(X, Y)
    metrics = {name: value.numpy() for name, value in metrics.items()}
    g, h = gradient(w, b)
    norm = np.sqrt((g**2).sum() + h**2)
    rtol = 1e-6 if dtype == "float32" else 2e-3
    expected = {
        "learning_rate": 0.1,
        "loss_scale": 1.0,
        "global_gradient_norm": norm,
        "global_clipped_gradient_norm": clip,
        "gradient_norm/linear/w": np.sqrt((g**2).sum()) * clip / norm,
        "gradient_norm/linear/b": abs(h) * clip / norm,
        "gradients/linear/w": g * clip / norm,
        "gradients/linear/b": h * clip / norm,
        "variables/linear/w": w,
        "variables/linear/b": b,
        "variables/unused": [1.0],
        "variable_norm/linear/w": np.sqrt((w**2).sum()),
        "variable_norm/linear/b": abs(b),
        "variable_norm/unused": 1.0,
    }
    assert metrics.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=rtol, err_msg=name)


@pytest.mark.slow
def test_gradient_metrics_are_of_updates():
    """With `iter_size` they are of the mean over the micro-steps, and stand until the next."""
    step = make(iter_size=2, summaries=["global_gradient_norm", "gradients"])
    w, b = (v.numpy() for v in step.variables[:2])
    grads = [gradient(w, b, X[i : i + 2], Y[i : i + 2]) for i in (0, 2)]
    step(X[:2], Y[:2])
    _, metrics = step(X[2:], Y[2:])
    g = (grads[0][0] + grads[1][0]) / 2
    np.testing.assert_allclose(metrics["gradients/linear/w"], g, rtol=1e-6)
    _, after = step(X[:2], Y[:2])
    np.testing.assert_array_equal(after["gradients/linear/w"], metrics["gradients/linear/w"])
    assert int(step.optimizer.iterations.numpy()) == 1
    np.testing.assert_allclose(step.variables[0].numpy(), w - 0.1 * g, rtol=1e-5)


def test_non_finite_gradients_are_reported_and_skipped():
    step = make(summaries=["gradients", "global_gradient_norm"])
    bad = Y.copy()
    bad[0] = np.inf
    before = [v.numpy() for v in step.variables]
    _, metrics = step(X, bad)
    assert not np.isfinite(metrics["global_gradient_norm"].numpy())
    assert np.isfinite(metrics["gradients/linear/w"].numpy()).all()
    for variable, value in zip(step.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert int(step.optimizer.skipped_steps.numpy()) == 1


def test_row_sparse_gradients():
    table = tf.Variable(tf.ones([4, 2]), name="table")
    step = tg.optimize_loss(
        lambda ids, values: tf.reduce_sum(tf.gather(table, ids) * values),
        [table],
        "Adagrad",
        learning_rate_decay_fn=0.5,
        summaries=["gradients", "gradient_norm", "global_gradient_norm"],
        clip_gradients=1.0,
    )
    ids, values = [2, 0, 2], np.array([[3.0, 0], [0, 1.0], [1.0, 2.0]], "float32")
    _, metrics = step(tf.constant(ids), values)
    dense = np.zeros((4, 2))
    np.add.at(dense, ids, values)
    norm = np.sqrt((dense**2).sum())
    np.testing.assert_allclose(metrics["global_gradient_norm"], norm, rtol=1e-6)
    np.testing.assert_allclose(metrics["gradients/table"], dense / norm, rtol=1e-6, atol=1e-7)
    g = dense / norm
    np.testing.assert_allclose(table.numpy(), 1 - 0.5 * g / np.sqrt(0.1 + g**2), rtol=1e-6)


def test_the_rate_after_larc_is_that_of_the_step():
    """Each touched row moves by it: not by the optimizer's own, or with the norm of all rows."""
    table = tf.Variable([[3.0, 4.0], [30.0, 40.0]], name="table")
    bias = tf.Variable([5.0, 2.5], name="bias")
    before = table.numpy(), bias.numpy()
    optimizer = tg.SGD(0.1, learning_rate_multipliers={"bias": 0.1})

    def loss(ids):
        return tf.reduce_sum((tf.gather(table, ids) + bias) * [2.0, 1.0])

    step = tg.optimize_loss(
        loss, [table, bias], optimizer, larc_params={"larc_eta": 0.01}, summaries=["larc_summaries"]
    )
    _, metrics = step(tf.constant([0]))
    gradient = np.array([2.0, 1.0])
    for variable, old in zip((table, bias), before, strict=True):
        rate = metrics[f"larc_final_lr/{variable.name.split(':')[0]}"].numpy()
        moved = (old - variable.numpy()).reshape(-1, 2)
        np.testing.assert_allclose(moved[0], rate * gradient, rtol=1e-4)
        np.testing.assert_array_equal(moved[1:], 0)


@pytest.mark.slow
def test_summaries_are_written(tmp_path):
    step = make(summaries=["learning_rate", "gradients", "global_gradient_norm"], iter_size=2)
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        for _ in range(4):
            step(X, Y)
    (file,) = tmp_path.iterdir()
    found = [
        (value.tag, event.step)
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    ]
    tags = {"train_loss", "learning_rate", "global_gradient_norm"}
    tags |= {"gradients/linear/w", "gradients/linear/b"}
    assert sorted(found) == sorted((tag, n) for tag in tags for n in (0, 1))


def test_without_tensorboard_a_writer_gets_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorboard, "installed", lambda: False)
    make(summaries=["learning_rate"])(X, Y)  # no writer, no warning
    step, writer = make(summaries=["learning_rate"]), tf.summary.create_file_writer(str(tmp_path))
    said = r"no summaries: .* pip install 'tf_graft\[tensorboard"
    with writer.as_default(), pytest.warns(UserWarning, match=said):
        step(X, Y)


# Which optimizer.


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_names(name):
    params = {"AdamW": {"weight_decay": 0.1}, "Momentum": {"momentum": 0.9}}.get(name)
    step = make(name, params, clip_gradients=1.0, iter_size=2)
    assert step.optimizer.global_clipnorm == 1.0
    assert step.optimizer.gradient_accumulation_steps == 2
    before = step.variables[0].numpy()
    for _ in range(2):
        step(X, Y)
    assert (step.variables[0].numpy() != before).all()
    assert params is None or len(params) == 1  # left as it is


def test_tensorflow_1_defaults():
    adam, rms = make("Adam").optimizer, make("RMSProp", {"decay": 0.5}).optimizer
    assert (adam.epsilon, adam.sparse) == (1e-8, "exact")
    assert (rms.rho, rms.epsilon, rms.initial_velocity) == (0.5, 1e-10, 1.0)


def test_classes_instances_and_other_names():
    assert type(make("NovoGrad").optimizer) is tg.NovoGrad
    assert (
        type(
            make(
                "AdaGraft", {"magnitude_optimizer": "sgd", "direction_optimizer": "adam"}
            ).optimizer
        )
        is tg.AdaGraft
    )
    assert make(keras.optimizers.Lion, {"beta_1": 0.5}).optimizer.optimizer.beta_1 == 0.5
    assert type(make("Ftrl").optimizer) is tg.Ftrl
    assert make(tg.SGD, {"momentum": 0.5}).optimizer.momentum == 0.5
    own = tg.Adam(0.5)
    assert make(own, rate=None).optimizer is own
    assert float(own.learning_rate.numpy()) == 0.5
    assert float(make(tg.Adam(0.5), rate=0.25).optimizer.learning_rate.numpy()) == 0.25
    outer = make(tg.Adam(0.5, use_ema=True), rate=None, clip_gradients=2.0, iter_size=3).optimizer
    assert (outer.global_clipnorm, outer.gradient_accumulation_steps, outer.use_ema) == (
        2.0,
        3,
        True,
    )


@pytest.mark.slow
def test_rates():
    def halved(t):
        assert t.dtype == tf.int64
        return 0.5 ** tf.cast(t, tf.float32)

    for rate in (halved, tg.schedules.ExpDecay(1.0, 1, 0.5)):
        step = make(rate=rate, iter_size=2)
        rates = [float(step(X, Y)[1]["learning_rate"]) for _ in range(6)]
        assert rates == [1, 1, 0.5, 0.5, 0.25, 0.25]
    assert float(make(rate=1).optimizer.learning_rate.numpy()) == 1
    with pytest.raises(NotImplementedError, match="cannot be saved with the optimizer"):
        make(rate=halved).optimizer.get_config()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"optimizer": "Adem"}, ValueError, r"Optimizer name should be one of \[.*provided Adem"),
        ({"optimizer": "adam"}, ValueError, r"you provided adam; did you mean 'Adam'\?"),
        (
            {"optimizer": 3},
            TypeError,
            r"optimizer=3\): optimizer must be a name, a class or an optimizer",
        ),
        ({"optimizer": int}, TypeError, "a name, a class or an optimizer"),
        ({"optimizer": "AdamW"}, ValueError, "needs 'weight_decay'"),
        ({"optimizer": "Momentum"}, ValueError, "needs 'momentum'"),
        ({"optimizer": "SGD", "params": {"momntum": 1}}, TypeError, "did you mean momentum"),
        ({"optimizer": tg.SGD(0.1), "params": {"momentum": 0.9}}, ValueError, "has its arguments"),
        (
            {"rate": None},
            TypeError,
            r"learning_rate_decay_fn=None\): learning_rate_decay_fn must be a function of the step",
        ),
        ({"rate": "0.1"}, TypeError, "a function of the step, a schedule or a number"),
        ({"rate": lambda: 0.1}, TypeError, "must be a function of the step, a schedule"),
        ({"rate": lambda t: None}, TypeError, "_fn returned None; it must return one number"),
        ({"rate": lambda t: "0.1"}, TypeError, "_fn returned '0.1'; it must return one number"),
        ({"rate": lambda t: [1, 2]}, TypeError, "_fn returned .*; it must return one number"),
        ({"rate": tg.schedules.FixedLR}, TypeError, "must be a function of the step, a schedule"),
        (
            {"params": {"learning_rate": 0.1}},
            ValueError,
            "the learning rate is in optimizer_params; give it as learning_rate_decay_fn",
        ),
        (
            {"optimizer": "Adam", "params": {"beta1": 0.8, "beta_1": 0.9}},
            ValueError,
            r"optimizer='Adam'\): it takes 'beta1' or 'beta_1', which are one argument, not both",
        ),
        (
            {"summaries": ["gradient"]},
            ValueError,
            "Summaries should be one of .* provided gradient",
        ),
        (
            {"clip_gradients": 1.0, "larc_params": {"larc_eta": 0.1}},
            AttributeError,
            "^LARC and gradient norm clipping should not be used together$",
        ),
        ({"larc_params": {}}, ValueError, "larc_eta parameter has to be specified"),
        (
            {"larc_params": {"larc_eta": 1}},
            ValueError,
            "larc_eta has to be of type <class 'float'>",
        ),
        (
            {"larc_params": {"larc_eta": 0.1, "larc_mode": "foo"}},
            ValueError,
            r"larc_mode has to be one of \['clip', 'scale'\]",
        ),
        ({"larc_params": {"larc_eta": 0.1, "eta": 1.0}}, ValueError, "Unknown parameter: eta"),
        ({"clip_gradients": 0}, ValueError, r"optimize_loss\(clip_gradients=0\)"),
        ({"iter_size": 0}, ValueError, r"optimize_loss\(iter_size=0\)"),
        ({"dtype": "float17"}, ValueError, r"optimize_loss\(dtype='float17'\)"),
        ({"loss_scaling": "Back"}, ValueError, "Unknown scaling algorithm"),
        ({"loss_scaling": "Backoff", "loss_scaling_params": {"a": 1}}, ValueError, "parameter: a"),
        ({"loss_scaling_params": {"scale_max": 2.0}}, ValueError, "only 'Backoff' and 'LogMax'"),
        ({"loss_scaling": 0, "dtype": "mixed"}, ValueError, r"FixedScaler\(loss_scale=0\)"),
        ({"freeze_variables_regex": "."}, ValueError, "no variable is left"),
        ({"freeze_variables_regex": "("}, ValueError, "freeze_variables_regex"),
        (
            {"optimizer": tg.MixedPrecision("sgd"), "rate": None},
            TypeError,
            "what scales the loss comes from loss_scaling",
        ),
    ],
)
def test_refuses(options, error, message):
    variables, loss = problem()
    arguments = {"optimizer": "SGD", "params": None, "rate": 0.1} | options
    params, rate = arguments.pop("params"), arguments.pop("rate")
    with pytest.raises(error, match=message):
        tg.optimize_loss(
            loss, variables, optimizer_params=params, learning_rate_decay_fn=rate, **arguments
        )


def test_refuses_losses():
    w = tf.Variable([1.0, 2.0])
    with pytest.raises(TypeError, match="must be a function"):
        tg.optimize_loss(tf.constant(1.0), [w], "SGD", learning_rate_decay_fn=0.1)
    with pytest.raises(ValueError, match=r"the loss has shape \(2,\); it must be a scalar"):
        tg.optimize_loss(lambda: w * 2.0, [w], "SGD", learning_rate_decay_fn=0.1)()
    with pytest.raises(ValueError, match="no variable has a gradient"):
        tg.optimize_loss(lambda: tf.constant(1.0), [w], "SGD", learning_rate_decay_fn=0.1)()


def test_freezing_by_the_beginning_of_a_path():
    step = make(freeze_variables_regex="linear/w|nused")
    assert [v.name for v in step.variables] == ["linear/b:0", "unused:0"]


def test_a_models_variables():
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1), keras.layers.Dense(1)])
    model.layers[0].trainable = False
    step = tg.optimize_loss(
        lambda x: tf.reduce_sum(model(x)), model, "SGD", learning_rate_decay_fn=0.1
    )
    assert [id(v) for v in step.variables] == [id(v) for v in model.layers[1].trainable_variables]
    before = step.variables[0].numpy()
    step(X)
    assert (step.variables[0].numpy() != before).all()


# Mixed precision.


@pytest.mark.parametrize(
    ("given", "params", "scale"),
    [
        (64, None, 64),
        ("Backoff", {"scale_max": 512.0}, 512),
        ("LogMax", None, 1),
        (scaling.BackoffScaler(scale_max=256), None, 256),
    ],
)
def test_mixed_precision(given, params, scale):
    variables, loss = problem("float16")
    step = tg.optimize_loss(
        *(loss, variables, "SGD", None, 0.1),
        dtype="mixed",
        loss_scaling=given,
        loss_scaling_params=params,
        clip_gradients=5,
    )
    assert isinstance(step.optimizer, tg.MixedPrecision)
    w, b = (v.numpy().astype("float32") for v in variables[:2])
    _, metrics = step(X, Y)
    g, h = gradient(w, b)
    norm = np.sqrt((g**2).sum() + h**2)
    np.testing.assert_allclose(metrics["global_gradient_norm"], norm, rtol=2e-3)
    np.testing.assert_allclose(variables[0].numpy(), w - 0.1 * g * min(1, 5 / norm), atol=1e-3)
    assert float(metrics["loss_scale"]) == scale


@pytest.mark.slow
def test_an_overflow_shrinks_the_scale():
    variables, loss = problem("float16")
    step = tg.optimize_loss(
        loss,
        variables,
        "Adam",
        None,
        0.1,
        "mixed",
        None,
        None,
        None,
        "Backoff",
        {"scale_max": 2.0**24},
    )
    scales = [float(step(X, Y)[1]["loss_scale"]) for _ in range(12)]
    skipped = int(step.optimizer.skipped_steps.numpy())
    assert 5 < skipped < 12
    assert scales[:3] == [2.0**24, 2.0**23, 2.0**22]
    assert scales[-1] == 2.0 ** (24 - skipped)
    assert int(step.optimizer.iterations.numpy()) == 12 - skipped


# Replicas.


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"iter_size": 2, "clip_gradients": 0.5}, {"dtype": "mixed", "loss_scaling": "Backoff"}],
)
def test_two_replicas_equal_one(options):
    """Each has half of the batch: their losses and gradients are averaged."""
    names = ["gradients", "global_gradient_norm", "learning_rate"]
    one = make("Momentum", {"momentum": 0.9}, summaries=names, **options)
    with mirrored().scope():
        two = make("Momentum", {"momentum": 0.9}, summaries=names, **options)
    for _ in range(4):
        loss, metrics = one(X, Y)
        halves = [per_replica([a[:2], a[2:]]) for a in (X, Y)]
        both_loss, both_metrics = two(*halves)
        np.testing.assert_allclose(both_loss, loss, rtol=1e-6)
        assert both_metrics.keys() == metrics.keys()
        for name, value in metrics.items():
            found = mirrored().experimental_local_results(both_metrics[name])[0]
            np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6, err_msg=name)
    for ours, theirs in zip(two.variables, one.variables, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_aggregate():
    """Here the mean with a worker that has zeros, as `hvd.allreduce` would give it."""
    seen = []

    def aggregate(grads):
        seen.extend(None if g is None else g.dtype for g in grads)
        return [None if g is None else g / 2 for g in grads]

    variables, loss = problem("float16")
    step = tg.optimize_loss(
        loss, variables, "SGD", None, 0.1, "mixed", loss_scaling=64, aggregate=aggregate
    )
    w, b = (v.numpy().astype("float32") for v in variables[:2])
    step(X, Y)
    np.testing.assert_allclose(variables[0].numpy(), w - 0.05 * gradient(w, b)[0], atol=1e-3)
    assert seen == [tf.float32, tf.float32, None]


# What goes with it.


def test_regularization_loss():
    dense = keras.layers.Dense(
        1, kernel_initializer="ones", kernel_regularizer=keras.regularizers.L2(0.5)
    )
    half = keras.layers.Dense(
        1,
        dtype="float16",
        kernel_initializer="ones",
        kernel_regularizer=scaling.MasterRegularizer("l2"),
    )
    model = keras.Sequential([keras.Input([3]), dense, half])
    loss = tg.get_regularization_loss(model)
    assert (loss.dtype, float(loss)) == (tf.float32, 1.5)
    plain = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    assert float(tg.get_regularization_loss(plain)) == 0


@pytest.mark.rare
def test_it_needs_no_extras():
    """What only the extras install is not there."""
    code = """
import sys
for name in ("pydantic", "ruamel", "typer", "matplotlib", "tensorflow_datasets"):
    sys.modules[name] = None
import tensorflow as tf, tf_graft as tg
w = tf.Variable([1.0])
tg.optimize_loss(lambda: tf.reduce_sum(w), [w], "SGD", learning_rate_decay_fn=0.5)()
assert w.numpy() == 0.5
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
