"""Training runs: what they leave behind, and that an interrupted one ends as an undisturbed one."""

import contextlib
import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

import tf_graft
from support import forked
from support.stopping import stopping_at
from tf_graft.core import tensorboard
from tf_graft.training import builders, fine_tuning, loop, models, plots, prepared, run
from tf_graft.training import data as data_sets
from tf_graft.training.config import ConfigError, load
from tf_graft.training.folder import RunFolder
from tf_graft.training.log import Log, read
from tf_graft.training.schema import Application, Data, Transformer

# Keras 3.15's convert_to_numpy on NumPy 2, met wherever a model is saved.
pytestmark = [
    pytest.mark.usefixtures("prepared_data"),
    pytest.mark.filterwarnings(
        "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
    ),
]

CONFIGS = Path(__file__).parents[1] / "configs"
TINY = """
data: {name: digits, batch_size: 64, train: "train[:448]", test: "test[:100]"}
model: {name: mlp, units: [16], dropout: 0.3}
optimizer:
  name: adam
  learning_rate: {name: poly_decay, learning_rate: 0.01, decay_steps: total}
run: {epochs: 3, checkpoint_every: 2, progress: none, tensorboard: false}
"""
STEPS, PER_EPOCH = 21, 7


def trainer(folder):
    """Writes a config and returns what trains it: `train(name, *overrides)`."""
    path = folder / "tiny.yaml"
    path.write_text(TINY)

    def train(name, *overrides, say=print):
        config = load(path, [f"run.dir={folder / name}", *overrides])
        return run.train(config, say=say)

    train.path = path
    return train


@pytest.fixture
def tiny(tmp_path, undrawn):
    return trainer(tmp_path)


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The folder of an undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    trainer(folder)("a")
    return folder / "a"


@pytest.fixture(scope="session")
def stopped(tmp_path_factory):
    """The folder of a run that was stopped after step 13, with checkpoints 9, 11 and 13."""
    folder = tmp_path_factory.mktemp("stopped")
    with stopping_at(13), pytest.raises(loop.Stopped):
        trainer(folder)("a")
    return folder / "a"


def logs(folder):
    return [(folder / name).read_text() for name in ("steps.csv", "metrics.csv")]


def weights(folder):
    return keras.models.load_model(folder / "model.keras").get_weights()


def test_a_run_leaves_everything_in_its_folder(tmp_path):
    policy, handler = keras.config.dtype_policy(), signal.getsignal(signal.SIGTERM)
    summary = trainer(tmp_path)("a", "run.tensorboard=null")
    folder = tmp_path / "a"
    assert {path.name for path in folder.iterdir()} == {
        *("config.yaml", "steps.csv", "metrics.csv", "plot.png", "summary.json", "model.keras"),
        *("checkpoints", "tensorboard"),
    }
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert summary["steps"] == STEPS
    assert summary["test_accuracy"] > 0.2
    steps, metrics = read(folder / "steps.csv"), read(folder / "metrics.csv")
    assert list(steps["step"]) == list(range(1, STEPS + 1))
    assert list(metrics["step"]) == [7, 14, 21]
    np.testing.assert_allclose(steps["learning_rate"], 0.01 * (1 - np.arange(21) / 21), rtol=1e-6)
    means = steps["loss"].reshape(3, PER_EPOCH).mean(axis=1)
    np.testing.assert_allclose(metrics["train_loss"], means, rtol=1e-6)
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((folder / "tensorboard").glob("*/events*"))) == 2
    assert len(list((folder / "checkpoints").glob("*.index"))) == 3
    assert keras.config.dtype_policy() == policy
    assert signal.getsignal(signal.SIGTERM) == handler


@pytest.mark.parametrize(("epochs", "each"), [(1, 1), (1, 7), (20, 7)])
def test_the_plot_of_a_run_however_short_begins_at_0_and_shows_each_curve(
    epochs, each, tmp_path, monkeypatch
):
    folder, steps = RunFolder(str(tmp_path)), epochs * each
    with contextlib.closing(Log(folder.steps, loop.STEP_COLUMNS, 0)) as log:
        for n in range(1, steps + 1):
            log.add({"step": n, "epoch": -(-n // each), "loss": 1 / n, "learning_rate": 0.1})
    columns = ("epoch", "step", "train_loss", "test_loss")
    with contextlib.closing(Log(folder.metrics, columns, 0)) as log:
        for n in range(1, epochs + 1):
            log.add({"epoch": n, "step": n * each, "train_loss": 1 / n, "test_loss": 2 / n})
    drawn = []
    monkeypatch.setattr(plots.Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    plots.draw_run(folder, "a run")
    for axis in drawn[0].axes:
        low, high = axis.get_xlim()
        assert low == 0
        assert high >= epochs
        ticks = [tick for tick in axis.get_xticks() if low <= tick <= high]
        assert ticks[0] == 0
        assert all(tick == int(tick) for tick in ticks)
        for line in axis.lines:
            assert len(line.get_xdata()) > 1 or line.get_marker() == "o"  # one point is no line


@pytest.mark.slow
def test_the_saved_model_is_the_trained_one(tiny, tmp_path):
    summary = tiny("a")
    model = keras.models.load_model(tmp_path / "a" / "model.keras")
    assert isinstance(model.optimizer, tf_graft.Adam)
    assert int(model.optimizer.iterations) == STEPS
    batches = data_sets.load(Data(batch_size=64, test="test[:100]"), 1)
    scores = model.evaluate(batches.test, verbose=0, return_dict=True)
    assert scores["loss"] == pytest.approx(summary["test_loss"], rel=1e-6)
    assert scores["accuracy"] == pytest.approx(summary["test_accuracy"], rel=1e-6)


RESUMED = {
    "at the last step of an epoch": (14, []),
    "momentum, decay, averages, accumulation": (
        12,
        [
            "optimizer={name: sgd, momentum: 0.9, weight_decay: 0.01, use_ema: true}",
            "optimizer.gradient_accumulation_steps=2",
            "run.tensorboard=true",
        ],
    ),
    "batch normalization, several steps an execution": (10, ["run.steps_per_execution=3"]),
    "loss scaling": (10, ["precision.policy=mixed_float16"]),
}


QUICK = ("momentum, decay, averages, accumulation",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in RESUMED]
)
def test_a_stopped_and_resumed_run_equals_the_undisturbed_one(case, tiny, tmp_path, whole):
    step, overrides = RESUMED[case]
    if case.startswith("batch normalization"):
        tiny.path.write_text(TINY.replace("mlp, units: [16]", "cnn, filters: [4], units: 8"))
    if not case.startswith(("in ", "at ")):
        tiny("whole", *overrides)
        whole = tmp_path / "whole"
    with stopping_at(step), pytest.raises(loop.Stopped) as stop:
        tiny("parts", *overrides)
    assert stop.value.step >= step
    said = []
    tiny("parts", *overrides, say=said.append)
    assert said[0].startswith(f"Resuming {tmp_path / 'parts'} after step {stop.value.step}")
    assert logs(tmp_path / "parts") == logs(whole)
    for a, b in zip(weights(tmp_path / "parts"), weights(whole), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_preparing_the_data_does_not_change_the_run(tiny, tmp_path, whole):
    tiny("a", f"data.dir={tmp_path}/data")
    assert logs(tmp_path / "a") == logs(whole)


@pytest.mark.slow
def test_rows_after_the_checkpoint_and_torn_ones_are_dropped(tiny, tmp_path, whole, stopped):
    shutil.copytree(stopped, tmp_path / "parts")
    with open(tmp_path / "parts" / "steps.csv", "a") as file:
        file.write("14,2,9.9,9.9\n15,3,9.")
    tiny("parts")
    assert logs(tmp_path / "parts") == logs(whole)


def damage(path, how):
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "altered":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    else:
        path.unlink()


DATA = "data-00000-of-00001"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "how"),
    [
        (DATA, "altered"),
        pytest.param("index", "truncated", marks=pytest.mark.slow),
        pytest.param("index", "missing", marks=pytest.mark.slow),
    ],
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    how, part, tiny, tmp_path, whole, stopped
):
    shutil.copytree(stopped, tmp_path / "parts")
    damage(tmp_path / "parts" / "checkpoints" / f"ckpt-13.{part}", how)
    said = []
    tiny("parts", say=said.append)
    assert "Continuing from ckpt-11 instead." in said[0] or (part, how) == ("index", "missing")
    assert "after step 11" in said[-1]
    assert logs(tmp_path / "parts") == logs(whole)


@pytest.mark.slow
def test_without_a_readable_checkpoint_nothing_is_changed(tiny, tmp_path, stopped):
    shutil.copytree(stopped, tmp_path / "a")
    for path in (tmp_path / "a" / "checkpoints").glob("*.index"):
        damage(path, "truncated")
    before = logs(tmp_path / "a")
    with pytest.raises(tf_graft.CheckpointError, match=r"cannot be read.*run\.fresh=true"):
        tiny("a")
    assert logs(tmp_path / "a") == before
    assert tiny("a", "run.fresh=true")["steps"] == STEPS


@pytest.mark.slow
def test_a_checkpoint_of_another_model_is_refused(tiny, tmp_path, stopped):
    shutil.copytree(stopped, tmp_path / "a")
    changed = (tmp_path / "a" / "config.yaml").read_text().replace("- 16", "- 17")
    (tmp_path / "a" / "config.yaml").write_text(changed)
    with pytest.raises(tf_graft.CheckpointError, match=r"no dense\w*/kernel of shape \(64, 17\)"):
        tiny("a", "model.units=[17]")


@pytest.mark.slow
def test_a_finished_run_says_so_and_may_be_extended(tiny, tmp_path):
    constant = "optimizer={name: adam, learning_rate: 0.01}"
    tiny("a", constant)
    before = (tmp_path / "a" / "model.keras").read_bytes()
    said = []
    tiny("a", constant, say=said.append)
    assert "is finished" in said[0]
    assert "run.fresh=true" in said[0]
    assert (tmp_path / "a" / "model.keras").read_bytes() == before
    assert tiny("a", constant, "run.epochs=4")["steps"] == 28
    tiny("b", constant, "run.epochs=4")
    assert logs(tmp_path / "a") == logs(tmp_path / "b")


@pytest.mark.slow
def test_another_config_is_refused_and_names_the_difference(tiny, tmp_path, stopped):
    shutil.copytree(stopped, tmp_path / "a")
    before = logs(tmp_path / "a")
    with pytest.raises(ConfigError, match=r"optimizer\.epsilon was None and is 1e-05; choose"):
        tiny("a", "optimizer.epsilon=1.0e-5")
    with pytest.raises(ConfigError, match=r"decay_steps was 21 and is 28"):
        tiny("a", "run.epochs=4")
    assert logs(tmp_path / "a") == before


@pytest.mark.slow
def test_a_folder_with_other_things_is_left_alone(tiny, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.txt").write_text("all of it")
    for fresh in ("true", "false"):
        with pytest.raises(ConfigError, match="holds other things than a run"):
            tiny("a", f"run.fresh={fresh}")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["thesis.txt"]


REFUSED = {
    "optimizer.name=adagrat": r"tiny\.yaml|adagrat",
    "optimizer.learning_rate=-1": r"override 'optimizer.learning_rate=-1': .*learning_rate must",
    "optimizer.learning_rate.nme=x": r"override 'optimizer.learning_rate.nme=x': .*nme",
    "optimizer.learning_rate.power=-2": r"override '.*power=-2': PolyDecay\(power=-2\): power must",
    "optimizer.beta_1=1.5": r"override 'optimizer.beta_1=1.5': .*beta_1 must",
    "optimizer.betta_1=0.5": r"override 'optimizer.betta_1=0.5': .*betta_1",
    "data.name=minst": r"no data set 'minst', and none is prepared in .*; did you mean 'mnist'\?",
    "data.train=trian": r"no split 'trian' in 'digits'; there are train, test",
    "data.batch_size=1000": r"override 'data.batch_size=1000': .* is more than the 448 examples",
    "model={name: transformer}": None,
    "model.name=resnet51": None,
}


@pytest.mark.parametrize("override", REFUSED)
def test_a_bad_value_is_refused_before_anything_is_written(override, tiny, tmp_path):
    expected = REFUSED[override]
    if expected is None:
        tiny.path.write_text(TINY.replace("{name: mlp, units: [16], dropout: 0.3}", "{name: mlp}"))
        expected = {
            "model={name: transformer}": "'transformer' is for characters, the data are images",
            "model.name=resnet51": "no model 'resnet51'; did you mean 'resnet50'",
        }[override]
    with pytest.raises(ConfigError, match=expected) as caught:
        tiny("a", override)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
def test_without_tensorboard_its_files_are_left_out_or_refused(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(tensorboard, "installed", lambda: False)
    with pytest.raises(
        ConfigError, match=r"not installed, .* pip install 'tf_graft\[tensorboard\]'"
    ):
        tiny("a", "run.tensorboard=true")
    assert not (tmp_path / "a").exists()
    tiny("a", "run.tensorboard=null")
    assert not (tmp_path / "a" / "tensorboard").exists()


@pytest.mark.slow
def test_an_epoch_in_which_every_step_is_skipped_warns(tiny):
    """After the epoch, not only when `fit` ends: the run is stopped before."""
    diverging = ["optimizer.name=sgd", "optimizer.learning_rate=1e30", "run.epochs=4"]
    skips = pytest.warns(UserWarning, match="^SGD: 10 or more updates in a row were skipped")
    with stopping_at(25), pytest.raises(loop.Stopped), skips:
        tiny("a", *diverging)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["dataset_info.json", "sklearn_digits-train.tfrecord-00000-of-00001"]
)
def test_a_damaged_data_set_is_noticed(name, tmp_path):
    data = Data(dir=str(tmp_path))
    data_sets.load(data, 1)
    file = next(tmp_path.rglob(name))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=r"^the config: 'digits' in .* is damaged \(.*\); remo"):
        data_sets.load(data, 1)


@pytest.mark.parametrize("name", ["a_file", "a_file/below", "nowhere"])
def test_a_folder_of_data_that_cannot_be_made_is_one_sentence(name, tmp_path, caplog):
    """Without the warning of tensorflow-datasets about a folder that is not there."""
    (tmp_path / "a_file").touch()
    (tmp_path / "nowhere").symlink_to("/proc/nowhere")
    with pytest.raises(ConfigError, match=r"data sets cannot be kept in .*; choose another data\."):
        prepared.builder(Data(dir=str(tmp_path / name)))
    assert not caplog.records


@pytest.mark.slow
def test_batches_depend_on_seed_and_position_alone():
    batches = data_sets.load(Data(batch_size=64), 1)
    per_epoch = batches.steps_per_epoch
    keras.utils.set_random_seed(1)

    def labels(seed, start, count):
        return [y.numpy() for _, y in batches.stream(seed, start).take(count)]

    whole = labels(0, 0, 2 * per_epoch)
    for start in (1, per_epoch - 1, per_epoch, per_epoch + 3):
        np.testing.assert_array_equal(labels(0, start, 3), whole[start : start + 3])
    assert not np.array_equal(whole[0], whole[per_epoch])
    assert not np.array_equal(whole[0], labels(1, 0, 1)[0])
    examples = batches.stream(0, 0).take(per_epoch).unbatch().as_numpy_iterator()
    assert len({x.tobytes() for x, _ in examples}) > 0.99 * per_epoch * 64


@pytest.mark.slow
def test_an_iterator_that_keras_drops_leaves_a_strategy_all_data(prepared_data):
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    for _ in range(20):  # without the mending, one in three or so is wrong
        batches = data_sets.load(Data(batch_size=48, test="test[:96]"), 1, True)
        test = strategy.experimental_distribute_dataset(batches.test)
        next(iter(test))
        assert sum(len(y) for _, y in test) == 96


def test_an_iterator_ends_without_waiting_for_its_autotuning():
    batches = data_sets.load(Data(), 1)
    keras.utils.set_random_seed(1)
    for dataset in (batches.test, batches.stream(0, 0)):
        assert dataset.options().autotune.enabled is False


def test_the_text_is_cut_into_inputs_and_their_next_characters():
    config = Data(name="text", batch_size=4, sequence_length=50)
    batches = data_sets.load(config, 1)
    x, y = next(batches.test.as_numpy_iterator())
    assert x.shape == y.shape == (4, 50)
    np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
    np.testing.assert_array_equal(x[1:, 0], y[:-1, -1])
    assert bytes(x.astype(np.uint8).ravel()).isascii()
    assert 1_000_000 < batches.steps_per_epoch * 4 * 50 < 2_000_000


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_text_that_is_shorter_than_a_sequence_is_refused(split):
    config = Data(name="text", sequence_length=8_000, **{split: f"{split}[2:3]"})
    with pytest.raises(ConfigError, match=rf"=8000 is too long: data\.{split} has [\d,]+ char"):
        data_sets.load(config, 1)


def test_a_word_comes_with_those_before_it_the_last_first(monkeypatch, tmp_path):
    words = [f"w{i % 7}" for i in range(60)]
    monkeypatch.setattr(builders, "_modules", lambda test: [("a.py", " ".join(words))])
    config = Data(name="words", dir=str(tmp_path), batch_size=4, sequence_length=3)
    batches = data_sets.load(config, 1)
    assert (batches.kind, batches.shape, batches.classes) == ("words", (3,), 7)
    classes = prepared.found(config).info.features["label"].names
    expected = {words[at]: words[at - 3 : at][::-1] for at in range(32, 60, 5)}
    for x, y in batches.test.unbatch().as_numpy_iterator():
        before = expected.pop(classes[y])
        ids = tf.strings.to_hash_bucket_fast(before, config.vocabulary - 1).numpy() + 1
        np.testing.assert_array_equal(x, ids)
    assert not expected


@pytest.mark.slow
def test_a_transformer_does_not_see_the_future():
    batches = data_sets.load(Data(name="text", sequence_length=12), 1)
    spec = Transformer(name="transformer", d_model=8, heads=2, feed_forward=16, layers=1)
    model = models.build(spec, batches)
    x = np.arange(12)[np.newaxis] + 65
    changed = x.copy()
    changed[0, 7] = 32
    difference = np.abs(model(x) - model(changed)).max(axis=(0, 2))
    assert difference[:7].max() == 0
    assert difference[7:].min() > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("mnist", "{name: cnn, filters: [4], units: 8}"),
        pytest.param(
            "imdb_reviews", "{name: embedding, dimension: 4, units: [4]}", marks=pytest.mark.slow
        ),
    ],
)
def test_data_sets_of_tensorflow_datasets(name, model, tmp_path, monkeypatch):
    monkeypatch.setattr(prepared, "_reach", lambda url: None)  # mock data come from no network
    path = tmp_path / "c.yaml"
    path.write_text(
        f"data: {{name: {name}, batch_size: 8, dir: {tmp_path}/data, sequence_length: 20}}\n"
        f"model: {model}\noptimizer: {{name: adagrad}}\n"
        f"run: {{epochs: 1, dir: {tmp_path}/run, progress: none}}\n"
    )
    with tfds.testing.mock_data(num_examples=20):
        summary = run.train(load(path))
    assert summary["steps"] == 2
    assert np.isfinite(summary["test_loss"])


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_text_without_words_has_one_id(text):
    """If all ids were padding, the mean over the words would be 0 / 0."""
    ids = data_sets._words(Data(name="imdb_reviews", sequence_length=4))(tf.constant(text))
    assert np.flatnonzero(ids).tolist() == [0]
    embedded = keras.layers.Embedding(Data(name="x").vocabulary, 2, mask_zero=True)(ids[None])
    assert np.isfinite(keras.layers.GlobalAveragePooling1D()(embedded)).all()


@pytest.mark.slow
def test_networks_of_keras_applications(tmp_path, monkeypatch):
    monkeypatch.setattr(prepared, "_reach", lambda url: None)
    with tfds.testing.mock_data(num_examples=20):
        data = Data(name="cifar10", batch_size=8, dir=str(tmp_path))
        batches = data_sets.load(data, 1)
        model = models.build(Application(name="mobilenetv2"), batches)
        small = data_sets.load(data.model_copy(update={"image_size": 8}), 1)
    assert model.input_shape == (None, 32, 32, 3)
    assert model.output_shape == (None, 10)
    with pytest.raises(ConfigError, match=r"'mobilenetv2' refuses the data: .*at least 32x32"):
        models.build(Application(name="mobilenetv2"), small)


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", ["bfloat16", pytest.param("mixed_float16", marks=pytest.mark.slow)]
)
def test_precisions(policy, tiny, tmp_path):
    assert tiny("a", f"precision.policy={policy}")["test_accuracy"] > 0.15
    model = keras.models.load_model(tmp_path / "a" / "model.keras")
    assert model.layers[1].dtype_policy.name == policy
    assert model.output.dtype == "float32"


@pytest.mark.slow
def test_the_configs_in_the_repository_are_read():
    built = []
    for path in CONFIGS.glob("*.yaml"):
        config = load(path)
        if config.data.name in prepared.SOURCES:
            batches = data_sets.load(config.data, config.run.steps_per_execution)
            known = [model for what, model in built if what == (config.model, config.data)]
            model = known[0] if known else models.build(config.model, batches)
            built.append(((config.model, config.data), model))
            fine_tuning.check_layers(model, config.fine_tuning)
            run.optimizer.build(config, batches.steps_per_epoch, lambda m=model: m)


def test_log_keeps_floats_exactly(tmp_path):
    values = np.random.default_rng(0).normal(size=50).astype(np.float32)
    with contextlib.closing(Log(tmp_path / "x.csv", ("step", "value"), 0)) as log:
        for step, value in enumerate(values):
            log.add({"step": step, "value": value})
    np.testing.assert_array_equal(read(tmp_path / "x.csv")["value"].astype(np.float32), values)


def start(*arguments):
    command = [forked.python(), "-m", "tf_graft", "train", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_rows(process, path, count):
    """Returns when the log has `count` rows; the process must not end before."""
    deadline = time.monotonic() + 90
    while not path.exists() or path.read_text().count("\n") <= count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_a_killed_run_ends_as_an_undisturbed_one(tmp_path):
    config = str(CONFIGS / "digits_sgd_poly.yaml")
    settings = ["run.checkpoint_every=20", "run.epochs=3", "run.tensorboard=false"]
    settings += ["model.filters=[4]", "model.units=8"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start(config, f"run.dir={whole}", *settings).communicate(timeout=120)
    process = start(config, f"run.dir={parts}", *settings)
    wait_for_rows(process, parts / "steps.csv", 50)
    process.kill()
    process.communicate()
    process = start(config, f"run.dir={parts}", *settings)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "Resuming" in output
    assert logs(parts) == logs(whole)
    for a, b in zip(weights(parts), weights(whole), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "code", "fresh", "more"),
    [
        (signal.SIGTERM, 143, "false", ""),
        (signal.SIGINT, 130, "true", " without run.fresh=true"),
    ],
)
def test_a_signal_saves_and_says_how_to_resume(signum, code, fresh, more, tmp_path):
    arguments = [str(CONFIGS / "digits_adagrad.yaml"), f"run.dir={tmp_path / 'a'}"]
    process = start(*arguments, "run.epochs=500", f"run.fresh={fresh}")
    wait_for_rows(process, tmp_path / "a" / "steps.csv", 60)
    process.send_signal(signum)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    last = errors.strip().splitlines()[-1]
    assert last.startswith("Stopped by ")
    assert last.endswith(f"the same command{more} continues from there.")
    rows = (tmp_path / "a" / "steps.csv").read_text().count("\n") - 1
    assert f"after step {rows:,}," in last
    assert tf.train.latest_checkpoint(tmp_path / "a" / "checkpoints").endswith(f"ckpt-{rows}")


@pytest.mark.slow
def test_what_another_process_prepares_meanwhile_is_used(tmp_path, monkeypatch):
    """As the workers of a cluster do, which begin together."""
    make, made = prepared.SOURCES["digits"], []
    before = make.download_and_prepare

    def in_the_middle(self, **how):
        if not made:
            made.append(self)
            monkeypatch.setattr(self, "_download_and_prepare", in_both(self, how))
        before(self, **how)

    def in_both(self, how):
        prepare = self._download_and_prepare

        def both(**more):
            prepare(**more)
            make(data_dir=tmp_path).download_and_prepare(**how)

        return both

    monkeypatch.setattr(make, "download_and_prepare", in_the_middle)
    found = prepared.builder(Data(name="digits", dir=str(tmp_path)))
    assert found.info.splits.total_num_examples == 1797
    assert found is not made[0]
