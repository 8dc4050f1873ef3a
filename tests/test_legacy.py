"""Models of tf_keras: the same numbers as models of Keras 3, files, replicas, loops."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import forked, replicas

tf_keras = pytest.importorskip("tf_keras", reason="tf_keras is not installed")

MADE = {
    "SGD": lambda: tg.SGD(0.01, momentum=0.9),
    "Adam": lambda: tg.Adam(0.01, use_ema=True, global_clipnorm=1.0),
    "LARS": lambda: tg.LARS(0.1),
    "LAMB": lambda: tg.LAMB(0.01),
    "AdaGraft": lambda: tg.AdaGraft(tg.Adam(0.01), tg.SGD(1.0)),
    "MixedPrecision": lambda: tg.MixedPrecision(tg.Adam(0.01), "backoff"),
    "schedule": lambda: tg.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
    "of Keras": lambda: tg.wrap(keras.optimizers.Nadam(0.01)),
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


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_fit_equals_that_of_a_model_of_keras_3(name):
    ours, expected = fitted(tf_keras, tg.legacy(MADE[name]())), fitted(keras, MADE[name]())
    for value, right in zip(ours.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-6)
    assert int(ours.optimizer.iterations) == 8


def gradients_of(model, ids):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(ids) ** 2) / 8
    return tape.gradient(loss, model.trainable_variables)


def looped(optimizer, apply):
    """A model after two steps on row-sparse gradients, eagerly."""
    model = model_of(tf_keras)
    for ids in np.split(IDS, 2):
        gradients = gradients_of(model, ids)
        assert isinstance(gradients[0], tf.IndexedSlices)
        apply(optimizer, list(zip(gradients, model.trainable_variables, strict=True)))
    return model.get_weights()


@pytest.mark.parametrize(
    "arguments", [{"skip_gradients_aggregation": True}, {"experimental_aggregate_gradients": False}]
)
def test_a_loop_and_gradients_that_are_summed_already(arguments):
    right = looped(tg.Adam(0.1), lambda optimizer, both: optimizer.apply_gradients(both))
    for more in ({}, arguments):
        optimizer = tg.legacy(tg.Adam(0.1))
        weights = looped(optimizer, lambda o, both, more=more: o.apply_gradients(both, **more))
        for value, expected in zip(weights, right, strict=True):
            np.testing.assert_array_equal(value, expected)


def test_minimize_and_update_step():
    w = tf.Variable([3.0])
    optimizer = tg.legacy(tg.SGD(0.5))
    optimizer.minimize(lambda: w * w, [w])
    assert w.numpy() == 0
    optimizer.update_step(tf.constant([2.0]), w)
    assert w.numpy() == -1
    assert int(optimizer.iterations) == 1


def summed(gradients):
    dense = [tf.convert_to_tensor(g) for g in gradients]
    return tf.distribute.get_replica_context().all_reduce("SUM", dense)


def on_replicas(optimizer, model, _):
    def step(ids):
        both = zip(gradients_of(model, ids), model.trainable_variables, strict=True)
        optimizer.apply_gradients(both)

    replicas.mirrored().run(tf.function(step), (replicas.per_replica(np.split(IDS, 2)),))


def summed_by_the_user(optimizer, model, _):
    def step(ids):
        both = zip(summed(gradients_of(model, ids)), model.trainable_variables, strict=True)
        optimizer.apply_gradients(both, skip_gradients_aggregation=True)

    replicas.mirrored().run(tf.function(step), (replicas.per_replica(np.split(IDS, 2)),))


def outside_replicas(optimizer, model, one):
    both = zip(gradients_of(one, IDS), model.trainable_variables, strict=True)
    optimizer.apply_gradients(both, skip_gradients_aggregation=True)


@pytest.mark.parametrize("step", [on_replicas, summed_by_the_user, outside_replicas])
def test_a_loop_on_replicas_equals_one_device(step):
    one = model_of(tf_keras)
    with replicas.mirrored().scope():
        several, optimizer = model_of(tf_keras), tg.legacy(tg.SGD(0.1))
        step(optimizer, several, one)
    both = zip(gradients_of(one, IDS), one.trainable_variables, strict=True)
    tg.legacy(tg.SGD(0.1)).apply_gradients(both)
    for value, right in zip(several.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_replicas_equal_one_device():
    strategy = replicas.mirrored()
    with strategy.scope():
        several = model_of(tf_keras)
        several.compile(tg.legacy(tg.Adam(0.01)), "mse")
    several.fit(IDS, TARGETS, batch_size=8, epochs=2, verbose=0, shuffle=False)
    one = fitted(tf_keras, tg.legacy(tg.Adam(0.01)))
    for value, right in zip(several.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
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


def test_a_loss_scale_of_tf_keras_changes_nothing():
    scaled = tf_keras.mixed_precision.LossScaleOptimizer(
        tg.legacy(tg.SGD(0.01)), dynamic=False, initial_scale=1024
    )
    right = fitted(tf_keras, tg.legacy(tg.SGD(0.01))).get_weights()
    for value, expected in zip(fitted(tf_keras, scaled).get_weights(), right, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6)


@pytest.mark.slow
def test_averages_are_written_when_fit_ends():
    model = fitted(tf_keras, tg.legacy(tg.SGD(0.01, use_ema=True)))
    averages = model.optimizer.optimizer.synchronized_averages()
    for value, average in zip(model.get_weights(), averages, strict=True):
        np.testing.assert_array_equal(value, average)


def test_arguments_are_those_of_the_optimizer():
    optimizer = tg.legacy(tg.Adam(0.5, clipnorm=1.0, use_ema=True))
    assert (optimizer.clipnorm, optimizer.use_ema, optimizer.weight_decay) == (1.0, True, None)
    optimizer.clipnorm = 2.0
    assert optimizer.optimizer.clipnorm == 2.0
    with pytest.raises(ValueError, match=r"clipnorm.* must"):
        optimizer.clipnorm = -1.0
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    assert optimizer.optimizer.decay_exclusions == ["bias"]
    assert optimizer.variables() == optimizer.variables


def test_a_config_makes_it_again():
    config = tf_keras.optimizers.serialize(tg.legacy(tg.LAMB(0.5, beta_1=0.8)))
    again = tf_keras.optimizers.deserialize(config)
    assert repr(again.optimizer) == "LAMB(learning_rate=0.5, beta_1=0.8)"
    assert again.name == "lamb"


@pytest.mark.slow
def test_a_checkpoint_is_restored_before_the_state_is_made(tmp_path):
    model = fitted(tf_keras, tg.legacy(tg.Adam(0.1)))
    model.save_weights(tmp_path / "weights")
    again = model_of(tf_keras)
    again.compile(tg.legacy(tg.Adam(0.1)), "mse")
    again.load_weights(tmp_path / "weights")
    for each in (model, again):
        each.fit(IDS, TARGETS, batch_size=8, verbose=0, shuffle=False)
    np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])


@pytest.mark.slow
def test_a_saved_model_has_the_weights_and_not_the_state(tmp_path):
    """As with the optimizers of tf_keras."""
    model = fitted(tf_keras, tg.legacy(tg.Adam(0.1)))
    model.save(tmp_path / "saved_model")
    again = tf_keras.models.load_model(tmp_path / "saved_model")
    for value, right in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(value, right)
    assert repr(again.optimizer.optimizer) == "Adam(learning_rate=0.1)"
    assert int(again.optimizer.iterations) == 0
    assert tf.saved_model.load(str(tmp_path / "saved_model")).signatures


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5:UserWarning")
@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("model.keras", "tf_graft"),
        pytest.param("model.h5", "tf_graft.tf_keras_models.optimizer", marks=pytest.mark.rare),
    ],
)
def test_a_new_process_loads_a_file(tmp_path, name, first):
    fitted(tf_keras, tg.legacy(tg.Adam(0.1))).save(tmp_path / name)
    program = f"import sys, {first}, tf_keras; m = tf_keras.models.load_model(sys.argv[1])\n"
    program += "print(int(m.optimizer.iterations), m.optimizer.optimizer)"
    command = [forked.python(), "-c", program, str(tmp_path / name)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert said.stdout.endswith("8 Adam(learning_rate=0.1)\n")


def test_a_missing_tf_keras_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tf_keras", None)
    monkeypatch.delitem(sys.modules, "tf_graft.tf_keras_models.optimizer", raising=False)
    version = ".".join(tf.__version__.split(".")[:2])
    command = rf"pip install 'tf_keras=={version}\.\*'"
    with pytest.raises(ImportError, match=f"legacy: tf_keras is not installed; run `{command}`"):
        tg.legacy(tg.Adam())


@pytest.mark.rare
def test_tf_keras_is_not_imported_before_it_is_needed():
    program = "import sys, tf_graft; print('tf_keras' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert said.stdout == b"False\n"


def test_a_model_of_tf_keras_takes_no_other_optimizer():
    with pytest.raises(ValueError, match="Could not interpret optimizer identifier"):
        model_of(tf_keras).compile(tg.Adam(), "mse")


def built():
    optimizer = tg.Adam()
    optimizer.build([tf.Variable(1.0)])
    return optimizer


def of_tf_keras():
    return tf_keras.optimizers.Adam()


def scheduled():
    return tg.Adam(tf_keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: "adm", ValueError, "adm"),
        (of_tf_keras, TypeError, "it is of tf_keras"),
        (built, ValueError, r"legacy\(Adam\): it is already built; give a new optimizer"),
        (
            lambda: tg.LARC(tg.Muon()),
            TypeError,
            r"legacy\(LARC\): Muon finds the matrices in the lay",
        ),
        (scheduled, TypeError, r"one of keras\.optimizers\.schedules or tf_graft\.schedules\."),
    ],
    ids=["name", "of tf_keras", "built", "matrices", "schedule"],
)
def test_what_cannot_be_done_is_refused(make, error, said):
    with pytest.raises(error, match=said):
        tg.legacy(make())


def test_gradients_are_checked():
    w = tf.Variable([1.0, 2.0])
    optimizer = tg.legacy(tg.Adam())
    for more in ({}, {"skip_gradients_aggregation": True}):
        with pytest.raises(ValueError, match=r"has shape \(3,\), the variable has shape \(2,\)"):
            optimizer.apply_gradients([(tf.ones(3), w)], **more)
        with pytest.raises(ValueError, match="no variable has a gradient"):
            optimizer.apply_gradients([(None, w)], **more)
    assert int(optimizer.apply_gradients([])) == 0


MISTAKEN = {
    "wrap": lambda model: tg.wrap(model.optimizer),
    "AdaGraft": lambda model: tg.AdaGraft(model.optimizer, tg.SGD()),
    "legacy": lambda model: tg.legacy(model.optimizer),
    "serialize": lambda model: tg.serialize(model.optimizer),
    "find_learning_rate": lambda model: tg.find_learning_rate(model, (IDS, TARGETS)),
    "layerwise_decay": lambda model: tg.layerwise_decay(model, 0.5),
    "no_decay": tg.no_decay,
}


@pytest.mark.parametrize("name", MISTAKEN)
def test_what_is_of_tf_keras_is_called_so(name):
    model = tf_keras.Sequential([tf_keras.layers.InputLayer((3,)), tf_keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(TypeError, match=r": it is of tf_keras; give an? .*tf_graft\.legacy\("):
        MISTAKEN[name](model)
