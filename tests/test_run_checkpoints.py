"""A run's checkpoints match variables by path, or refuse them with a sentence."""

import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from tf_graft.training import config, run
from tf_graft.training.folder import RunFolder
from tf_graft.training.log import read
from tf_graft.training.origin import Origin
from tf_graft.training.run_checkpoints import Checkpoints
from tf_graft.training.saved_state import groups_of

GOLDEN = Path(__file__).parent / "goldens" / "run_mixed_0_2_0"  # stopped after 7 of 9 steps
CONFIG = "model: {name: mlp}\noptimizer: {name: larc, optimizer: adam}\nrun: {epochs: 1}\n"


def model(*names):
    """A model whose layers, all of one shape, are in the order of their names."""
    inputs = keras.Input([3])
    layers = [keras.layers.Dense(3, name=name)(inputs) for name in names]
    made = keras.Model(inputs, keras.layers.Concatenate()(layers))
    made.compile(tg.LARC(tg.Adam(0.1)), "mse")
    made.optimizer.build(made.trainable_variables)
    return made


def variables(model):
    """Every variable that is saved, by path."""
    found = {variable.path: variable for variable in model.variables}
    return found | model.optimizer.state.named()


def states(folder, model, **options):
    """What saves and restores the model as the state of a run."""
    origin = Origin(config.parse(CONFIG), RunFolder("none"), 9)
    return Checkpoints(folder, groups_of(model), 1, origin, **options)


@pytest.fixture
def saved(tmp_path):
    """The model with layers 'a' and 'b' whose state is saved, no two values of it the same."""
    given = model("a", "b")
    for number, variable in enumerate(variables(given).values()):
        variable.assign(tf.cast(tf.fill(variable.shape, number / 64), variable.dtype))
    states(tmp_path, given).save(5, {})
    return given


def check_restored(folder, given, saved, rename=lambda path: path):
    assert states(folder, given).restore(print) == 5
    expected = {rename(path): v.numpy().tolist() for path, v in variables(saved).items()}
    assert {path: v.numpy().tolist() for path, v in variables(given).items()} == expected


def test_variables_in_another_order_are_matched_by_path(saved, tmp_path):
    other = model("b", "a")
    assert [v.path for v in other.variables] != [v.path for v in saved.variables]
    check_restored(tmp_path, other, saved)


def test_layers_that_are_numbered_anew_are_matched_in_order(tmp_path):
    given = model("dense", "dense_1")
    states(tmp_path, given).save(5, {})
    numbers = {"dense": "dense_1", "dense_1": "dense_2"}

    def rename(path):
        return "/".join(numbers.get(part, part) for part in path.split("/"))

    check_restored(tmp_path, model("dense_1", "dense_2"), given, rename)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (("a", "c"), r"it holds no c/kernel of shape \(3, 3\)"),
        (("a", "b", "c"), r"it holds no c/kernel of shape \(3, 3\)"),
        (("a",), "its b/kernel is no variable of this run"),
    ],
)
def test_other_layers_are_refused(names, problem, saved, tmp_path):
    with pytest.raises(tg.CheckpointError, match=f"ckpt-5 cannot be read: {problem}. Start afresh"):
        states(tmp_path, model(*names)).restore(print)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)
def test_a_run_of_0_2_0_with_a_loss_scale_and_dropout_goes_on(tmp_path):
    folder = shutil.copytree(GOLDEN, tmp_path / "run")
    said = []
    run.train(config.load(folder / "config.yaml", [f"run.dir={folder}"]), say=said.append)
    assert said == [f"Resuming {folder} after step 7 of 9."]
    for name in ("steps.csv", "metrics.csv"):
        found, whole = read(folder / name), read(GOLDEN / f"whole_{name}")
        assert list(found) == list(whole)
        for column in whole:
            np.testing.assert_allclose(found[column], whole[column], rtol=1e-4)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("role", ["kernel", "velocity", "momentum", "learning_rate"])
def test_values_that_no_step_gives_are_refused(role, number, tmp_path):
    """Their checksums fit: the file is whole."""
    given = model("a", "b")
    path = next(path for path in variables(given) if path.endswith(role))
    value = np.array(variables(given)[path].numpy())
    value.flat[-1] = number
    variables(given)[path].assign(value)
    states(tmp_path, given).save(5, {})
    target = model("a", "b")
    before = [v.numpy().tobytes() for v in variables(target).values()]
    wrong = rf"cannot be read: its \S*{role} holds {number} and must be"
    with pytest.raises(tg.CheckpointError, match=wrong):
        states(tmp_path, target).restore(print)
    assert [v.numpy().tobytes() for v in variables(target).values()] == before
    restored = states(tmp_path, target, loose=True).restore
    if role == "learning_rate":  # which no option lets be so
        with pytest.raises(tg.CheckpointError, match=wrong):
            restored(print)
    else:
        assert restored(print) == 5
        np.testing.assert_array_equal(variables(target)[path].numpy(), value)


def test_means_that_have_diverged_are_restored(tmp_path):
    """Those of a layer's inputs, and of the loss, are not finite where a loss is not."""

    def normalized():
        inputs = keras.Input([3])
        made = keras.Model(inputs, keras.layers.BatchNormalization(name="norm")(inputs))
        made.compile(tg.SGD(0.1), "mse")
        made.optimizer.build(made.trainable_variables)
        made.evaluate(np.zeros((1, 3)), np.zeros((1, 3)), verbose=0)
        return made

    given, target = normalized(), normalized()
    for variable in (*given.non_trainable_variables, *given.metrics_variables):
        variable.assign(np.full(variable.shape, np.nan))
    states(tmp_path, given).save(5, {})
    assert states(tmp_path, target).restore(print) == 5
    assert all(np.isnan(v.numpy()).all() for v in target.non_trainable_variables)
