"""Runs of some classes that start from trained weights and train one layer after another."""

import signal
import subprocess
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from support import forked
from tf_graft.training import config, data, fine_tuning, models, run
from tf_graft.training import configured_optimizer as optimizer
from tf_graft.training.config import ConfigError

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)
CONFIGS = Path(__file__).parents[1] / "configs"
TEXT = """\
data: {name: digits, classes: [7, 3], batch_size: 16}
model: {name: cnn, filters: [4], units: 8}
optimizer: {name: sgd, learning_rate: 0.1}
run: {epochs: 1}
"""
LAYERS = ("conv2d", "batch_normalization", "dense", "classes")


def parsed(*overrides):
    return config.parse(TEXT, "some.yaml", overrides)


def built(*overrides):
    """The model of a config, and what is said about its first weights."""
    made = parsed(*overrides)
    batches = data.load(made.data, 1)
    model = models.build(made.model, batches)
    return model, fine_tuning.load(model, made.fine_tuning)


@pytest.fixture
def trained(prepared_data, tmp_path):
    """A file with the weights of such a model, all of them positive."""
    model, said = built()
    assert said == ""
    for variable in model.weights:
        variable.assign(tf.random.uniform(variable.shape, 1, 2))
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    return path, {v.path: v.numpy() for v in model.weights}


# Classes.


@pytest.mark.slow
def test_chosen_classes_are_numbered_in_their_order(prepared_data):
    keras.utils.set_random_seed(1)  # with 0, tf.data takes no seed that is a tensor

    def numbers(batches):
        """The class of each image of an epoch."""
        examples = batches.stream(0, 0).take(batches.steps_per_epoch).unbatch()
        return {x.tobytes(): int(y) for x, y in examples.as_numpy_iterator()}

    every, two = (data.load(*_section(f"data.classes={c}")) for c in ("null", "[7, 3]"))
    digits, found = numbers(every), numbers(two)
    assert two.classes == 2
    assert len(found) > 250
    assert {(digits[x], y) for x, y in found.items() if x in digits} == {(7, 0), (3, 1)}


def _section(*overrides):
    made = parsed(*overrides)
    return made.data, 1


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.classes=[1, 12]", "classes holds 12; 'digits' has the classes 0 to 9."),
        ("data.classes=[1, 1]", "classes holds 1 twice."),
        ("data.classes=[]", "classes is a list; it must not be empty."),
        ("data={name: text, classes: [1]}", "classes: 'text' has characters, not classes."),
        ("data={classes: [3], train: 'train[:1]'}", "holds no examples of these classes."),
    ],
)
def test_classes_that_there_are_not(override, message, prepared_data):
    with pytest.raises(ConfigError) as error:
        data.load(*_section(override))
    assert message in str(error.value)


# Weights to start from.


@pytest.mark.slow
def test_weights_are_taken_over_but_for_new_layers(trained):
    path, saved = trained
    model, said = built(f"fine_tuning={{start_from: {path}, new_layers: [classes, dense]}}")
    new = ["dense/kernel", "dense/bias", "classes/kernel", "classes/bias"]
    assert said == f"Starting from {path}: 5 of 9 weights; new: {', '.join(new)}."
    for variable in model.weights:
        equal = np.array_equal(variable, saved[variable.path])
        assert equal == (variable.path not in new), variable.path
    np.testing.assert_array_equal(model.get_layer("dense").bias, np.zeros(8))


@pytest.mark.slow
def test_weights_of_other_shapes_stay_new(trained):
    path, saved = trained
    model, said = built(f"fine_tuning.start_from={path}", "data.classes=[1, 2, 3]")
    assert said.endswith("7 of 9 weights; new: classes/kernel, classes/bias.")
    np.testing.assert_array_equal(model.get_layer("dense").kernel, saved["dense/kernel"])
    assert np.isfinite(model.get_layer("classes").kernel).all()


@pytest.mark.slow
def test_the_comparison_is_of_places_and_not_of_names_in_the_process(trained):
    keras.layers.Conv2D(4, 3)  # so that Keras would number the next one
    model, said = built(f"fine_tuning.start_from={trained[0]}")
    assert said == f"Starting from {trained[0]}: 9 of 9 weights."
    assert tuple(layer.name for layer in model.layers if layer.weights) == LAYERS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{start_from: none}", "start_from: there is no file none."),
        ("{start_from: .}", "model.keras; a run leaves it when it is finished."),
        ("{start_from: FOLDER/a.txt}", "a.txt must be the folder of a run, or a file that ends in"),
        ("{start_from: FOLDER/a.keras}", "a.keras cannot be read: "),
        ("{start_from: FOLDER/a.weights.h5}", "a.weights.h5 cannot be read: "),
        ("{start_from: FILE, new_layers: [class]}", "no layer 'class' with weights; did you mean"),
        (
            "{unfreeze: {dense_1: 3}}",
            "unfreeze: the model has no layer 'dense_1' with weights; did",
        ),
        ("{new_layers: [dense]}", "all layers are new without start_from; give it as well."),
        ("{unfreeze: {dense: -1}}", "dense is -1; it should be greater than or equal to 0."),
    ],
)
def test_what_cannot_be_started_from(section, message, trained, tmp_path):
    for name in ("a.txt", "a.keras", "a.weights.h5"):
        (tmp_path / name).write_text("no weights")
    section = section.replace("FILE", str(trained[0])).replace("FOLDER", str(tmp_path))
    with pytest.raises(ConfigError) as error:
        built(f"fine_tuning={section}")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("entries", [slice(1), slice(None)], ids=["one entry", "all entries"])
def test_weights_that_are_not_finite_are_refused(entries, wrong, trained, tmp_path):
    path, saved = trained
    model, _ = built()
    for variable in model.weights:
        variable.assign(saved[variable.path])
    kernel = saved["dense/kernel"].copy()
    kernel.flat[entries] = wrong
    model.get_layer("dense").kernel.assign(kernel)
    model.save_weights(path)
    with pytest.raises(ConfigError, match=f"its dense/kernel holds {wrong} and must be finite"):
        built(f"fine_tuning.start_from={path}")
    _, said = built(f"fine_tuning={{start_from: {path}, new_layers: [dense]}}")
    assert "7 of 9 weights" in said


@pytest.mark.slow
def test_a_model_of_which_nothing_fits(trained):
    with pytest.raises(ConfigError, match=r"start_from: no weight in .* fits one of this model\."):
        built(f"fine_tuning.start_from={trained[0]}", "model={name: mlp, units: [3]}")


# Words for groups of layers.


def made(section):
    """The optimizer of a config for a small model."""
    parsed_config = parsed(f"optimizer={section}")
    inputs = keras.Input([8, 8, 1])
    outputs = keras.layers.Dense(2, name="b")(keras.layers.Dense(2, name="a")(inputs))
    return optimizer.build(parsed_config, 10, lambda: keras.Model(inputs, outputs))


def test_words_for_groups_of_layers():
    found = made(
        "{name: larc, exclude_from_weight_decay: no_decay, optimizer: {name: adamw, "
        "learning_rate_multipliers: {bias: 0.0, layerwise_decay: 0.5}}}"
    )
    assert found.decay_exclusions == ["^a/bias$", "^b/bias$"]
    rates = dict(found.learning_rate_multipliers)
    assert list(rates.items())[:3] == [("bias", 0.0), ("^a/kernel$", 0.5), ("^a/bias$", 0.5)]


def test_a_decay_out_of_range():
    with pytest.raises(
        ConfigError, match=r"layerwise_decay\(rate=2.0\): rate must lie in \(0, 1\]"
    ):
        made("{name: sgd, learning_rate_multipliers: {layerwise_decay: 2.0}}")


# The whole.

KILLED = """
import os, signal, sys
from tf_graft.training import config, loop, run
name, step, *words = sys.argv[1:]
after = loop.Bookkeeping.on_train_batch_end
def killed(self, batch, logs=None):
    after(self, batch, logs)
    if self.step == int(step):
        os.kill(os.getpid(), signal.SIGKILL)
loop.Bookkeeping.on_train_batch_end = killed
run.train(config.load(name, words), say=print)
"""


def states(folder):
    """Every value of the newest state of a run."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder / "checkpoints"))
    names = reader.get_variable_to_shape_map()
    return {n: reader.get_tensor(n) for n in names if n.endswith("VARIABLE_VALUE")}


@pytest.mark.rare
def test_layers_are_unfrozen_and_a_run_killed_in_each_phase_ends_with_the_same_bits(
    prepared_data, undrawn, tmp_path, monkeypatch
):
    """The configs in the repository, in fewer epochs."""
    monkeypatch.chdir(tmp_path)
    quick = ["run.progress=none", "run.tensorboard=false", "run.monitor=4"]
    run.train(config.load(CONFIGS / "digits_pretrain.yaml", [*quick, "run.epochs=1"]), say=print)
    name = CONFIGS / "digits_fine_tune.yaml"
    epochs = {"dense": 1, "conv2d_1": 2, "batch_normalization_1": 2}
    epochs |= {"conv2d": 3, "batch_normalization": 3}
    words = [*quick, "run.epochs=4", "run.checkpoint_every=5"]
    words += [f"fine_tuning.unfreeze.{layer}={epoch}" for layer, epoch in epochs.items()]
    said = []
    summary = run.train(config.load(name, words), say=said.append)
    assert said[0].endswith("12 of 14 weights; new: classes/kernel, classes/bias.")
    assert summary["epochs"] == 4

    words.append("run.dir=killed")
    steps = 22  # an epoch
    for kill in (7, 1 * steps + 18, 2 * steps + 2, 3 * steps + 9):
        command = [forked.python(), "-c", KILLED, str(name), str(kill), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
    Path("runs/digits_pretrain/model.keras").unlink()  # a run that continues does not need it
    run.train(config.load(name, words), say=said.append)
    assert "after step 71 of 88" in said[-1]
    expected, found = states(tmp_path / "runs" / "digits_fine_tune"), states(tmp_path / "killed")
    assert found.keys() == expected.keys()
    assert [n for n in expected if expected[n].tobytes() != found[n].tobytes()] == []
    names = ("steps.csv", "metrics.csv", "norms.csv")
    runs = (tmp_path / "runs" / "digits_fine_tune", tmp_path / "killed")
    for name in names:
        one, other = ((folder / name).read_text() for folder in runs)
        assert one == other, name
