"""Schedule-Free: the authors' recordings, and which weights the model has when.

`goldens/schedule_free.json` has runs of the programs named there, in float64: y after each step,
which are `variables`, and x, which is `evaluated`.
"""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import recordings, replicas

CASES = json.loads((Path(__file__).parent / "goldens" / "schedule_free.json").read_text())
WITH_MOMENTUM = "schedule_free/wrapper_production_sgd_momentum"  # around SGD(momentum=0.5)
ATOL = {
    "schedule_free/adamw_production_r1_foreach_off": 1e-9,  # `largest_rate` is float32
    "optax_schedule_free/adamw_warmup4": 2e-9,  # so are optax's rates
    "optax_schedule_free/adamw_warmup4_decay": 2e-9,
}
CLASSES = (tg.ScheduleFreeSGD, tg.ScheduleFreeAdamW, tg.ScheduleFreeRAdam)


class ScheduleFreeMomentum(tg.ScheduleFreeSGD):
    """Schedule-Free around SGD with a momentum of 0.5."""

    def slots(self):
        return super().slots() | {"momentum": tg.Slot()}

    def direction(self, g, s, t):
        m = 0.5 * s["momentum"] + g
        return m, {"momentum": m}


class OneStepLater(keras.optimizers.schedules.LearningRateSchedule):
    """The rate of the update before, in a warm-up of four updates, over that of the update.

    optax moves z by the first and weights the average by the second.
    """

    def __call__(self, step):
        t = tf.cast(step, "float64") + 1
        return tf.minimum((t - 1) / 4, 1.0) / tf.minimum(t / 4, 1.0)


def replayed(name, **changed):
    """The largest difference from the recorded y and x, after any step."""
    case = CASES[name]
    config = case["config"] | changed
    cls = getattr(tg, config.pop("optimizer"))
    cls = ScheduleFreeMomentum if name == WITH_MOMENTUM else cls
    rates = iter(case.get("rates", [config["learning_rate"]] * len(case["gradients"])))
    rate = tf.Variable(0.0, dtype="float64")  # Keras' own would be float32
    config["learning_rate"] = lambda: tf.convert_to_tensor(rate)
    if name.startswith("optax") and config.get("warmup_steps"):
        config["learning_rate_multipliers"] = {"": OneStepLater()}
    optimizer = cls(**config)
    weights = {path: tf.Variable(np.array(w), name=path) for path, w in case["initial"].items()}
    worst = 0.0
    kinds = zip(case["gradients"], case["variables"], case["evaluated"], strict=True)
    for gradients, y, x in kinds:
        rate.assign(next(rates))
        optimizer.apply([tf.constant(np.array(gradients[p])) for p in weights], weights.values())
        worst = max(worst, off(weights, y))
        with optimizer.evaluation_weights():
            worst = max(worst, off(weights, x))
    return worst


def off(weights, expected):
    return max(np.abs(w.numpy() - np.array(expected[path])).max() for path, w in weights.items())


@pytest.mark.parametrize("name", CASES)
def test_equals_the_recording(name):
    recordings.check(name, replayed(name), ATOL.get(name, 2e-11))


@pytest.mark.parametrize("changed", [{"weight_lr_power": 0.0}, {"warmup_steps": 3}, {"r": 1.0}])
def test_the_comparison_notices_another_weighting(changed):
    assert replayed("schedule_free/adamw_reference_warmup4", **changed) > 1e-4


# Which weights the model has.


def trained(cls, dtype="float32", steps=4, **options):
    """An optimizer after some steps, and its variables: one of them gets no gradient."""
    optimizer = cls(0.5, **options)
    w = [tf.Variable([[1.0, -2.0], [0.5, 3.0]], dtype=dtype), tf.Variable([1.0], dtype=dtype)]
    optimizer.build(w)
    for step in range(steps):
        g = tf.constant([[1.0, 0.5], [-0.3, 0.1 * step]], dtype)
        optimizer.apply([g], w[:1])
    return optimizer, w


def values(w):
    return [tf.cast(v, "float32").numpy() for v in w]


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("cls", CLASSES)
def test_the_exchange_is_exact_and_a_second_call_does_nothing(cls, dtype):
    steps = 8  # RAdam begins with the fifth
    optimizer, w = trained(cls, dtype, steps)
    y = values(w)
    optimizer.use_evaluation_weights()
    x = values(w)
    optimizer.use_evaluation_weights()
    assert optimizer.evaluating
    assert same(values(w), x)
    assert not np.array_equal(x[0], y[0])
    assert np.array_equal(x[1], y[1])  # it had no gradient
    with optimizer.evaluation_weights():
        assert same(values(w), x)
    assert optimizer.evaluating  # as before the context
    optimizer.use_training_weights()
    optimizer.use_training_weights()
    assert same(values(w), y)
    one, same_w = trained(cls, dtype, steps + 1)
    optimizer.apply([tf.constant([[1.0, 0.5], [-0.3, 0.1 * steps]], dtype)], w[:1])
    assert same(values(w), values(same_w))
    with one.evaluation_weights(), optimizer.evaluation_weights():
        assert same(values(w), values(same_w))


@pytest.mark.parametrize("execution", ["eager", "graph", "xla"])
def test_an_update_returns_to_the_training_weights(execution):
    optimizer, w = trained(tg.ScheduleFreeSGD)
    _, right = trained(tg.ScheduleFreeSGD, steps=5)
    optimizer.use_evaluation_weights()
    g = tf.constant([[1.0, 0.5], [-0.3, 0.4]])

    def step():
        optimizer.apply([g], w[:1])

    if execution != "eager":
        step = tf.function(step, jit_compile=execution == "xla")
    step()
    assert not optimizer.evaluating
    np.testing.assert_allclose(values(w)[0], values(right)[0], rtol=1e-6)


def test_a_row_averages_over_its_own_updates():
    """A row that is touched now and then ends as it would alone."""
    table, alone = tf.Variable(tf.ones([3, 2])), tf.Variable(tf.ones([1, 2]))
    lazy, dense = tg.ScheduleFreeSGD(0.1), tg.ScheduleFreeSGD(0.1)
    for step in range(6):
        row = step % 2
        g = tf.fill([1, 2], 1.0 + step)
        lazy.apply([tf.IndexedSlices(g, tf.constant([row]), [3, 2])], [table])
        if row == 1:
            dense.apply([g], [alone])
    with lazy.evaluation_weights(), dense.evaluation_weights():
        np.testing.assert_allclose(table[1], alone[0], rtol=1e-6)
        assert np.array_equal(table[2], [1.0, 1.0])


def test_weights_loaded_before_the_first_update_are_where_it_begins():
    w, loaded = tf.Variable([5.0]), tf.Variable([1.0])
    late, plain = tg.ScheduleFreeSGD(0.1), tg.ScheduleFreeSGD(0.1)
    late.build([w])
    w.assign([1.0])
    for _ in range(3):
        late.apply([tf.constant([1.0])], [w])
        plain.apply([tf.constant([1.0])], [loaded])
    with late.evaluation_weights(), plain.evaluation_weights():
        assert np.array_equal(w, loaded)


# In `fit`.

X = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
Y = (X @ [[1.0], [-2.0], [0.5]]).astype("float32")


def model(cls=tg.ScheduleFreeAdamW, **options):
    keras.utils.set_random_seed(1)
    result = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    result.compile(cls(0.05, **options), "mse")
    return result


def fit(given, epochs, *callbacks, **options):
    arguments = {"epochs": epochs, "batch_size": 8, "shuffle": False, "verbose": 0}
    return given.fit(X, Y, **arguments, callbacks=[*callbacks], **options)


@pytest.mark.slow
def test_fit_ends_with_the_evaluation_weights():
    one = model()
    fit(one, 2)
    assert one.optimizer.evaluating
    x = one.get_weights()
    loss = one.evaluate(X, Y, verbose=0)
    one.optimizer.use_training_weights()
    assert not same(x, one.get_weights())
    assert loss != one.evaluate(X, Y, verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize("state_dtype", ["bfloat16", "bfloat16+8"])
@pytest.mark.parametrize("cls", CLASSES[1:])
def test_fit_ends_with_the_evaluation_weights_beside_rounded_slots(cls, state_dtype):
    one = model(cls, state_dtype=state_dtype)
    fit(one, 2, validation_data=(X, Y))
    assert one.optimizer.evaluating
    one.optimizer.use_training_weights()
    y = one.get_weights()
    one.optimizer.use_evaluation_weights()
    one.optimizer.use_training_weights()
    assert same(y, one.get_weights())


@pytest.mark.slow
def test_with_the_callback_a_second_fit_continues_to_the_bit():
    one, two = model(), model()
    fit(one, 3, tg.EvaluationWeights())
    fit(two, 1, tg.EvaluationWeights(), validation_data=(X, Y))
    two.predict(X, verbose=0)
    fit(two, 2, tg.EvaluationWeights(), validation_data=(X, Y))
    assert same(one.get_weights(), two.get_weights())
    one.optimizer.use_training_weights()
    two.optimizer.use_training_weights()
    assert same(one.get_weights(), two.get_weights())


@pytest.mark.slow
def test_validation_and_later_callbacks_use_the_evaluation_weights(tmp_path):
    one, found = model(), []
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: found.append(one.get_weights()),
        on_train_batch_end=lambda batch, logs: found.append(one.optimizer.evaluating),
    )
    saved = keras.callbacks.ModelCheckpoint(tmp_path / "model.keras")
    history = fit(one, 1, tg.EvaluationWeights(), look, saved, validation_data=(X, Y)).history
    assert not any(found[:-1])
    assert same(found[-1], one.get_weights())
    assert history["val_loss"][-1] == pytest.approx(one.evaluate(X, Y, verbose=0))
    assert same(keras.models.load_model(tmp_path / "model.keras").get_weights(), found[-1])


@pytest.mark.slow
def test_evaluate_with_the_callback_puts_back_all_it_changed():
    keras.utils.set_random_seed(1)
    norm = keras.layers.BatchNormalization()
    one = keras.Sequential([keras.Input([3]), keras.layers.Dense(4), norm, keras.layers.Dense(1)])
    one.compile(tg.ScheduleFreeSGD(0.1), "mse", jit_compile=False)
    fit(one, 1)
    one.optimizer.use_training_weights()
    before = one.get_weights()
    callback = tg.EvaluationWeights(data=[X[:8], X[8:]])
    one.evaluate(X, Y, verbose=0, callbacks=[callback])
    assert same(one.get_weights(), before)
    fit(one, 1, callback)  # which leaves the evaluation weights and their statistics
    before = one.get_weights()
    one.evaluate(X, Y, verbose=0, callbacks=[callback])
    assert same(one.get_weights(), before)


def test_after_a_fit_that_was_stopped_the_callback_begins_anew():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    one, callback = model(), tg.EvaluationWeights()
    with pytest.raises(KeyboardInterrupt):
        fit(one, 1, callback, Stop())
    assert not one.optimizer.evaluating
    one.evaluate(X, Y, verbose=0, callbacks=[callback])
    assert not one.optimizer.evaluating


@pytest.mark.slow
def test_the_statistics_of_batch_normalization_are_those_of_the_evaluation_weights():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    one = keras.Sequential([keras.Input([3]), *layers])
    one.compile(tg.ScheduleFreeSGD(0.1), "mse")
    fit(one, 1, tg.EvaluationWeights([X]))
    assert one.optimizer.evaluating
    mean = tf.reduce_mean(layers[0](X), axis=0)
    np.testing.assert_allclose(layers[1].moving_mean, mean, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("evaluating", [True, False])
def test_a_file_of_either_state_has_both(tmp_path, evaluating):
    one, whole = model(), model()
    fit(one, 1, tg.EvaluationWeights())
    if not evaluating:
        one.optimizer.use_training_weights()
    one.save(tmp_path / "model.keras")
    tf.train.Checkpoint(model=one).write(str(tmp_path / "checkpoint"))
    fit(whole, 2, tg.EvaluationWeights())
    loaded, restored = keras.models.load_model(tmp_path / "model.keras"), model()
    restored.optimizer.build(restored.trainable_variables)
    tf.train.Checkpoint(model=restored).read(str(tmp_path / "checkpoint")).assert_consumed()
    for other in (loaded, restored):
        assert other.optimizer.evaluating == evaluating
        assert same(other.get_weights(), one.get_weights())
        fit(other, 1, tg.EvaluationWeights())
        assert same(other.get_weights(), whole.get_weights())


@pytest.mark.slow
def test_on_two_replicas():
    with replicas.mirrored().scope():
        two = model()
    one = model()
    for given in (one, two):
        fit(given, 1, tg.EvaluationWeights(), validation_data=(X, Y))
        fit(given, 1, tg.EvaluationWeights())
    evaluated = one.get_weights()
    assert_close(evaluated, two.get_weights())
    one.optimizer.use_training_weights()
    two.optimizer.use_training_weights()
    assert_close(one.get_weights(), two.get_weights())
    assert not same(one.get_weights(), evaluated)


def assert_close(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_the_callback_refuses_other_optimizers():
    one = model(tg.SGD)
    with pytest.raises(TypeError, match="the model's optimizer is SGD, which has no"):
        fit(one, 1, tg.EvaluationWeights())
    with pytest.raises(TypeError, match=r"an iterator can be read once; give a list or a tf\.data"):
        tg.EvaluationWeights(data=(x for x in [X]))


def test_other_optimizers_cannot_contain_it():
    with pytest.raises(TypeError, match="must be the outermost optimizer"):
        tg.LARC(tg.ScheduleFreeSGD())


@pytest.mark.slow
def test_the_kernel_steps_as_far_from_the_truth_as_step_does():
    """Both get z from a difference of two weights that are ten times closer than z."""

    def after(dtype, kernel):
        optimizer = tg.ScheduleFreeAdamW(0.01)
        if not kernel:
            cls = type(optimizer)
            optimizer.__class__ = type(cls.__name__, (cls,), {"kernel": None})
        random = np.random.default_rng(0)
        w = tf.Variable(random.normal(size=2000).astype(dtype))
        step = tf.function(lambda g: optimizer.apply([g], [w]))
        optimizer.build([w])
        for _ in range(20):
            step(tf.constant(random.normal(size=2000).astype("float32").astype(dtype)))
        trained = w.numpy()
        optimizer.use_evaluation_weights()
        return np.stack([trained, w.numpy()])

    def off(kernel):
        return np.sqrt(np.mean((after("float32", kernel) - after("float64", False)) ** 2))

    assert 0 < off(kernel=True) < 2 * off(kernel=False)


def test_a_subclass_with_a_direction_of_its_own_takes_it():
    """The kernel it would inherit computes the direction of its base class."""

    class Still(tg.ScheduleFreeAdamW):
        def direction(self, g, s, t):
            return tf.zeros_like(g), {"velocity": s["velocity"]}

    w = tf.Variable([1.0, 2.0])
    Still().apply([tf.constant([1.0, 1.0])], [w])
    assert w.numpy().tolist() == [1.0, 2.0]
