"""`tf-graft average`: the mean of the weights in a run's last saved states."""

import shutil
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from typer.testing import CliRunner

from tf_graft import cli
from tf_graft.training import config, data, fine_tuning, models, run
from tf_graft.training.average import average
from tf_graft.training.folder import RunFolder
from tf_graft.training.saved_state import SavedState

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
    ),
]
TEXT = """\
data: {name: digits, batch_size: 128}
model: {name: cnn, filters: [4], units: 8, dropout: 0.5}
optimizer: {name: adam, learning_rate: 0.01, use_ema: true}
run: {epochs: 4, keep_checkpoints: 3, progress: none, tensorboard: false}
"""


@pytest.fixture(scope="module")
def folder(prepared_data, tmp_path_factory):
    """The folder of a run."""
    path = tmp_path_factory.mktemp("runs") / "run"
    (path.parent / "some.yaml").write_text(TEXT)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr("tf_graft.training.plots.draw_run", lambda *_: None)
        run.train(config.load(path.parent / "some.yaml", [f"run.dir={path}"]), say=print)
    return path


def command(*arguments):
    return CliRunner().invoke(cli.app, ["average", *map(str, arguments)])


def saved_values(path):
    """The model's variables in a state, by number."""
    reader = tf.train.load_checkpoint(str(path))
    names = sorted(n for n in reader.get_variable_to_shape_map() if n.startswith("model_"))
    return [reader.get_tensor(name) for name in names]


def test_it_writes_the_mean_with_new_statistics(folder):
    done = command(folder, "--last", 3)
    assert done.exit_code == 0, done.output
    found = keras.saving.load_model(folder / "averaged.keras")
    states = [saved_values(folder / "checkpoints" / f"ckpt-{step}") for step in (22, 33, 44)]
    means = [np.mean(values, axis=0) for values in zip(*states, strict=True)]
    compared = 0
    for variable, expected in zip(found.variables, means, strict=True):
        if variable.trainable:
            np.testing.assert_allclose(variable, expected, rtol=1e-6, atol=1e-7)
            compared += 1
    assert compared == 7
    made = config.load(folder / "config.yaml", own=True)
    batches = data.load(made.data, 1)
    x = np.concatenate([x for x, _ in batches.stream(0, 0).take(batches.steps_per_epoch)])
    layer = found.get_layer("batch_normalization")
    before = keras.Model(found.input, layer.input)(x).numpy()
    np.testing.assert_allclose(layer.moving_mean, before.mean((0, 1, 2)), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(layer.moving_variance, before.var((0, 1, 2)), rtol=1e-2)
    assert "state after step 44" in done.stdout
    assert "mean of 3 states" in done.stdout


def test_the_metrics_are_those_of_the_two_models(folder):
    result = average(RunFolder(str(folder)), 2)
    assert result.steps == [44, 33]
    made = config.load(folder / "config.yaml", own=True)
    test = data.load(made.data, 1).test
    model = keras.saving.load_model(result.file)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, metrics=["accuracy"])
    again = model.evaluate(test, verbose=0, return_dict=True)
    assert again == pytest.approx(result.after, rel=1e-5)
    assert result.before["loss"] != pytest.approx(result.after["loss"], rel=1e-3)


def test_another_run_starts_from_it(folder, tmp_path):
    command(folder, "--last", 3)
    made = config.parse(f"{TEXT}fine_tuning: {{start_from: {folder}/averaged.keras}}\n")
    batches = data.load(made.data, 1)
    model = models.build(made.model, batches)
    assert "9 of 9 weights." in fine_tuning.load(model, made.fine_tuning)
    expected = keras.saving.load_model(folder / "averaged.keras").weights
    for variable, other in zip(model.weights, expected, strict=True):
        np.testing.assert_array_equal(variable, other)


def test_fresh_removes_it(folder):
    assert RunFolder(str(folder)).averaged in RunFolder(str(folder))._files()


def damaged(folder):
    (folder / "checkpoints" / "ckpt-33.data-00000-of-00001").write_bytes(b"")


def poisoned(folder):
    """The weights of a layer are NaN, in a state that is otherwise whole."""
    path = str(folder / "checkpoints" / "ckpt-33")
    reader = tf.train.load_checkpoint(path)
    tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    tensors["model_00000/.ATTRIBUTES/VARIABLE_VALUE"] *= np.nan
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(value) for value in tensors.values()],
    )


def emptied(folder):
    shutil.rmtree(folder / "checkpoints")


@pytest.mark.parametrize(
    ("change", "last", "message", "code"),
    [
        (lambda _: None, 5, "keeps 3 of its states, and --last 5 needs 5; train with run.keep", 2),
        (lambda folder: (folder / "config.yaml").unlink(), 3, "config.yaml: no such file", 2),
        (emptied, 3, "has no saved state yet; train the run first.", 2),
        (damaged, 3, "ckpt-33 cannot be read: ", 1),
        (poisoned, 3, "ckpt-33 cannot be read: its conv2d/kernel holds nan and must be finite.", 1),
    ],
)
def test_what_cannot_be_averaged(change, last, message, code, folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "averaged.keras").unlink(missing_ok=True)
    change(copy)
    done = command(copy, "--last", last)
    assert done.exit_code == code
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (copy / "averaged.keras").exists()


def test_a_run_that_trains_beside_it_may_remove_a_state(folder, tmp_path, monkeypatch):
    """As the run saves another state: the oldest one is gone when its turn to be read comes."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    opened = SavedState.__init__

    def removed(self, path):
        if path.name == "ckpt-33":
            for old in (copy / "checkpoints").glob("ckpt-33.*"):
                old.unlink()
        opened(self, path)

    monkeypatch.setattr(SavedState, "__init__", removed)
    result = average(RunFolder(str(copy)), 2)
    assert result.steps == [44, 22]


def test_a_single_state_is_no_mean(folder):
    assert command(folder, "--last", 1).exit_code == 2
