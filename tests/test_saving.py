"""State survives saving and loading bit for bit, or is refused and nothing changes.

G07 (resume), G10 (another optimizer's state), G11 (another order), G14 (`.keras`, `.weights.h5`,
`tf.train.Checkpoint`, SavedModel).
"""

import contextlib
import itertools
from typing import ClassVar

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft
from support import file_models, samples
from support.saving import (
    WAYS,
    checkpoint,
    compiled,
    everything,
    keras_file,
    train,
    trained,
    weights_file,
)
from support.wrappers import WRAPPERS, inside
from tf_graft.compose.wrapper import Wrapper

# What Keras' own saving of model weights warns of, with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

NAMES = (
    *("sgd_momentum", "adagrad", "adadelta", "rmsprop_centered_momentum", "adam_amsgrad", "adamw"),
    "graft_decays_diagnostic",
)
OPTIONS = {"plain": {}, "together": samples.OPTIONS["together"]}
BEFORE, AFTER = 3, 4  # an odd number, so that half an accumulation is carried too


def make(name: str, option: str = "plain", **options) -> tf_graft.Optimizer:
    return samples.BY_NAME[name].make(0.05, name="optimizer", **OPTIONS[option], **options)


QUICK = {
    *(("adamw", "together", way) for way in WAYS),
    *(("sgd_momentum", "plain", way) for way in WAYS),
    ("adagrad", "plain", keras_file),
    ("adadelta", "together", weights_file),
    ("rmsprop_centered_momentum", "together", keras_file),
    ("adam_amsgrad", "plain", checkpoint),
    ("graft_decays_diagnostic", "together", weights_file),
}


@pytest.mark.parametrize(
    ("name", "option", "way"),
    [
        case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow)
        for number, case in enumerate(itertools.product(NAMES, OPTIONS, WAYS))
        if case in QUICK or (number // len(WAYS) + number) % 8 == 1  # an eighth of them
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_resume_bit_for_bit(name, option, way, tmp_path):
    undisturbed = compiled(make(name, option))
    train(undisturbed, 0, BEFORE)
    load = way(undisturbed, tmp_path)
    at_saving = everything(undisturbed)

    keras.utils.set_random_seed(99)  # other weights
    fresh = compiled(make(name, option))
    resumed = load(fresh)
    samples.assert_same_state(everything(resumed), at_saving)

    train(undisturbed, BEFORE, BEFORE + AFTER)
    train(resumed, BEFORE, BEFORE + AFTER)
    expected = everything(undisturbed)
    samples.assert_same_state(everything(resumed), expected)
    assert expected["model 0"].tobytes() != at_saving["model 0"].tobytes()
    steps = OPTIONS[option].get("gradient_accumulation_steps", 1)
    assert int(resumed.optimizer.iterations.numpy()) == (BEFORE + AFTER) // steps


@pytest.mark.slow
@pytest.mark.parametrize("way", [keras_file, weights_file, checkpoint])
@pytest.mark.parametrize("outer", WRAPPERS)
def test_a_wrapper_in_a_wrapper_is_restored_with_the_values_of_each(outer, way, tmp_path):
    """Rates that are numbers, and a momentum, all set anew since the optimizer was made."""
    for inner in inside(outer):

        def made(inner=inner):
            leaf = tf_graft.SGD(0.1, momentum=tf_graft.Settable(0.9))
            return compiled(WRAPPERS[outer](WRAPPERS[inner](leaf)))

        saved = made()
        optimizer = saved.optimizer
        optimizer.build(saved)
        values = optimizer.state.rate_variables() | optimizer.state.value_variables()
        assert any(name.endswith("momentum_value") for name in values)
        for variable in values.values():
            variable.assign(variable / 2)
        loaded = way(saved, tmp_path)(made())
        samples.assert_same_state(everything(loaded), everything(saved))


class Keeper(Wrapper):
    """A wrapper that keeps its optimizer where TensorFlow does not see it."""

    roles: ClassVar = {"inner": "inner"}

    def __init__(self, inner, learning_rate=1.0, **common):
        super().__init__(learning_rate, **common)
        self.inner = lambda: inner
        self.rule.inner["inner"] = inner.rule
        self.state.adopt("inner", inner.state)

    def children(self):
        return {"inner": self.inner()}

    def propose(self, points):
        return self.inner().rule.proposals(points)


def test_a_checkpoint_that_could_not_be_restored_is_not_written(tmp_path):
    optimizer, variable = Keeper(tf_graft.SGD(0.1)), tf.Variable([1.0])
    optimizer.build([variable])
    with pytest.raises(tf_graft.CheckpointError) as error:
        tf.train.Checkpoint(optimizer=optimizer).write(str(tmp_path / "checkpoint"))
    assert str(error.value) == (
        "Keeper(SGD): a checkpoint of TensorFlow would lack 1 of its 5 variables, such as "
        "'inner/learning_rate', because no attribute leads to them; assign each optimizer or "
        "variable that the optimizer contains to an attribute of it, or use model.save_weights."
    )


def test_the_comparison_notices_state_that_starts_anew(tmp_path):
    """The check of the check: weights alone are not enough."""
    undisturbed = compiled(make("adamw"))
    train(undisturbed, 0, BEFORE)
    resumed = compiled(make("adamw"))
    resumed.set_weights(undisturbed.get_weights())
    train(undisturbed, BEFORE, BEFORE + 1)
    train(resumed, BEFORE, BEFORE + 1)
    with pytest.raises(AssertionError):
        samples.assert_same_state(everything(resumed), everything(undisturbed))


@pytest.mark.parametrize(
    ("dtype", "way"), list(zip(itertools.cycle(["bfloat16", "float16"]), WAYS, strict=False))
)
def test_half_precision_masters_bit_for_bit(dtype, way, tmp_path):
    """The variables alone would lose what the masters hold below their last bit."""
    with contextlib.ExitStack() as stack:
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(dtype)
        stack.callback(keras.config.set_dtype_policy, before)
        undisturbed = compiled(make("adamw"))
        fresh = compiled(make("adamw"))
    gradients = [tf.ones(v.shape, dtype) for v in undisturbed.trainable_variables]

    def steps(model, count):
        for _ in range(count):
            model.optimizer.learning_rate = 1e-4
            model.optimizer.apply(gradients, model.trainable_variables)

    steps(undisturbed, BEFORE)
    resumed = way(undisturbed, tmp_path)(fresh)
    masters = {k: v for k, v in everything(resumed).items() if k.endswith("/master")}
    assert len(masters) == 5
    rounded = tf.cast(tf.cast(masters["head/kernel/master"], dtype), tf.float32)
    assert not np.array_equal(masters["head/kernel/master"], rounded)
    samples.assert_same_state(everything(resumed), everything(undisturbed))
    steps(undisturbed, AFTER)
    steps(resumed, AFTER)
    samples.assert_same_state(everything(resumed), everything(undisturbed))


def test_resume_of_schedule_and_skipped_steps(tmp_path):
    schedule = tf_graft.schedules.PolyDecay(0.1, 10)
    model = compiled(tf_graft.Adam(schedule))
    train(model, 0, 3)
    model.optimizer.apply([v.value * np.nan for v in model.trainable_variables])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert int(loaded.optimizer.skipped_steps.numpy()) == 1
    assert int(loaded.optimizer.iterations.numpy()) == 3
    rate = float(loaded.optimizer.learning_rate)
    assert rate == float(model.optimizer.learning_rate)
    assert rate == pytest.approx(float(schedule(3)))


def test_changed_learning_rate_is_carried(tmp_path):
    model = compiled(tf_graft.Adam(0.1))
    train(model, 0, 1)
    model.optimizer.learning_rate = 0.025
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert float(loaded.optimizer.learning_rate) == np.float32(0.025)


def test_keras_file_carries_every_argument(tmp_path):
    given = {
        "clipnorm": 0.5,
        "sparse": "exact",
        "nonfinite": "apply",
        "jit_compile": False,
        "weight_decay": 0.01,
        "exclude_from_weight_decay": ["bias$"],
        "amsgrad": True,
    }
    model = compiled(tf_graft.Adam(0.1, **given))
    train(model, 0, 1)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is tf_graft.Adam
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    assert {k: loaded.optimizer.get_config()[k] for k in given} == given


# Not built.


def test_saved_before_it_was_built(tmp_path):
    """There is no state to carry: it loads into built and unbuilt ones."""
    model = compiled(make("adamw"))
    assert not model.optimizer.built
    model.save_weights(tmp_path / "model.weights.h5")
    fresh = compiled(make("adamw"))
    fresh.load_weights(tmp_path / "model.weights.h5")
    train(model, 0, 2)
    train(fresh, 0, 2)
    samples.assert_same_state(everything(fresh), everything(model))


@pytest.mark.slow
def test_fit_after_load_model_goes_on(tmp_path):
    model = compiled(make("adamw", "together"))
    train(model, 0, 2)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    x, y = np.ones((4, 3), np.int32), np.ones((4, 1), np.float32)
    loaded.fit(x, y, batch_size=2, epochs=1, verbose=0)
    assert int(loaded.optimizer.iterations.numpy()) == 2


# The state of something else: refused, and nothing of the optimizer changes.


def assert_refused(load, model, match: str | None = None) -> None:
    """Loading raises and leaves every variable of the optimizer as it was.

    Keras collects what its objects raise: in `load_weights` it is a ValueError with our sentence.
    """
    before = samples.state_of(model.optimizer)
    with pytest.raises(ValueError, match=match) as caught:
        load(model)
    assert "AdamW" in str(caught.value) or "Adam:" in str(caught.value)
    samples.assert_same_state(samples.state_of(model.optimizer), before)


@pytest.mark.parametrize("way", [weights_file, checkpoint])
def test_another_optimizer_of_ours_is_refused(way, tmp_path):
    """RMSprop with momentum and Adam have equal roles, shapes and number of slots."""
    saved = trained(make("rmsprop_momentum"))
    target = trained(make("adam_amsgrad"))
    assert_refused(way(saved, tmp_path), target, match="RMSprop")


@pytest.mark.parametrize("way", [weights_file, checkpoint])
def test_subclass_with_equal_slots_is_another_optimizer(way, tmp_path):
    saved = trained(make("adamw"))
    target = trained(samples.BY_NAME["adam"].make(0.05, name="optimizer"))
    assert_refused(way(saved, tmp_path), target, match="AdamW")


@pytest.mark.parametrize(
    ("option", "more_is_saved", "way"),
    [
        ("use_ema", False, weights_file),
        ("use_ema", True, checkpoint),
        ("gradient_accumulation_steps", True, weights_file),
        ("gradient_accumulation_steps", False, checkpoint),
    ],
)
def test_same_optimizer_with_other_state_is_refused(way, more_is_saved, option, tmp_path):
    more, less = make("adamw", **{option: 2 if "steps" in option else True}), make("adamw")
    saved, target = (more, less) if more_is_saved else (less, more)
    load = way(trained(saved), tmp_path)
    assert_refused(load, trained(target))


def test_our_state_is_no_stock_optimizers(tmp_path):
    ours = trained(make("adamw"))
    ours.save_weights(tmp_path / "model.weights.h5")
    stock = trained(keras.optimizers.AdamW(0.05))
    before = [v.numpy() for v in stock.optimizer.variables]
    with pytest.raises((KeyError, ValueError, AttributeError)):
        stock.load_weights(tmp_path / "model.weights.h5")
    for a, b in zip(stock.optimizer.variables, before, strict=True):
        np.testing.assert_array_equal(a.numpy(), b)


def store_of(optimizer) -> dict:
    """What the optimizer writes into a Keras weights store."""
    store: dict = {}
    optimizer.save_own_variables(store)
    return store


def optimizer_for(shapes, name="adam", steps=2):
    model = samples.variables(samples.weights(shapes))
    optimizer = samples.BY_NAME[name].make(name="optimizer")
    optimizer.build(list(model.values()))
    for gradients in samples.gradients(steps, shapes):
        optimizer.apply([tf.constant(g) for g in gradients.values()], list(model.values()))
    return optimizer


# With more or fewer variables it is loaded as far as it fits: `test_fine_tuning.py`.
OTHERS = {
    "another shape": {"kernel": (4, 3), "bias": (4,), "scale": ()},
    "transposed": {"kernel": (3, 4), "bias": (3,), "scale": ()},
    "another name": {"kernel": (4, 3), "bias": (3,), "factor": ()},
}


@pytest.mark.parametrize("other", OTHERS)
def test_state_of_other_variables_is_refused(other):
    saved, target = optimizer_for(OTHERS[other], steps=3), optimizer_for(samples.SHAPES)
    before = samples.state_of(target)
    with pytest.raises(tf_graft.CheckpointError, match="Nothing was loaded"):
        target.load_own_variables(store_of(saved))
    samples.assert_same_state(samples.state_of(target), before)


@pytest.mark.parametrize("other", OTHERS)
def test_checkpoint_of_other_variables_is_refused(other, tmp_path):
    saved, target = optimizer_for(OTHERS[other], steps=3), optimizer_for(samples.SHAPES)
    path = tf.train.Checkpoint(optimizer=saved).write(str(tmp_path / "checkpoint"))
    before = samples.state_of(target)
    with pytest.raises(tf_graft.CheckpointError):
        tf.train.Checkpoint(optimizer=target).read(path)
    samples.assert_same_state(samples.state_of(target), before)


@pytest.mark.parametrize("other", OTHERS)
def test_deferred_checkpoint_of_other_variables_is_refused(other, tmp_path):
    """The optimizer is built after the checkpoint was read: then it is refused."""
    saved = optimizer_for(OTHERS[other], steps=3)
    path = tf.train.Checkpoint(optimizer=saved).write(str(tmp_path / "checkpoint"))
    target = samples.BY_NAME["adam"].make(name="optimizer")
    model = samples.variables(samples.weights())
    tf.train.Checkpoint(optimizer=target).read(path)
    with pytest.raises(tf_graft.CheckpointError):
        target.build(list(model.values()))


def test_store_with_an_entry_missing_or_altered_is_refused():
    saved, target = optimizer_for(samples.SHAPES, steps=3), optimizer_for(samples.SHAPES)
    store = store_of(saved)
    before = samples.state_of(target)
    without = {k: v for k, v in store.items() if k != "kernel|velocity"}
    assert len(without) == len(store) - 1
    with pytest.raises(tf_graft.CheckpointError, match=r"kernel\|velocity"):
        target.load_own_variables(without)
    with pytest.raises(tf_graft.CheckpointError, match="shape"):
        target.load_own_variables(store | {"kernel|velocity": np.ones((4, 1), np.float32)})
    with pytest.raises(tf_graft.CheckpointError):
        target.load_own_variables(store | {"optimizer": np.frombuffer(b"\xff\x00", np.uint8)})
    with pytest.raises(tf_graft.CheckpointError, match="neither of a tf_graft"):
        target.load_own_variables({k: v for k, v in store.items() if k != "optimizer"})
    samples.assert_same_state(samples.state_of(target), before)
    target.load_own_variables(store)
    samples.assert_same_state(samples.state_of(target), samples.state_of(saved))


# By path, not by position.


def test_variables_in_another_order_load_by_path():
    shapes = {"a": (2, 2), "b": (2, 2), "c": (2, 2)}
    saved = optimizer_for(shapes, steps=3)
    target = optimizer_for(dict(reversed(shapes.items())), steps=1)
    expected = samples.state_of(saved)
    assert expected["a/momentum"].tobytes() != expected["c/momentum"].tobytes()
    target.load_own_variables(store_of(saved))
    samples.assert_same_state(samples.state_of(target), expected)


def test_checkpoint_in_another_order_loads_by_path(tmp_path):
    shapes = {"a": (2, 2), "b": (2, 2), "c": (2, 2)}
    saved = optimizer_for(shapes, steps=3)
    target = optimizer_for(dict(reversed(shapes.items())), steps=1)
    path = tf.train.Checkpoint(optimizer=saved).write(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(optimizer=target).read(path).assert_consumed()
    samples.assert_same_state(samples.state_of(target), samples.state_of(saved))


@pytest.mark.parametrize("way", [weights_file, checkpoint])
def test_layers_with_other_numbers_load_in_order(way, tmp_path):
    """Keras numbers layers on: a script that makes one more layer before has other names."""

    def numbered_from(first):
        inputs = x = keras.Input((2,))
        for i in range(3):
            x = keras.layers.Dense(2, name=f"dense_{first + i}")(x)
        model = keras.Model(inputs, x)
        model.compile(tf_graft.Adam(0.1), "mse", jit_compile=False)
        model.optimizer.build(model.trainable_variables)
        return model

    saved = numbered_from(1)
    gradients = [tf.fill(w.shape, float(i)) for i, w in enumerate(saved.trainable_variables)]
    saved.optimizer.apply(gradients, saved.trainable_variables)
    loaded = way(saved, tmp_path)(numbered_from(2))
    for before, after in zip(saved.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(before.numpy(), after.numpy())


@pytest.mark.slow
def test_other_layers_of_equal_shapes_are_refused(tmp_path):
    """Two layers that swapped their names are not the layers that were saved."""

    def two(first, second):
        layers = [keras.layers.Dense(2, name=first), keras.layers.Dense(2, name=second)]
        model = keras.Sequential([keras.Input([2]), *layers], name="net")
        model.compile(optimizer=make("adamw"), loss="mse")
        model.fit(np.ones((4, 2)), np.ones((4, 2)), verbose=0)
        return model

    load = weights_file(two("a", "b"), tmp_path)
    assert_refused(load, two("c", "d"), match="Nothing was loaded")


MODELS = {}


def a_model(function):
    MODELS[function.__name__] = function
    return function


@a_model
def unnamed():
    """Keras numbers unnamed models and layers."""
    return keras.Sequential([keras.Input([2]), keras.layers.Dense(2), keras.layers.Dense(1)])


@a_model
def functional():
    inputs = keras.Input([2])
    hidden = keras.layers.Dense(3, name="hidden")(inputs)
    return keras.Model(inputs, keras.layers.Dense(1, name="head")(hidden), name="net")


@a_model
def nested():
    inner = keras.Sequential([keras.Input([2]), keras.layers.Dense(3, name="a")], name="inner")
    inputs = keras.Input([2])
    return keras.Model(inputs, keras.layers.Dense(1, name="head")(inner(inputs)), name="net")


@a_model
def twins():
    """Layers of equal names and shapes in two containers."""
    parts = [
        keras.Sequential([keras.Input([2]), keras.layers.Dense(2, name="a")], name=name)
        for name in ("encoder", "decoder")
    ]
    return keras.Sequential([keras.Input([2]), *parts, keras.layers.Dense(1)], name="net")


@a_model
def recurrent():
    layer = keras.layers.Bidirectional(keras.layers.LSTM(2), name="both")
    layers = [keras.layers.Reshape([1, 2]), layer, keras.layers.Dense(1)]
    return keras.Sequential([keras.Input([2]), *layers], name="net")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [k if k == "twins" else pytest.param(k, marks=pytest.mark.slow) for k in MODELS],
)
def test_keras_file_of_models_whose_paths_keras_changes(kind, tmp_path):
    """On loading, the names of enclosing models and wrappers fall off the variables' paths."""

    def fit(model, seed):
        random = np.random.default_rng(seed)
        x, y = random.normal(size=(8, 2)), random.normal(size=(8, 1))
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)

    def values(model):
        variables = [*model.trainable_variables, *model.optimizer.variables]
        return [v.numpy() for v in variables]

    model = MODELS[kind]()
    model.compile(optimizer=tf_graft.Adam(0.05), loss="mse")
    fit(model, 0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for turn in (1, 2):
        for a, b in zip(values(loaded), values(model), strict=True):
            assert a.tobytes() == b.tobytes()
        fit(model, turn)
        fit(loaded, turn)
    # And once more, from what was loaded.
    loaded.save(tmp_path / "again.keras")
    again = keras.saving.load_model(tmp_path / "again.keras")
    for a, b in zip(values(again), values(model), strict=True):
        assert a.tobytes() == b.tobytes()


def test_variables_of_equal_name_are_told_apart(tmp_path):
    with keras.name_scope("same"):
        twins = [keras.Variable([1.0, 2.0], name="w"), keras.Variable([3.0, 4.0], name="w")]
    optimizer = tf_graft.Adam(0.1, name="optimizer")
    optimizer.apply([tf.constant([1.0, 2.0]), tf.constant([-5.0, 7.0])], twins)
    store = store_of(optimizer)
    other = tf_graft.Adam(0.1, name="optimizer")
    other.build(twins)
    other.load_own_variables(store)
    samples.assert_same_state(samples.state_of(other), samples.state_of(optimizer))
    state = samples.state_of(other)
    assert state["same/w/momentum"].tobytes() != state["same/w_1/momentum"].tobytes()


# Files that are not whole.


def test_truncated_weights_file_is_a_clear_error(tmp_path):
    model = trained(make("adamw"))
    file = tmp_path / "model.weights.h5"
    model.save_weights(file)
    whole = file.read_bytes()
    target = trained(make("adamw"))
    before = everything(target)
    for length in (len(whole) // 2, len(whole) - 100, 10, 0):
        file.write_bytes(whole[:length])
        with pytest.raises((OSError, ValueError)):
            target.load_weights(file)
        samples.assert_same_state(everything(target), before)


def test_truncated_checkpoint_is_a_clear_error(tmp_path):
    model = trained(make("adamw"))
    path = tf.train.Checkpoint(optimizer=model.optimizer).write(str(tmp_path / "checkpoint"))
    shard = tmp_path / "checkpoint.data-00000-of-00001"
    shard.write_bytes(shard.read_bytes()[:-40])
    with pytest.raises((tf.errors.OpError, ValueError, IndexError)):
        tf.train.Checkpoint(optimizer=model.optimizer).read(path).assert_consumed()


def test_a_flipped_bit_in_a_checkpoint_is_named(tmp_path):
    model = trained(make("adamw"))
    path = tf.train.Checkpoint(optimizer=model.optimizer).write(str(tmp_path / "checkpoint"))
    shard = tmp_path / "checkpoint.data-00000-of-00001"
    held = bytearray(shard.read_bytes())
    slot = model.optimizer.state.named()["net/hidden/kernel/momentum"]
    held[held.index(np.asarray(slot).tobytes())] ^= 1
    shard.write_bytes(held)
    before = everything(model)
    with pytest.raises(tf_graft.CheckpointError, match=r"read .*Checksum does not match.*Nothing"):
        tf.train.Checkpoint(optimizer=model.optimizer).read(path)
    samples.assert_same_state(everything(model), before)


# SavedModel.


def test_export_of_a_trained_model_serves_its_weights(tmp_path):
    model = trained(make("adamw", "together"))
    ids = np.arange(6, dtype=np.int32).reshape(2, 3)
    model.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(exported.serve(ids), model(ids), rtol=1e-6)


@pytest.mark.slow
def test_saved_model_carries_the_optimizer_state(tmp_path):
    """A SavedModel is a checkpoint inside: the optimizer's state is in it, by the same keys."""
    model = trained(make("adamw", "together"))
    tf.saved_model.save(model, str(tmp_path / "saved"))
    keras.utils.set_random_seed(99)
    fresh = compiled(make("adamw", "together"))
    fresh.optimizer.build(fresh)
    variables = str(tmp_path / "saved" / "variables" / "variables")
    tf.train.Checkpoint(fresh).read(variables).expect_partial()
    samples.assert_same_state(everything(fresh), everything(model))


def test_saved_model_of_an_optimizer_alone(tmp_path):
    optimizer = optimizer_for(samples.SHAPES)
    module = tf.Module()
    module.optimizer = optimizer
    tf.saved_model.save(module, str(tmp_path / "saved"))
    target = optimizer_for(samples.SHAPES, steps=1)
    variables = str(tmp_path / "saved" / "variables" / "variables")
    tf.train.Checkpoint(optimizer=target).read(variables).expect_partial()
    samples.assert_same_state(samples.state_of(target), samples.state_of(optimizer))


SCRATCH = {
    "rmsprop": lambda: tf_graft.RMSprop(0.1),
    "lamb": lambda: tf_graft.LAMB(0.1),
    "cautious": lambda: tf_graft.Cautious(tf_graft.Adam(0.1)),
    "graft": lambda: tf_graft.AdaGraft(tf_graft.SGD(0.1, momentum=0.9), tf_graft.Adam(0.1)),
}


@pytest.mark.parametrize("count", [2, 6], ids=["apart", "shared"])
@pytest.mark.parametrize("name", SCRATCH)
def test_a_loaded_step_trains_as_the_saved_one(name, count, tmp_path):
    """TensorFlow gives the scratch variables of a step other names when it loads the step."""
    module = tf.Module()
    module.model = [tf.Variable(tf.fill([64, 64], i + 1.0)) for i in range(count)]
    module.optimizer = SCRATCH[name]()
    module.optimizer.build(module.model)

    @tf.function(input_signature=[tf.TensorSpec([count, 64, 64])])
    def step(gradients):
        module.optimizer.apply(tf.unstack(gradients), module.model)
        return tf.stack([tf.identity(w) for w in module.model])

    module.step = step
    gradients = tf.random.stateless_normal([count, 64, 64], [1, 2])
    step(gradients)
    tf.saved_model.save(module, str(tmp_path / "saved"))
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    for _ in range(3):
        np.testing.assert_array_equal(loaded.step(gradients), step(gradients))


# Keras' own lists of state.


@pytest.mark.parametrize("option", OPTIONS)
def test_set_weights_takes_what_variables_give(option):
    model = trained(make("adamw", option))
    values = [v.numpy() for v in model.optimizer.variables]
    fresh = compiled(make("adamw", option))
    fresh.optimizer.build(fresh)
    fresh.optimizer.set_weights(values)
    fresh.set_weights(model.get_weights())
    samples.assert_same_state(everything(fresh), everything(model))
    assert [v.path for v in fresh.optimizer.variables] == [
        v.path for v in model.optimizer.variables
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in file_models.optimizers() if n != "stock"])
def test_a_whole_model_in_h5_keeps_the_state(name, tmp_path):
    """Keras sets the weights of an optimizer that it has not built."""
    model = file_models.net()
    model.compile(file_models.optimizers()[name](), keras.losses.MeanSquaredError())
    file_models.fit(model).save(tmp_path / "model.h5")
    loaded = keras.saving.load_model(tmp_path / "model.h5")
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations) > 0
    for each in (model, loaded):
        file_models.fit(each)
    assert file_models.weights(loaded).tobytes() == file_models.weights(model).tobytes()


def test_weights_that_are_set_before_the_variables_are_known_are_checked():
    w = [tf.Variable([1.0, 2.0])]
    for change, message in (
        (lambda v: [v[0], np.float32(np.nan), *v[2:]], "learning_rate' holds nan"),
        (lambda v: v[:2], "2 values were given, and even before it is built"),
        (lambda v: v[:-1], "values were given for"),
        (lambda v: [*v[:-1], np.ones(7, np.float32)], r"no value of shape \(2,\)"),
    ):
        optimizer, known = tf_graft.Adam(0.5), tf_graft.Adam(0.25)
        known.build(w)
        with pytest.raises(ValueError, match=message):  # noqa: PT012 - whichever of the two sees it
            optimizer.set_weights(change([v.numpy() for v in known.variables]))
            optimizer.build(w)
        assert float(optimizer.learning_rate) == 0.5


def test_set_weights_of_another_shape_is_refused():
    optimizer = optimizer_for(samples.SHAPES)
    values = [v.numpy() for v in optimizer.variables]
    with pytest.raises(ValueError, match="shape"):
        optimizer.set_weights([*values[:-1], np.ones((7,), np.float32)])


def test_checkpoint_manager_keeps_and_restores_in_a_loop(tmp_path):
    model = compiled(make("adamw", "together"))
    whole = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    manager = tf.train.CheckpointManager(whole, str(tmp_path), max_to_keep=2)
    states = []
    for step in range(3):
        train(model, step, step + 1)
        manager.save()
        states.append(everything(model))
    for path, state in zip(manager.checkpoints, states[1:], strict=True):
        whole.restore(path).assert_consumed()
        samples.assert_same_state(everything(model), state)
