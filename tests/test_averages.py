"""Averages of the weights: SWA, EMA that begins later or warms up, and batch normalization.

`goldens/averages.json` has runs of the programs named there: SGD, and the averages after each step.
"""

import json
import os
import resource
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import recordings
from tf_graft import averages, schedules
from tf_graft.averages import EMA, SWA, Averages, recompute_batch_normalization

GOLDENS = json.loads((Path(__file__).parent / "goldens" / "averages.json").read_text())
CASES = GOLDENS["averages"]
RULES = {
    "ema": EMA(0.9),
    "ema later": EMA(0.8, start=3),
    "ema warmed up": EMA(0.6, warm_up=True),
    "ema warmed up later": EMA(0.99, start=2, warm_up=True),
    "swa": SWA(),
    "swa later, now and then": SWA(start=2, period=3),
}


def share(rule, update):
    """What an update keeps of the average, as a float64 number, from the equations."""
    if isinstance(rule, SWA):
        since = update - rule.start - 1
        if since <= 0:
            return 0.0
        count = since // rule.period
        return count / (count + 1) if since % rule.period == 0 else 1.0
    if update <= max(rule.start, 1):
        return 0.0
    k = update - rule.start - 1
    return min(rule.momentum, (1 + k) / (10 + k)) if rule.warm_up else rule.momentum


def averages_of(optimizer):
    return [np.array(x) for x in optimizer.synchronized_averages()]


# Recordings and equations.


def replayed(case, use_ema):
    """The largest difference from the recorded averages."""
    optimizer = tg.SGD(schedules.get(case["learning_rate"]), use_ema=use_ema)
    weights = {
        path: tf.Variable(np.array(w, case["dtype"]), name=path)
        for path, w in case["initial"].items()
    }
    worst = 0.0
    steps = zip(case["gradients"], case["averages"], strict=True)
    for number, (gradients, expected) in enumerate(steps):
        given = [tf.constant(np.array(gradients[path], case["dtype"])) for path in weights]
        optimizer.apply(given, list(weights.values()))
        if number >= case["from"]:
            pairs = zip(averages_of(optimizer), (expected[path] for path in weights), strict=True)
            worst = max(worst, *(np.abs(one - other).max() for one, other in pairs))
    return worst


@pytest.mark.parametrize("name", CASES)
def test_equals_the_recording(name):
    bound = 1e-6 if CASES[name]["dtype"] == "float32" else 5e-8  # a rate of 0.2 is 3e-9 off
    recordings.check(name, replayed(CASES[name], CASES[name]["use_ema"]), bound)


@pytest.mark.parametrize("name", CASES)
def test_the_comparison_notices_another_average(name):
    assert replayed(CASES[name], EMA(0.7, start=1)) > 1e-3


@pytest.mark.parametrize("execution", ["eager", "function", "xla"])
@pytest.mark.parametrize("name", RULES)
def test_follows_the_equations_on_rows_too(name, execution):
    """Rows that no gradient touches for a while, and a variable of every step."""
    rule = RULES[name]
    optimizer = tg.SGD(0.5, use_ema=rule)
    table, w = tf.Variable(tf.ones([4, 2])), tf.Variable([1.0, -1.0])
    right = [np.ones([4, 2]), np.array([1.0, -1.0])]
    means = [x.copy() for x in right]

    def step(g, rows):
        optimizer.apply([tf.IndexedSlices(tf.ones([2, 2]), rows), g], [table, w])

    if execution != "eager":
        step = tf.function(step, jit_compile=execution == "xla")
    random = np.random.default_rng(0)
    touched = [[0, 0], [1, 2], [0, 1], [1, 1], [1, 1], [2, 0], [1, 2], [0, 2]]
    for update, rows in enumerate(touched, 1):
        g = random.normal(size=2).astype("float32")
        step(tf.constant(g), tf.constant(rows))
        np.add.at(right[0], rows, -0.5)
        right[1] = right[1] - 0.5 * g
        kept = share(rule, update)
        means = [kept * a + (1 - kept) * x for a, x in zip(means, right, strict=True)]
        if update in (3, 8):
            for found, expected in zip(averages_of(optimizer), means, strict=True):
                np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


def test_true_is_the_exponential_average_to_the_bit():
    found = []
    for options in ({"use_ema": True, "ema_momentum": 0.9}, {"use_ema": EMA(0.9)}):
        optimizer, table = tg.Adam(0.1, **options), tf.Variable(tf.ones([3, 2]))
        for rows in ([0, 0], [1, 2], [0, 1]):
            optimizer.apply([tf.IndexedSlices(tf.ones([2, 2]), rows)], [table])
        found.append(averages_of(optimizer)[0].tobytes())
    assert found[0] == found[1]


# As users meet them.


def model_and_data():
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(1)
    x = random.normal(size=(32, 3)).astype("float32")
    layers = [keras.layers.Dense(4, "relu"), keras.layers.BatchNormalization()]
    model = keras.Sequential([keras.Input([3]), *layers, keras.layers.Dense(1)])
    return model, x, x.sum(1, keepdims=True)


@pytest.mark.slow
def test_fit_ends_with_the_mean_of_the_epochs():
    model, x, y = model_and_data()
    model.compile(tg.SGD(0.05, use_ema=SWA(start=7, period=4)), "mse")
    seen = []
    after = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: seen.append([v.numpy() for v in model.trainable_variables])
    )
    model.fit(x, y, batch_size=8, epochs=5, shuffle=False, verbose=0, callbacks=[after])
    last = [np.mean(each, axis=0) for each in zip(*seen[1:-1], seen[-1], strict=True)]
    for found, expected in zip(model.trainable_variables, last, strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [SWA(3, 2), EMA(0.9, 5, True)], ids=str)
def test_config_repr_and_files(rule, tmp_path):
    optimizer = tg.AdaGraft(tg.Adam(), tg.SGD(), use_ema=rule)
    assert f"use_ema={rule!r}" in repr(optimizer)
    assert type(optimizer).from_config(optimizer.get_config()).use_ema == rule
    assert tg.get(tg.serialize(optimizer)).use_ema == rule
    assert tg.get({"name": "adam", "use_ema": {"name": "swa", "period": 2}}).use_ema == SWA(0, 2)
    model, x, y = model_and_data()
    model.compile(optimizer, "mse")
    model.fit(x, y, batch_size=8, epochs=1, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.optimizer.use_ema == rule
    for one, other in zip(averages_of(optimizer), averages_of(again.optimizer), strict=True):
        assert one.tobytes() == other.tobytes()


@keras.saving.register_keras_serializable(package="test_averages")
class Last(Averages):
    """An average that is the weights."""

    def kept(self, last, now, dtype):
        return tf.zeros(tf.shape(last), dtype)


def test_averages_of_your_own():
    optimizer, w = tg.SGD(1.0, use_ema=Last()), tf.Variable([3.0])
    again = tg.SGD.from_config(optimizer.get_config())
    assert again.use_ema == Last()
    assert again.use_ema != SWA()
    for _ in range(2):
        again.apply([tf.constant([1.0])], [w])
    np.testing.assert_array_equal(averages_of(again)[0], w)


class Listed(Averages):
    """Exponential averages whose momentum is in a list, so that they have no hash."""

    def __init__(self):
        self.momentum = [0.5]

    def kept(self, last, now, dtype):
        return tf.pow(tf.constant(self.momentum[0], dtype), tf.cast(now - last, dtype))


@pytest.mark.parametrize("use_ema", [EMA(0.5), Listed()], ids=["EMA", "list"])
def test_idle_variables_catch_up_in_a_graph(use_ema):
    optimizer = tg.SGD(1.0, use_ema=use_ema)
    weights = [tf.Variable([8.0, 4.0]), tf.Variable([1.0, 2.0]), tf.Variable(3.0)]
    optimizer.build(weights)

    @tf.function
    def step(touched):
        optimizer.apply([tf.ones_like(w) for w in weights[:touched]], weights[:touched])

    step(3)  # the averages are the weights: [7, 3], [0, 1], 2
    weights[1].assign([4.0, 9.0])
    step(1)
    step(1)  # the others are idle twice, and keep a quarter of their averages
    step(3)
    found = [x.tolist() for x in averages_of(optimizer)]
    assert found == [[4.875, 0.875], [3.0, 7.5], 1.5]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"use_ema": 1}, TypeError, "use_ema must be True or False, or averages such as"),
        ({"use_ema": {"name": "x"}}, ValueError, "'name' must be 'ema' or 'swa'"),
        ({"use_ema": {"name": "swa", "begin": 1}}, TypeError, "unexpected keyword argument"),
        ({"use_ema": SWA(), "ema_momentum": 0.5}, ValueError, "ema_momentum is for use_ema=True"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        tg.SGD(**arguments)


def test_a_momentum_that_is_set_beside_averages_is_refused_too():
    optimizer = tg.SGD(use_ema=SWA())
    optimizer.ema_momentum = 0.99  # the default
    with pytest.raises(ValueError, match=r"SGD\(use_ema=SWA.*ema_momentum is for use_ema=True"):
        optimizer.ema_momentum = 0.5
    assert optimizer.ema_momentum == 0.99
    other = tg.SGD(use_ema=True, ema_momentum=0.5)
    with pytest.raises(ValueError, match=r"ema_momentum=0.5\): ema_momentum is for use_ema=True"):
        other.use_ema = SWA()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SWA(-1), r"SWA\(start=-1\): start must be at least 0"),
        (lambda: SWA(period=0), r"SWA\(period=0\): period must be at least 1"),
        (lambda: EMA(1.5), r"EMA\(momentum=1.5\): momentum must lie in \[0, 1\)"),
        (lambda: EMA(1), r"EMA\(momentum=1\): momentum must lie in \[0, 1\)"),
        (lambda: EMA(1.5, warm_up=True), r"EMA\(momentum=1.5\): momentum must lie in \[0, 1\]"),
    ],
)
def test_bad_averages(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Batch normalization.


def test_batch_normalization_equals_the_recording():
    """Theirs has the unbiased variance of each batch."""
    case = GOLDENS["batch_normalization"]
    dense = keras.layers.Dense(4, dtype="float64")
    norm = keras.layers.BatchNormalization(momentum=0.3, dtype="float64")
    model = keras.Sequential([keras.Input([3], dtype="float64"), dense, norm])
    dense.set_weights([np.array(case["kernel"]), np.array(case["bias"])])
    before = [w.copy() for w in dense.get_weights()]
    batches = [np.array(batch) for batch in case["batches"]]
    recompute_batch_normalization(model, [(batch, None) for batch in batches])
    np.testing.assert_allclose(norm.moving_mean, case["mean"], rtol=1e-6)
    outputs = [dense(batch).numpy() for batch in batches]
    biased = np.mean([x.var(0) for x in outputs], axis=0)
    unbiased = np.mean([x.var(0, ddof=1) for x in outputs], axis=0)
    np.testing.assert_allclose(norm.moving_variance, biased, rtol=1e-6)
    np.testing.assert_allclose(case["variance"], unbiased, rtol=1e-6)
    assert norm.momentum == 0.3
    for one, other in zip(dense.get_weights(), before, strict=True):
        assert one.tobytes() == other.tobytes()


def test_batch_normalization_of_a_frozen_layer_among_others():
    keras.utils.set_random_seed(0)
    norm = keras.layers.BatchNormalization(trainable=False)
    inner = keras.Sequential([norm, keras.layers.Dropout(0.5)])
    model = keras.Sequential([keras.Input([2]), inner])
    seeds = [v.numpy() for v in model.non_trainable_variables if "seed" in v.path]
    data = tf.data.Dataset.from_tensor_slices(np.float32([[1, 2], [3, 6]])).batch(2)
    recompute_batch_normalization(model, data)
    np.testing.assert_allclose(norm.moving_mean, [2, 4])
    assert not norm.trainable
    after = [v.numpy() for v in model.non_trainable_variables if "seed" in v.path]
    assert [x.tobytes() for x in after] == [x.tobytes() for x in seeds]


def test_batch_normalization_of_a_layer_that_is_called_twice():
    """Each call counts the same, as in a siamese network; a layer without a call keeps its own."""
    norm, idle = keras.layers.BatchNormalization(), keras.layers.BatchNormalization()
    inputs = [keras.Input([1]), keras.Input([1])]
    model = keras.Model(inputs, [norm(each) for each in inputs])
    model.idle = idle
    idle.build([None, 1])
    idle.moving_mean.assign([7.0])
    low, high = tf.constant([[0.0], [2.0]]), tf.constant([[100.0], [102.0]])
    recompute_batch_normalization(model, [([low, high],), ([low, high],), ([low, low],)])
    np.testing.assert_allclose(norm.moving_mean, [(4 * 1 + 2 * 101) / 6], rtol=1e-6)
    np.testing.assert_allclose(norm.moving_variance, [1.0], rtol=1e-6)
    np.testing.assert_array_equal(idle.moving_mean, [7.0])
    np.testing.assert_array_equal(idle.moving_variance, [1.0])
    assert "call" not in vars(norm)


def test_batch_normalization_forgets_a_nan():
    model, x, _ = model_and_data()
    expected = model.get_layer(index=1)
    recompute_batch_normalization(model, [x])
    mean = expected.moving_mean.numpy()
    expected.moving_mean.assign(np.full(mean.shape, np.nan))
    recompute_batch_normalization(model, [x])
    np.testing.assert_array_equal(expected.moving_mean, mean)


def test_batch_normalization_is_as_before_where_it_fails():
    model, x, _ = model_and_data()
    before = [w.copy() for w in model.get_weights()]
    for bad in (np.where(x < 0, np.nan, x), x[:0]):
        with pytest.raises(
            ValueError, match=r"moving_mean' holds nan .* batches that have examples"
        ):
            recompute_batch_normalization(model, [x, bad])

    def broken():
        yield x
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        recompute_batch_normalization(model, broken())
    with pytest.raises(ValueError, match="there is no batch"):
        recompute_batch_normalization(model, [])
    with pytest.raises(TypeError, match="they must be batches"):
        recompute_batch_normalization(model, 3)
    with pytest.raises(TypeError, match="must be a Model"):
        recompute_batch_normalization(tg.SGD(), [x])
    for one, other in zip(model.get_weights(), before, strict=True):
        assert one.tobytes() == other.tobytes()
    recompute_batch_normalization(keras.Sequential([keras.Input([2])]), None)


# Files.


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["{}.weights.h5", "{}.keras", "checkpoint_{}"])
def test_files_of_several_epochs_are_averaged(kind, tmp_path):
    model, x, y = model_and_data()
    model.compile(tg.Adam(0.05), "mse")
    names, seen = [str(tmp_path / kind.format(number)) for number in range(3)], []
    for name in names:
        model.fit(x, y, batch_size=8, epochs=1, verbose=0)
        seen.append(model.get_weights())
        if name.endswith(".keras"):
            model.save(name)
        elif name.endswith(".h5"):
            model.save_weights(name)
        else:
            tf.train.Checkpoint(model=model).write(name)
    state = [np.array(v) for v in model.optimizer.variables]
    averages.average_files(model, names[1:])
    for found, values in zip(model.get_weights(), zip(*seen[1:], strict=True), strict=True):
        np.testing.assert_allclose(found, np.mean(values, axis=0), rtol=1e-6, atol=1e-7)
    for one, other in zip(model.optimizer.variables, state, strict=True):
        np.testing.assert_array_equal(one, other)
    model.fit(x, y, batch_size=8, epochs=1, verbose=0)


def of_another(model, folder):
    return tf.train.Checkpoint(v=tf.Variable(5.0)).write(str(folder / "another"))


def of_fewer_layers(model, folder):
    part = keras.Sequential([keras.Input([3]), *model.layers[:1]])
    return tf.train.Checkpoint(model=part).write(str(folder / "part"))


def with_a_nan(kind):
    def saved(model, folder):
        before = model.get_weights()
        model.set_weights([w * np.nan for w in before])
        name = str(folder / kind)
        if kind.endswith(".h5"):
            model.save_weights(name)
        else:
            tf.train.Checkpoint(model=model).write(name)
        model.set_weights(before)
        return name

    return saved


def large_without_data(model, folder):
    """A file of some KB that declares a gigabyte."""
    name = folder / "large.weights.h5"
    model.save_weights(name)
    with h5py.File(name, "r+") as file:
        values = file["layers/dense/vars"]
        del values["0"]
        options = {"chunks": (1 << 22,), "compression": "gzip"}
        values.create_dataset("0", shape=(1 << 28,), dtype="f4", **options)
    return name


def pipe(model, folder):
    os.mkfifo(folder / "pipe.weights.h5")
    return folder / "pipe.weights.h5"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (of_another, "another cannot be read: it holds no .*kernel of shape"),
        (of_fewer_layers, "part cannot be read: it holds no .* of shape"),
        (with_a_nan("nan"), "nan cannot be read: its .*kernel holds nan and must be finite"),
        (with_a_nan("a.weights.h5"), "cannot be read: its .*kernel holds nan and must be finite"),
        (large_without_data, "large.weights.h5 cannot be read: "),
        (pipe, "cannot be read: pipe.weights.h5 is a named pipe"),
        (lambda _, folder: folder / "b.weights.h5", "b.weights.h5 cannot be read: "),
        (lambda _, folder: folder / "b", "b cannot be read: "),
    ],
)
def test_a_file_that_does_not_have_all_weights_changes_nothing(make, message, tmp_path):
    model, _, _ = model_and_data()
    model.compile(tg.SGD(), "mse")
    model.save_weights(tmp_path / "whole.weights.h5")
    other = make(model, tmp_path)
    model.set_weights([w + 1 for w in model.get_weights()])
    before = model.get_weights()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(tg.CheckpointError, match=message):
        averages.average_files(model, [tmp_path / "whole.weights.h5", other])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 300_000  # kilobytes
    assert isinstance(model.optimizer, tg.SGD)
    for one, other in zip(model.get_weights(), before, strict=True):
        assert one.tobytes() == other.tobytes()


def test_files_that_cannot_be_averaged():
    model, _, _ = model_and_data()
    with pytest.raises(ValueError, match="there is no file"):
        averages.average_files(model, [])
    with pytest.raises(TypeError, match="they must be a list of names"):
        averages.average_files(model, "a.weights.h5")
    with pytest.raises(
        TypeError, match=r"^average_files\(file=1\): file must be a str or PathLike"
    ):
        averages.average_files(model, [1])
