"""The learning rate finder: what it measures, and that it leaves everything as it was."""

import itertools
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from matplotlib.figure import Figure

import tf_graft as tg
from tf_graft.fit.finder import LearningRateCurve

X = np.random.default_rng(0).normal(size=(48, 6)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32")
CosineDecay = keras.optimizers.schedules.CosineDecay


def a_tenth():
    return 0.1


OPTIMIZERS = {
    "sgd": lambda: tg.SGD(0.1, momentum=0.9),
    "schedule": lambda: tg.Adam(tg.schedules.PolyDecay(0.1, 50)),
    "callable": lambda: tg.SGD(a_tenth),
    "averages": lambda: tg.SGD(0.1, use_ema=True, gradient_accumulation_steps=2),
    "graft": lambda: tg.AdaGraft("sgd", tg.Adam(CosineDecay(0.1, 50)), learning_rate=0.5),
    "larc": lambda: tg.LARC(tg.SGD(CosineDecay(0.1, 50), momentum=0.9)),
    "mixed": lambda: tg.MixedPrecision(tg.SGD(0.1), loss_scale="backoff"),
    "agn": lambda: tg.AGN(tg.SGD(0.1), num_worker=1, communication_period=2),
    "wrapped": lambda: tg.wrap(keras.optimizers.Nadam(0.1)),
    "keras": lambda: keras.optimizers.Adam(0.1),
    "keras_schedule": lambda: keras.optimizers.RMSprop(CosineDecay(0.1, 50)),
    "keras_scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
}


def classifier(optimizer, **compiled):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, "relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3, seed=3),
            keras.layers.Dense(2),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], **compiled)
    return model


def batches(size=8):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size)


def variables(model):
    held = [model.variables, model.metrics_variables, model.optimizer.variables]
    return values(variable for each in held for variable in each)


def values(variables):
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


def assert_same_bits(before, after):
    """Of two models: the paths of their variables differ."""
    both = enumerate(zip(before, after, strict=True))
    assert [i for i, (one, other) in both if one.tobytes() != other.tobytes()] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        n if n in ("sgd", "schedule") else pytest.param(n, marks=pytest.mark.slow)
        for n in OPTIMIZERS
    ],
)
def test_everything_is_as_before_and_training_goes_on_as_without(name):
    tested, twin = (classifier(OPTIMIZERS[name]()) for _ in range(2))
    for model in (tested, twin):
        model.fit(batches(), epochs=2, verbose=0, shuffle=False)
    before, rate = variables(twin), tested.optimizer.get_config()
    assert_same_bits(before, variables(tested))
    held, in_numpy = tested.history, np.random.get_state()[1].tobytes()
    curve = tg.find_learning_rate(tested, batches(), low=1e-3, high=1.0, steps=9)
    assert 3 <= len(curve.rates) <= 9
    assert_same_bits(before, variables(tested))
    assert tested.optimizer.get_config() == rate
    assert tested.history is held
    assert np.random.get_state()[1].tobytes() == in_numpy
    for model in (tested, twin):
        history = model.fit(batches(), epochs=2, verbose=0, shuffle=False)
        assert len(history.history["loss"]) == 2
    assert_same_bits(variables(twin), variables(tested))


@pytest.mark.slow
def test_the_test_moves_the_weights_while_it_runs():
    """Or the tests above would show nothing."""
    model, seen = classifier(OPTIMIZERS["schedule"]()), []

    class Watched(keras.utils.PyDataset):
        def __len__(self):
            return 6

        def __getitem__(self, i):
            seen.append(np.array(model.trainable_variables[0]))
            return X[8 * i : 8 * i + 8], Y[8 * i : 8 * i + 8]

    tg.find_learning_rate(model, Watched(), low=0.01, high=0.1, steps=12)
    assert len(seen) >= 12
    assert np.abs(seen[-1] - seen[0]).max() > 0.01
    assert np.array_equal(model.trainable_variables[0], seen[0])


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("name", ["sgd", "schedule"])
def test_an_interrupted_test_puts_everything_back(name, error, monkeypatch):
    model = classifier(OPTIMIZERS[name]())
    model.fit(batches(), verbose=0, shuffle=False)
    before, config = variables(model), model.optimizer.get_config()
    calls = itertools.count()
    reset = model.reset_metrics

    def interrupting():
        if next(calls) == 5:
            raise error("now")
        reset()

    monkeypatch.setattr(model, "reset_metrics", interrupting)
    with pytest.raises(error, match="now"):
        tg.find_learning_rate(model, batches())
    monkeypatch.undo()
    assert_same_bits(before, variables(model))
    assert model.optimizer.get_config() == config
    model.fit(batches(), verbose=0, shuffle=False)


def quadratic(optimizer, weight=1.0, curvature=8.0):
    """A model whose loss is half the curvature times the square of its weight."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.layers[0].kernel.assign([[weight]])
    model.compile(
        optimizer, lambda y_true, y_pred: 0.5 * curvature * tf.reduce_mean(y_pred**2, axis=-1)
    )
    return model, (np.ones((120, 1), "float32"), np.zeros((120, 1), "float32"))


def sweep(rates, weight=1.0, curvature=8.0):
    """The losses and their moving average in float64, by gradient descent by hand."""
    losses = []
    for rate in rates:
        losses.append(0.5 * curvature * weight**2)
        weight -= rate * curvature * weight
    return np.array(losses), faded(losses)


def faded(numbers):
    """The moving average of numbers in float64, corrected for its start."""
    means, mean = [], 0.0
    for i, number in enumerate(numbers):
        mean = 0.9 * mean + 0.1 * number
        means.append(mean / (1 - 0.9 ** (i + 1)))
    return np.array(means)


def curve_of(rates, losses):
    return LearningRateCurve(rates, losses, faded(losses), False)


@pytest.mark.parametrize("make", [tg.SGD, keras.optimizers.SGD])
def test_the_curve_of_a_quadratic_is_that_of_gradient_descent(make):
    model, data = quadratic(make(0.5))
    curve = tg.find_learning_rate(model, data, low=1e-4, high=0.2, steps=40, batch_size=3)
    rates = 1e-4 * (0.2 / 1e-4) ** (np.arange(40) / 39)
    np.testing.assert_allclose(curve.rates, rates, rtol=1e-12)
    losses, smoothed = sweep(rates)
    np.testing.assert_allclose(curve.losses, losses, rtol=1e-3, atol=1e-9)
    np.testing.assert_allclose(curve.smoothed, smoothed, rtol=1e-4)
    assert not curve.exploded
    np.testing.assert_allclose(np.log(curve.smoothed_rates), faded(np.log(rates)), rtol=1e-12)
    # The best rate is 1 / 8; from 2 / 8 on the weight grows.
    steepest = rates[np.argmax(-np.diff(losses))]
    assert steepest / 3 < curve.suggestion < min(3 * steepest, 1 / 8)
    falls = -np.diff(smoothed)  # between rates that grow by the same factor
    assert curve.suggestion == pytest.approx(curve.smoothed_rates[np.argmax(falls)], rel=0.25)


@pytest.mark.parametrize("steps", [100, 200, 400])
def test_the_suggestion_does_not_lag_behind_the_losses(steps):
    """A mean of the losses falls later than they do, by more the fewer the steps are."""
    rates = np.geomspace(1e-6, 10.0, steps)
    losses = 2 - np.tanh(np.log10(rates / 0.01) / 2)
    assert curve_of(rates, losses).suggestion == pytest.approx(0.01, rel=0.25)


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_later_batches_is_not_taken_for_a_descent(seed):
    rates = np.geomspace(1e-6, 10.0, 200)
    clean = 2 - np.tanh(np.log10(rates / 0.01))
    noise = np.random.default_rng(seed).normal(0, 0.25, 200)
    # of 2,000 seeds 2.2e-5 to 0.13; the losses are lowest, and noise is largest, beyond 1
    assert 1e-5 < curve_of(rates, clean * (1 + noise)).suggestion < 0.3


def test_a_quadratic_explodes_beyond_twice_its_best_rate():
    model, data = quadratic(tg.SGD(0.5))
    curve = tg.find_learning_rate(model, data, low=0.2, high=200.0, steps=100, batch_size=1)
    assert curve.exploded
    assert len(curve.rates) == len(curve.losses) == len(curve.smoothed) < 20
    assert curve.smoothed[-1] > 4 * curve.smoothed.min()
    assert curve.smoothed[-2] <= 4 * curve.smoothed[:-1].min()
    patient = tg.find_learning_rate(
        model, data, low=0.2, high=200.0, steps=100, batch_size=1, explosion=1e9
    )
    assert len(patient.rates) > len(curve.rates)
    assert float(model.layers[0].kernel[0, 0]) == 1.0


def test_a_loss_that_is_not_finite_ends_the_test():
    model, data = quadratic(tg.SGD(0.5), weight=np.nan)
    curve = tg.find_learning_rate(model, data)
    assert curve.exploded
    assert len(curve.rates) == 0
    assert curve.suggestion is None
    assert curve.plot().get_xscale() == "log"


def test_a_loss_below_zero_explodes_by_its_distance():
    curve_of = [-1.0, -2.0, -2.0, 30.0]
    model, data = quadratic(tg.SGD(0.5))
    losses = tf.Variable(curve_of), tf.Variable(0)

    def loss(y_true, y_pred):
        value = losses[0][losses[1]]
        losses[1].assign_add(1)
        return value + 0.0 * tf.reduce_mean(y_pred, axis=-1)

    model.compile(tg.SGD(0.5), loss)
    losses[1].assign(0)
    curve = tg.find_learning_rate(model, data, steps=4)
    assert curve.exploded
    assert curve.losses.tolist()[-1] == 30.0


def test_a_rate_that_only_harms_is_not_suggested():
    assert LearningRateCurve(*[np.array([1.0, 2.0, 3.0])] * 3, False).suggestion is None
    falling = LearningRateCurve(
        np.array([1.0, 2.0, 4.0, 8.0]), np.zeros(4), np.array([5.0, 4.0, 1.0, 0.5]), False
    )
    assert falling.suggestion == falling.smoothed_rates[2]  # the first half is left out


def test_noise_of_the_first_batches_is_not_taken_for_a_descent():
    losses = np.concatenate([[9.0, 1.0] * 5, np.linspace(5.0, 4.0, 20), np.linspace(4.0, 2.0, 9)])
    rates = np.geomspace(1e-3, 1.0, len(losses))
    curve = LearningRateCurve(rates, losses, losses, False)
    assert curve.smoothed_rates[30] <= curve.suggestion


@pytest.mark.parametrize("kind", ["dataset", "arrays", "weighted"])
def test_short_data_begin_anew(kind):
    model, (x, y) = quadratic(tg.SGD(0.5))
    data = {
        "dataset": tf.data.Dataset.from_tensor_slices((x, y)).batch(30),
        "arrays": (x, y),
        "weighted": (x, y, np.ones(120, "float32")),
    }[kind]
    curve = tg.find_learning_rate(model, data, low=1e-3, high=0.1, steps=11)
    losses, _ = sweep(np.geomspace(1e-3, 0.1, 11))
    np.testing.assert_allclose(curve.losses, losses, rtol=1e-4)


@pytest.mark.slow
def test_executions_of_several_steps_take_one_rate_each():
    model = classifier(tg.SGD(0.1), steps_per_execution=3)
    curve = tg.find_learning_rate(model, batches(), low=1e-3, high=0.1, steps=4)
    assert len(curve.losses) == 4
    assert int(model.optimizer.iterations) == 0


@pytest.mark.slow
def test_an_optimizer_that_is_not_built_has_its_first_state_afterwards():
    tested, fresh = (classifier(tg.Adam(0.1)) for _ in range(2))
    tg.find_learning_rate(tested, batches(), steps=5)
    fresh.optimizer.build(fresh.trainable_variables)
    assert_same_bits(values(fresh.variables), values(tested.variables))
    assert_same_bits(values(fresh.optimizer.variables), values(tested.optimizer.variables))


def test_a_fall_after_the_loss_has_jumped_is_no_suggestion():
    rates = np.geomspace(1e-3, 10.0, 40)
    losses = np.concatenate([np.linspace(2, 1, 25), [3, 5, 7], np.linspace(7, 2, 12)])
    assert LearningRateCurve(rates, losses, losses, False).suggestion <= rates[24]


def test_the_plot_shows_losses_and_suggestion():
    model, data = quadratic(tg.SGD(0.5))
    curve = tg.find_learning_rate(model, data, low=1e-4, high=0.2, steps=30, batch_size=4)
    axes = Figure().subplots()
    assert curve.plot(axes) is axes
    loss, smoothed, suggestion = axes.get_lines()
    assert loss.get_ydata().tolist() == curve.losses.tolist()
    assert smoothed.get_xdata().tolist() == curve.smoothed_rates.tolist()
    assert smoothed.get_ydata().tolist() == curve.smoothed.tolist()
    assert set(suggestion.get_xdata()) == {curve.suggestion}


def test_a_curve_is_shown_as_a_line_and_in_a_notebook_as_a_picture(monkeypatch):
    losses = np.array([5.0, 4.0, 2.0, 1.0, 900.0])
    curve = LearningRateCurve(np.geomspace(0.1, 10.0, 5), losses, losses, True)
    said = "<LearningRateCurve: 5 updates, learning rates 0.1 to 10, exploded; suggestion: 0.34>"
    assert repr(curve) == said
    assert curve._repr_png_().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # not installed
    assert curve._repr_png_() is None


def test_a_curve_without_a_suggestion_says_so():
    losses = np.array([1.0, 2.0])
    curve = LearningRateCurve(np.array([0.1, 0.2]), losses, losses, False)
    assert (
        repr(curve) == "<LearningRateCurve: 2 updates, learning rates 0.1 to 0.2; suggestion: none>"
    )


def test_a_curve_of_a_loss_that_is_nan_at_once_is_shown():
    nothing = np.array([])
    curve = LearningRateCurve(nothing, nothing, nothing, True)
    assert repr(curve) == "<LearningRateCurve: 0 updates, exploded; suggestion: none>"
    assert curve._repr_png_().startswith(b"\x89PNG")


def test_the_plot_is_not_as_high_as_an_explosion():
    losses = np.array([5.0, 4.0, 2.0, 1.0, 900.0])
    axes = LearningRateCurve(np.geomspace(0.1, 10.0, 5), losses, losses, True).plot()
    assert 5.0 < axes.get_ylim()[1] < 6.0
    assert 0.0 < axes.get_ylim()[0] < 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"low": 0.0}, r"^find_learning_rate\(low=0\.0\): low must be finite and above 0\.$"),
        ({"low": 1.0, "high": 0.5}, r"high must be finite and above 1\.$"),
        ({"steps": 2}, r"steps must be at least 3\.$"),
        ({"explosion": 1.0}, r"explosion must be finite and above 1\.$"),
        ({"batch_size": 0}, r"^find_learning_rate\(batch_size=0\): batch_size must be at least 1"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        tg.find_learning_rate(classifier(tg.SGD(0.1)), (X, Y), **arguments)


@pytest.mark.parametrize("data", [None, [X, Y], "digits", (), (X, Y, None, X)], ids=type)
def test_what_is_no_data_is_refused(data):
    with pytest.raises(TypeError, match=r"^find_learning_rate\(data=.*must be a tuple \(x, y\)"):
        tg.find_learning_rate(classifier(tg.SGD(0.1)), data)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_data_without_a_batch_are_refused():
    with pytest.raises(ValueError, match=r"^find_learning_rate: there is no batch in the data\.$"):
        tg.find_learning_rate(classifier(tg.SGD(0.1)), batches().take(0))


def test_a_train_step_without_a_loss_is_refused(monkeypatch):
    model = classifier(tg.SGD(0.1))
    monkeypatch.setattr(model, "train_step", lambda data: {"mine": tf.constant(1.0)})
    with pytest.raises(ValueError, match=r"train_step returns no 'loss', only \['mine'\]\.$"):
        tg.find_learning_rate(model, (X, Y))


@pytest.mark.parametrize(
    "make", [tg.Prodigy, lambda: tg.MixedPrecision(tg.Prodigy()), lambda: tg.Cautious(tg.COCOB())]
)
def test_optimizers_that_find_the_rate_themselves_are_refused(make):
    message = r"^find_learning_rate: (Prodigy|COCOB) finds .* train at a learning rate of 1\.$"
    with pytest.raises(TypeError, match=message):
        tg.find_learning_rate(classifier(make()), (X, Y))


def test_what_is_no_compiled_and_built_model_is_refused():
    model = keras.Sequential([keras.layers.Dense(1)], name="mine")
    for given in (model, None):
        with pytest.raises(ValueError, match=r"^find_learning_rate\(.*\): give a model that is co"):
            tg.find_learning_rate(given, (X, Y))
    model.compile(tg.SGD(0.1), "mse")
    with pytest.raises(ValueError, match=r"^find_learning_rate: the model 'mine' has no weights"):
        tg.find_learning_rate(model, (X, Y))


@pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="newer than this Keras")
def test_several_optimizers_are_refused():
    model = classifier("sgd")
    by_layer = [(keras.optimizers.SGD(0.1), model.layers[:1]), (keras.optimizers.Adam(), None)]
    model.compile(keras.optimizers.MultiOptimizer(by_layer), "mse")
    with pytest.raises(TypeError, match=r"^find_learning_rate: MultiOptimizer has no single learn"):
        tg.find_learning_rate(model, (X, Y))
