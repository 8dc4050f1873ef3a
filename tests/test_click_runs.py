"""Runs of click models: their data, their figures, and tables that take over former rows."""

import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow_datasets as tfds

import tf_graft as tg
from support.replicas import mirrored
from support.stopping import stopping_at
from tf_graft.training import click_models, config, data, loop, models, run
from tf_graft.training import configured_optimizer as optimizer
from tf_graft.training.config import ConfigError

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)
CONFIGS = Path(__file__).parents[1] / "configs" / "recommenders"
USERS, ITEMS = 20, 12
TEXT = f"""\
data:
  name: few_clicks
  fields: {{item: {ITEMS}, user: {USERS}}}
  label: stars
  positive_from: 4
  batch_size: 32
model: {{name: dlrm, dimension: 4, units: [8]}}
optimizer: {{name: adam, learning_rate: 0.01}}
run: {{epochs: 2, checkpoint_every: 2, progress: none, tensorboard: false}}
"""
TWO_TOWERS = [
    f"data.fields={{user: {USERS}, item: {ITEMS}}}",
    "data.classes=[1]",
    "model={name: two_tower, dimension: 4}",
]


class FewClicks(tfds.core.GeneratorBasedBuilder):
    """Ratings: a user likes the items of the same parity."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {"user": tfds.features.Text(), "item": np.int64, "stars": np.float32}
        more = {"age": np.float32, "tags": tfds.features.Tensor(shape=(2,), dtype=np.int64)}
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features | more)
        )

    def _split_generators(self, _):
        return {"train": self._generate_examples(0, 256), "test": self._generate_examples(256, 320)}

    def _generate_examples(self, start, end):
        random = np.random.default_rng(0)
        for number, (user, item) in enumerate(random.integers(0, [USERS, 2 * ITEMS], [320, 2])):
            if start <= number < end:
                stars = 4.0 if (user + item) % 2 else 3.5
                ids = {"user": f"u{user}", "item": item, "stars": stars}
                yield number, ids | {"age": 1.5, "tags": np.zeros(2, np.int64)}


@pytest.fixture(scope="module")
def clicks(prepared_data):
    """The data set, prepared in the folder of the tests' data."""
    folder = data.prepared.data_dir(config.parse(TEXT).data)
    tfds.disable_progress_bar()
    FewClicks(data_dir=folder).download_and_prepare()


def trained(folder, *overrides, say=lambda _: None):
    return run.train(config.parse(TEXT, "some.yaml", [f"run.dir={folder}", *overrides]), say)


def same_logs(folder):
    for name in ("steps.csv", "metrics.csv"):
        assert (folder / "a" / name).read_text() == (folder / "b" / name).read_text()


def built(*overrides):
    made = config.parse(TEXT, "some.yaml", overrides)
    return models.build(made.model, data.load(made.data, 1))


def compiled(*overrides, say=print):
    made = config.parse(TEXT, "some.yaml", overrides)
    return run.compiled(made, data.load(made.data, 1), run.enter(made), say)


def of_config(*overrides):
    return optimizer.build(config.parse(TEXT, "", overrides), 10, None)


def test_ids_and_clicks(clicks):
    found = data.load(config.parse(TEXT).data, 1)
    ids, classes = next(found.test.unbatch().batch(64).as_numpy_iterator())
    reader = tfds.load("few_clicks", split="test", data_dir=data.prepared.data_dir(found._config))
    examples = list(reader.as_numpy_iterator())
    np.testing.assert_array_equal(ids[:, 0], [e["item"] % ITEMS for e in examples])
    np.testing.assert_array_equal(classes, [e["stars"] >= 4 for e in examples])
    assert set(classes) == {0, 1}
    rows = {e["user"]: row for e, row in zip(examples, ids[:, 1], strict=True)}
    assert [rows[e["user"]] for e in examples] == ids[:, 1].tolist()
    assert 5 < len({*rows.values()}) <= len(rows)
    assert ids[:, 1].min() >= 0
    assert ids[:, 1].max() < USERS


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.label=star"], "'few_clicks' has no feature 'star' of one value; did you mean"),
        (["data.label=user"], "label: 'user' holds no numbers."),
        (["data.fields={tags: 2}"], "fields: 'few_clicks' has no feature 'tags' of one value;"),
        (["data.fields={age: 2}"], "'age' holds float32, neither whole numbers nor texts."),
        (["data.fields=null"], "label: it does nothing without fields; give it as well."),
        (["data.label=null"], "fields: it does nothing without label; give it as well."),
        (["model={name: mlp}"], "'mlp' is for images, the data are clicks."),
        (["data.classes=[1]"], "'dlrm' tells clicks from others; leave data.classes out."),
        ([*TWO_TOWERS, "data.classes=null"], "set data.classes to [1]."),
        ([*TWO_TOWERS, "data.fields={user: 3}"], "takes two fields, user and item, not 1."),
        (
            ["model={name: wide_and_deep, crosses: [[user, page]]}"],
            "crosses: data.fields has no 'page'; it has item, user.",
        ),
    ],
)
def test_clicks_that_there_are_not(overrides, message, clicks):
    with pytest.raises(ConfigError) as error:
        built(*overrides)
    assert message in str(error.value)
    assert str(error.value).startswith(("override '", "some.yaml:1: ", "some.yaml:7: "))


def test_two_towers_score_the_right_item_first(clicks):
    model = built(*TWO_TOWERS)
    users, items = model.get_layer("user").embeddings, model.get_layer("scores").table.embeddings
    assert items.path == "scores/item/embeddings"
    ids = np.array([[3, 1], [4, 2], [5, 1]], "int32")
    every = users.numpy()[ids[:, 0]] @ items.numpy().T
    of_batch = np.where(ids[:, 1:] == ids[None, :, 1], -1e9, every[:, ids[:, 1]])
    right = np.take_along_axis(every, ids[:, 1:], 1)
    expected = np.concatenate([right, of_batch], 1)
    np.testing.assert_allclose(model(ids, training=True), expected, rtol=1e-5)
    popularity = np.log1p(np.bincount(ids[:, 1], minlength=ITEMS))
    left = np.where(ids[:, 1:] == np.arange(ITEMS), -1e9, every + popularity)
    expected = np.concatenate([right + popularity[ids[:, 1:]], left], 1)
    np.testing.assert_allclose(model(ids), expected, rtol=1e-5)


@pytest.mark.slow
def test_items_are_counted_on_all_replicas():
    items = np.array([0, 1, 1, 1, 2, 2], "int32")
    with mirrored().scope():
        scores = click_models.Candidates(4, 2)
        inputs = keras.Input([1], dtype="int32")
        users = keras.layers.Embedding(1, 2)(inputs[:, 0] * 0)
        model = keras.Model(inputs, scores(users, inputs[:, 0]))
        model.compile(
            tg.SGD(),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=False,
        )
    model.fit(items[:, None], np.zeros(6), batch_size=6, epochs=2, verbose=0)
    assert np.array(scores.counts).tolist() == [2, 6, 4, 0]


TABLES = """optimizer={name: adam, learning_rate: 0.05, weight_decay: 0.001, KIND,
  clip_rows: {item: {name: cow_clip, ratio: 1.0, lower_bound: 1.0e-5}, user: 0.1},
  count_rows: {user: {name: exp_decay, learning_rate: 1.0, decay_steps: epoch, decay_rate: 0.9},
    item: {name: row_frequency, reference: 20, half_life: 50}}}
""".replace("\n", " ")
HALF = [TABLES.replace("KIND", "sparse: lazy, master_weights: false"), "precision.policy=bfloat16"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "figure", "least"),
    [
        ([TABLES.replace("KIND", "sparse: lazy_decay"), "run.epochs=6"], "test_auc", 0.8),
        ([*TWO_TOWERS, *HALF], "test_recall_at_100", 1.0),
        (["model={name: wide_and_deep, crosses: [[user, item]]}"], "test_auc", 0.4),
    ],
)
def test_models_train_and_resume(overrides, figure, least, clicks, tmp_path, undrawn):
    summary = trained(tmp_path / "a", *overrides)
    assert summary[figure] >= least
    with stopping_at(5), pytest.raises(loop.Stopped):
        trained(tmp_path / "b", *overrides)
    assert trained(tmp_path / "b", *overrides)[figure] == summary[figure]
    same_logs(tmp_path)
    saved = keras.models.load_model(tmp_path / "a" / "model.keras")
    test = data.load(config.parse(TEXT, "", overrides).data, 1).test
    found = saved.evaluate(test, verbose=0, return_dict=True)
    assert found[figure.removeprefix("test_")] == pytest.approx(summary[figure])


def test_multipliers_are_schedules():
    decay = "{name: exp_decay, learning_rate: 1.0, decay_steps: RATE, decay_rate: 0.5}"
    for name in ("learning_rate_multipliers", "count_rows"):
        section = f"optimizer.{name}={{field_user: {decay}, .*: 0.5}}"
        multipliers = getattr(of_config(section.replace("RATE", "epoch")), name)
        assert [float(multipliers["field_user"](step)) for step in (0, 10)] == [1.0, 0.5]
        assert multipliers[".*"] == 0.5
        with pytest.raises(ConfigError, match=r"^override.*exp_decay does not take 'rate'"):
            of_config(section.replace("1.0", "1.0, rate: 1"))


def test_weight_decay_has_modes():
    for given, expected in (
        ("cautious_decay", tg.CautiousDecay()),
        ("{name: cautious_decay}", tg.CautiousDecay()),
        ("{name: corrected_decay, max_learning_rate: 0.1}", tg.CorrectedDecay(0.1)),
    ):
        section = f"optimizer={{name: adam, weight_decay: 0.1, weight_decay_mode: {given}}}"
        assert of_config(section).weight_decay_mode == expected
    with pytest.raises(ConfigError, match=r"^override.*max_learning_rate must be"):
        of_config(
            "optimizer={name: adam, weight_decay_mode: {name: corrected_decay, "
            "max_learning_rate: 0}}"
        )


# Rows of another vocabulary.


@pytest.fixture(scope="module")
def former(clicks, tmp_path_factory):
    """A run with a smaller vocabulary, and the two vocabularies."""
    folder = tmp_path_factory.mktemp("former")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run.plots, "draw_run", lambda *_: None)
        trained(folder / "run", "data.fields.item=5", "run.epochs=1")
    (folder / "then.txt").write_text("e\na\nb\nc\nd\n")
    (folder / "now.txt").write_text("\n".join("abcdefghijkl"))
    (folder / "short.txt").write_text("a\nb\n")
    (folder / "twice.txt").write_text("a\na\n")
    return folder


FILES = (
    "{start_from: FOLDER/run, rows: {field_item/embeddings: "
    "{former: FOLDER/then.txt, present: FOLDER/now.txt}}}"
)


def of(folder, section):
    return f"fine_tuning={section.replace('FOLDER', str(folder))}"


@pytest.mark.slow
def test_former_rows_are_taken_over_once(former, tmp_path, undrawn):
    folder, said = tmp_path / "former", []
    shutil.copytree(former, folder)
    model = keras.models.load_model(folder / "run" / "model.keras")
    table = model.get_layer("field_item").embeddings.numpy()
    given = of(folder, FILES)
    present = compiled(given, say=said.append)
    assert said == [
        f"Starting from {folder}/run/model.keras, with other rows of field_item/embeddings."
    ]
    weights = present.get_layer("field_item").embeddings.numpy()
    np.testing.assert_array_equal(weights[:5], table[[1, 2, 3, 4, 0]])
    (slot,) = (
        v.numpy()
        for v in present.optimizer.variables
        if v.path.endswith("item/embeddings/velocity")
    )
    assert slot[:5].any()
    assert not slot[5:].any()
    trained(tmp_path / "a", given)
    with stopping_at(5), pytest.raises(loop.Stopped):
        trained(tmp_path / "b", given)
    shutil.rmtree(folder)
    trained(tmp_path / "b", given)
    same_logs(tmp_path)


@pytest.mark.slow
def test_rows_that_do_not_fit(former, clicks):
    table, files = "field_item/embeddings", FILES
    cases = {
        files.replace("then", "non"): "former: FOLDER/non.txt: no such file or directory.",
        files.replace("then", "twice"): "former has the token 'a' in the rows 0 and 1;",
        files.replace("now", "short"): f"rows['{table}'] has 2 rows, and the table has 12.",
        files.replace("then", "now"): "names row 11, and the saved table has 5 rows",
        files.replace("item/", "page/"): "rows has the path 'field_page/embeddings', and none of",
        files.replace("start_from: FOLDER/run, ", ""): "rows: no row is a former one without start",
        "{start_from: FOLDER/run, rows: {field_item/embeddings: [0, -2]}}": "-2",
        "{start_from: FOLDER/run, rows: {a: {former: b, present: b, formr: b}}}": "mean 'former'?",
        "{start_from: FOLDER/run, rows: {a: {former: b}}}": "'present' is missing in 'a'.",
        "{start_from: FOLDER/run, rows: {a: b}}": "a is the text 'b'; it should be a section of",
        "{start_from: FOLDER/run, rows: {a: [0]}, new_layers: [click]}": "does not go with rows",
        "{start_from: FOLDER/run, rows: {field_user/embeddings: [0]}}": "has 1 rows",
    }
    for section, message in cases.items():
        with pytest.raises(ConfigError) as error:
            compiled(of(former, section))
        assert message.replace("FOLDER", str(former)) in str(error.value)
        assert str(error.value).startswith("override 'fine_tuning=")


def test_the_configs_are_read():
    for path in CONFIGS.glob("*.yaml"):
        assert f"tf-graft train configs/recommenders/{path.name}" in path.read_text()
        made = config.load(path)
        assert optimizer.build(made, 10, None)
