"""A load is whole or changes nothing, whoever refuses it and when.

Which altered states are refused is in `trust/state.py`.
"""

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft
from support import file_models
from support.file_models import compiled, fit, weights
from support.samples import assert_same_state, state_of
from tf_graft import SGD, Adam


def everything(model):
    return state_of(model.optimizer, *model.variables)


def values(optimizer):
    """Without paths: Keras numbers the layers of each model of a process anew."""
    return [v.numpy().tobytes() for v in optimizer.variables]


def entry(model, name, value):
    """Gives one of the optimizer's variables a value that no step does."""
    model.optimizer.state.named()[name].assign(value)
    return model


@pytest.mark.slow
def test_weights_are_put_back_where_the_optimizer_refuses(tmp_path):
    """Keras has loaded the layers by then."""
    entry(fit(compiled(Adam(0.01))), "iteration", -5).save_weights(tmp_path / "a.weights.h5")
    fit(compiled(SGD(0.01, momentum=0.9))).save_weights(tmp_path / "b.weights.h5")
    for name, reason in (("a", r"'iteration' holds -5 and must be in \[0,"), ("b", "state of SGD")):
        target = fit(compiled(Adam(0.01)), 1)
        before = everything(target)
        with pytest.raises(ValueError, match=reason):
            target.load_weights(tmp_path / f"{name}.weights.h5")
        assert_same_state(everything(target), before)


@pytest.mark.slow
@pytest.mark.parametrize("built", [True, False])
def test_the_optimizer_is_put_back_where_a_layer_does_not_fit(built, tmp_path):
    """Keras goes on to the optimizer, whose state fits, and then says that the layer did not."""
    file = tmp_path / "model.weights.h5"
    fit(compiled(Adam(0.01))).save_weights(file)
    with h5py.File(file, "a") as h5:
        (layer, *_) = h5["layers"]
        del h5[f"layers/{layer}/vars/1"]
        h5[f"layers/{layer}/vars/1"] = np.zeros(9, np.float32)
    target = compiled(Adam(0.25))
    if built:
        fit(target, 1)
    before = everything(target)
    with pytest.raises(ValueError, match="could not be loaded"):
        target.load_weights(file)
    found = everything(target)
    assert_same_state({name: found[name] for name in before}, before)
    assert not any(np.any(found[name]) for name in found.keys() - before.keys())
    assert int(target.optimizer.iterations) == (2 if built else 0)


@pytest.mark.slow
def test_state_of_other_arguments_is_refused_before_fit_and_can_be_left_out(tmp_path):
    """The order in which one resumes: compile, load, fit."""
    file, saved = tmp_path / "model.weights.h5", fit(compiled(Adam(0.01)))
    saved.save_weights(file)
    target = compiled(Adam(0.25, use_ema=True))
    before = weights(target)
    with pytest.raises(ValueError, match=r"/kernel/average', was not there .* skip_mismatch=True"):
        target.load_weights(file)
    assert weights(target).tobytes() == before.tobytes()
    with pytest.warns(UserWarning, match="could not be loaded"):
        target.load_weights(file, skip_mismatch=True)
    assert weights(target).tobytes() == weights(saved).tobytes()
    assert int(target.optimizer.iterations) == 0
    assert int(fit(target, 1).optimizer.iterations) == 2


def test_loading_into_a_model_that_is_not_built_is_refused_by_keras(tmp_path):
    file = tmp_path / "model.weights.h5"
    compiled(Adam(0.01)).save_weights(file)
    unbuilt = keras.Sequential([keras.layers.Dense(3)])
    unbuilt.compile(Adam(0.01), "mse")
    with pytest.raises(ValueError, match="has not yet been built"):
        unbuilt.load_weights(file)


@pytest.mark.slow
def test_a_model_with_an_optimizer_of_keras_is_loaded_as_keras_does(tmp_path):
    file = tmp_path / "model.weights.h5"
    stock = fit(compiled(keras.optimizers.Adam(0.01)))
    stock.save_weights(file)
    target = compiled(keras.optimizers.Adam(0.01))
    target.optimizer.build(target.trainable_variables)
    target.load_weights(file)
    assert weights(target).tobytes() == weights(stock).tobytes()
    assert int(target.optimizer.iterations) == 4


class Gan(keras.Model):
    """Two models, each trained by an optimizer of its own, which `hold` keeps in the model."""

    def __init__(self, hold, *optimizers):
        super().__init__()
        self.discriminator = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        self.generator = keras.Sequential([keras.Input([2]), keras.layers.Dense(4)])
        self.built = True
        self.pairs = lambda: zip((self.discriminator, self.generator), optimizers, strict=True)
        hold(self, optimizers)

    def step(self):
        for part, optimizer in self.pairs():
            optimizer.apply([tf.ones_like(v) for v in part.variables], part.trainable_variables)
        return self

    def everything(self):
        held = [v for _, optimizer in self.pairs() for v in optimizer.variables]
        return [v.numpy().tobytes() for v in (*self.variables, *held)]


def as_attributes(gan, optimizers):
    gan.of_discriminator, gan.of_generator = optimizers


def in_a_list(gan, optimizers):
    gan.optimizers = list(optimizers)


def in_a_dict(gan, optimizers):
    gan.optimizers = {"of": dict(zip("dg", optimizers, strict=True))}


@pytest.mark.parametrize("hold", [as_attributes, in_a_list, in_a_dict])
@pytest.mark.parametrize("first", [keras.optimizers.RMSprop, SGD])
def test_a_model_with_two_optimizers_is_put_back_where_one_refuses(hold, first, tmp_path):
    """Keras goes on with what comes after the refusal, and says the refusal at the end."""
    Gan(hold, first(0.1), Adam(0.1)).step().save_weights(tmp_path / "gan.weights.h5")
    gan = Gan(hold, first(0.2), Adam(0.2, use_ema=True)).step()
    before = gan.everything()
    with pytest.raises(ValueError, match="/average', was not there"):
        gan.load_weights(tmp_path / "gan.weights.h5")
    assert gan.everything() == before


def test_a_model_with_two_optimizers_that_are_not_built_keeps_nothing_that_was_refused(tmp_path):
    saved = Gan(as_attributes, Adam(0.1), SGD(0.1)).step()
    saved.save_weights(tmp_path / "gan.weights.h5")
    gan = Gan(as_attributes, Adam(0.2), Adam(0.2))
    before = gan.everything()
    with pytest.raises(ValueError, match="Adam: what was saved is the state of SGD"):
        gan.load_weights(tmp_path / "gan.weights.h5")
    assert gan.everything() == before
    assert [int(optimizer.iterations) for _, optimizer in gan.step().pairs()] == [1, 1]


@pytest.mark.slow
def test_of_two_optimizers_in_a_checkpoint_none_is_restored_where_one_refuses(tmp_path):
    first, second = (fit(compiled(Adam(0.01))) for _ in range(2))
    entry(second, "learning_rate", np.nan)
    saved = tf.train.Checkpoint(first=first, second=second)
    path = saved.write(str(tmp_path / "checkpoint"))
    targets = [fit(compiled(Adam(0.25)), 1) for _ in range(2)]
    before = [everything(target) for target in targets]
    with pytest.raises(tf_graft.CheckpointError, match="'learning_rate' holds nan"):
        tf.train.Checkpoint(first=targets[0], second=targets[1]).read(path)
    for target, state in zip(targets, before, strict=True):
        assert_same_state(everything(target), state)


@pytest.mark.slow
def test_the_state_of_a_child_is_no_way_around(tmp_path):
    """It counts by the wrapper's count: what a file says of its own is not looked at."""

    def model():
        return fit(compiled(tf_graft.LARC(SGD(0.01, momentum=0.9))), 1)

    saved, target = model(), model()
    path = tf.train.Checkpoint(optimizer=saved.optimizer).write(str(tmp_path / "checkpoint"))
    reader = tf.train.load_checkpoint(path)
    tensors = {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}
    (count,) = [key for key in tensors if key.startswith("optimizer/optimizer/_iterations")]
    tensors[count] = np.int64(-5)
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "altered"),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(value) for value in tensors.values()],
    )
    altered = str(tmp_path / "altered")
    tf.train.Checkpoint(optimizer=target.optimizer).read(altered).assert_consumed()
    assert values(target.optimizer) == values(saved.optimizer)


@pytest.mark.slow
def test_what_waits_is_not_lost_in_a_checkpoint(tmp_path):
    """It is of no variables yet, so that a checkpoint cannot hold it."""
    model = fit(compiled(Adam(0.01)))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = checkpoint.write(str(tmp_path / "first"))
    store = {}
    model.optimizer.save_own_variables(store)
    for load in (
        lambda m: tf.train.Checkpoint(model=m, optimizer=m.optimizer).read(path),
        lambda m: m.optimizer.load_own_variables(store),
    ):
        waiting = compiled(Adam(0.01))
        load(waiting)
        second = tf.train.Checkpoint(model=waiting, optimizer=waiting.optimizer)
        with pytest.raises(tf_graft.CheckpointError, match="waits for the optimizer to be built"):
            second.write(str(tmp_path / "second"))
        waiting.optimizer.build(waiting.trainable_variables)
        second.write(str(tmp_path / "second"))
        assert values(waiting.optimizer) == values(model.optimizer)


@pytest.mark.slow
def test_an_optimizer_is_whole_after_what_waited_was_refused(tmp_path):
    store = {}
    fit(compiled(Adam(0.01))).optimizer.save_own_variables(store)
    target, fresh = (compiled(Adam(0.25, use_ema=True)) for _ in range(2))
    target.optimizer.load_own_variables(store)
    with pytest.raises(tf_graft.CheckpointError, match="entries differ"):
        target.optimizer.build(target.trainable_variables)
    fresh.set_weights(target.get_weights())
    target.fit(file_models.X, file_models.Y, shuffle=False, verbose=0)
    fresh.fit(file_models.X, file_models.Y, shuffle=False, verbose=0)
    assert len(target.optimizer.variables) == len(fresh.optimizer.variables)
    assert weights(target).tobytes() == weights(fresh).tobytes()


def test_set_weights_sets_all_or_none():
    model = fit(compiled(Adam(0.01)))
    before = everything(model)
    values = [v.numpy() for v in model.optimizer.variables]
    for last in (np.float64(values[-1]), np.full_like(values[-1], -1.0)):
        other = [v + 1 for v in values[:-1]]
        with pytest.raises(ValueError, match=r"Adam\.set_weights: .* Nothing was loaded"):
            model.optimizer.set_weights([*other, last])
        assert_same_state(everything(model), before)
    with pytest.raises(ValueError, match="values were given for"):
        model.optimizer.set_weights(values[:-1])


@pytest.mark.slow
def test_state_that_was_applied_without_being_judged_is_carried(tmp_path):
    """With `nonfinite="apply"` a slot can be NaN, and goes on as it was."""
    model = fit(compiled(Adam(0.01, nonfinite="apply")))
    slot = next(n for n in model.optimizer.state.named() if n.endswith("velocity"))
    entry(model, slot, np.nan * model.optimizer.state.named()[slot])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    found = state_of(loaded.optimizer)
    assert any(np.isnan(value).all() for name, value in found.items() if "velocity" in name)
    model.save_weights(tmp_path / "model.weights.h5")
    with pytest.raises(ValueError, match="holds nan and must be at least 0"):
        fit(compiled(Adam(0.01)), 1).load_weights(tmp_path / "model.weights.h5")


def test_what_is_no_optimizer_at_all_is_left_with_a_warning(tmp_path):
    """As of TensorFlow's optimizers before Keras 3: the weights of the model load."""
    before = tf.Module()
    before.iter, before.beta_1 = tf.Variable(7, dtype=tf.int64), tf.Variable(0.5)
    source, target = compiled(Adam(0.01)), compiled(Adam(0.25))
    path = tf.train.Checkpoint(layers=source.layers, optimizer=before).write(str(tmp_path / "c"))
    with pytest.warns(UserWarning, match="the optimizer starts fresh"):
        tf.train.Checkpoint(layers=target.layers, optimizer=target.optimizer).read(path)
    assert weights(target).tobytes() == weights(source).tobytes()
    target.optimizer.build(target.trainable_variables)
    assert int(target.optimizer.iterations) == 0


def test_slots_that_say_not_whose_they_are_are_refused_at_build(tmp_path):
    """TensorFlow keeps what it finds no place for, and would restore it when there is one."""
    nobody, variable = tf.Module(), tf.Variable([1.0], name="w")
    nobody._state = {"w": {"momentum": tf.Variable([np.nan])}}
    path = tf.train.Checkpoint(optimizer=nobody).write(str(tmp_path / "checkpoint"))
    optimizer = SGD(0.5, momentum=0.9)
    tf.train.Checkpoint(optimizer=optimizer).read(path)
    with pytest.raises(tf_graft.CheckpointError, match="does not say whose it is"):
        optimizer.build([variable])
    optimizer.apply([tf.constant([1.0])], [variable])
    assert float(variable[0]) == 0.5
