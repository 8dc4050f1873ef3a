"""A model with another vocabulary takes over a file: of every kind, with every option."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import samples
from support.replicas import mirrored
from tf_graft.vocabulary import former_rows, load

FORMER = ["ant", "bee", "cat", "dog", "eel"]
GROWN = ["ape", "bee", "eel", "fox", "ant", "cat", "gnu", "hen", "dog"]
SHRUNK = ["dog", "bee", "eel"]
TABLE = "words/embeddings"

OPTIMIZERS = {
    "adam": lambda: tg.Adam(0.1),
    "ema": lambda: tg.Adam(0.1, use_ema=True, ema_momentum=0.5),
    "accumulation": lambda: tg.Adam(0.1, gradient_accumulation_steps=2),
    "counted": lambda: tg.Adam(
        0.1,
        count_rows=["words"],
        clip_rows={"words": tg.CowClip(0.1)},
        gradient_accumulation_steps=2,
    ),
    "state_dtype": lambda: tg.SGD(0.1, momentum=0.9, state_dtype="bfloat16+8"),
    "row_wise_adagrad": lambda: tg.RowWiseAdagrad(0.1),
    "adafactor": lambda: tg.get("adafactor"),
    "schedule_free": lambda: tg.ScheduleFreeSGD(0.1),
    "adagraft": lambda: tg.AdaGraft(tg.Adam(0.1), tg.SGD(0.1, momentum=0.9)),
    "mixed_precision": lambda: tg.MixedPrecision(tg.Adam(0.1, use_ema=True)),
    "multi_optimizer": lambda: tg.MultiOptimizer({"words": tg.Adam(0.1), ".*": tg.SGD(0.1)}),
    "agn": lambda: tg.AGN(tg.Adam(0.1), None, 2, tg.SGD(1.0, momentum=0.9)),
    "wrapped": lambda: tg.wrap(keras.optimizers.Adam(0.1)),
}
# Whose step for a row depends on the other rows: of the table's norm, or of its columns.
OF_ALL_ROWS = ("adafactor", "adagraft")
KINDS = ["former.weights.h5", "former.keras", "former"]


def model_of(words, optimizer=None, dtype="float32", width=4):
    keras.utils.set_random_seed(len(words))
    ids = keras.Input([3], dtype="int32")
    x = keras.layers.Embedding(len(words), width, name="words", dtype=dtype)(ids)
    x = keras.layers.Dense(3, name="hidden")(keras.layers.Flatten()(x))
    model = keras.Model(ids, keras.layers.Dense(1, name="score")(x))
    model.compile(optimizer, "mse")
    return model


def train(model, words, seeds):
    """Takes steps on batches of the tokens that all vocabularies have."""
    model.optimizer.build(model)
    for seed in seeds:
        texts = np.random.default_rng(seed).choice(SHRUNK, [4, 3])
        ids = np.vectorize(words.index)(texts)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.cast(model(ids), tf.float32) - 3.0))
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)
    return model


def saved(model, path):
    if path.suffix == ".keras":
        model.save(path)
    elif path.suffix == ".h5":
        model.save_weights(path)
    else:
        tf.train.Checkpoint(model=model).write(path)
    return path


def values(model):
    """Every value of a model and its optimizer, by name; copies of replicas are equal."""
    state = {n: v.numpy() for n, v in model.optimizer.state.named().items()}
    return state | {v.path: v.numpy() for v in model.variables}


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_taken_over(present, former, rows, start):
    """Rows with a former one have its values; the others those of the start."""
    new, kept = np.flatnonzero(rows < 0), np.flatnonzero(rows >= 0)
    after, former = values(present), values(former)
    assert after.keys() == former.keys()
    weights = start[TABLE]
    instead = {"average": weights, "center": weights, "average_step": None}
    for name, value in after.items():
        if not (name.startswith("words/") and value.shape[:1] == (len(rows),)):
            np.testing.assert_array_equal(value, former[name], name)
            continue
        np.testing.assert_array_equal(value[kept], former[name][rows[kept]], name)
        begun = instead.get(name.removeprefix(f"{TABLE}/"), start[name])
        expected = former["iteration"] if begun is None else begun[new]
        np.testing.assert_array_equal(value[new], expected, name)


@pytest.mark.parametrize("words", [GROWN, SHRUNK], ids=["grown", "shrunk"])
@pytest.mark.parametrize("name", samples.with_slow(OPTIMIZERS, ["counted", "agn"]))
def test_every_row_and_its_state_goes_with_its_token(name, words, tmp_path):
    make = OPTIMIZERS[name]
    former = train(model_of(FORMER, make()), FORMER, range(3))
    file = saved(former, tmp_path / "former.weights.h5")
    before = bytes_of(tmp_path)
    present = model_of(words, make())
    present.optimizer.build(present.trainable_variables)
    start, rows = values(present), former_rows(FORMER, words)
    load(present, file, {TABLE: rows})
    assert bytes_of(tmp_path) == before
    assert_taken_over(present, former, rows, start)
    if name not in OF_ALL_ROWS:
        train(former, FORMER, range(3, 7))
        train(present, words, range(3, 7))
        assert_equal_rows(present, former, rows)


def assert_equal_rows(present, former, rows):
    kept = np.flatnonzero(rows >= 0)
    of_former = values(former)
    for name, value in values(present).items():
        expected = of_former[name]
        if name.startswith("words/") and value.shape[:1] == (len(rows),):
            value, expected = value[kept], expected[rows[kept]]
        value, expected = np.float64(value), np.float64(expected)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", samples.with_slow(["float32", "bfloat16"], ["bfloat16"]))
def test_files_of_every_kind(kind, dtype, tmp_path):
    make = OPTIMIZERS["ema"]
    former = train(model_of(FORMER, make(), dtype), FORMER, range(3))
    file = saved(former, tmp_path / kind)
    before = bytes_of(tmp_path)
    present = model_of(GROWN, make(), dtype)
    present.optimizer.build(present.trainable_variables)
    start, rows = values(present), former_rows(FORMER, GROWN)
    load(present, str(file), {TABLE: (FORMER, GROWN)})
    assert bytes_of(tmp_path) == before
    assert (f"{TABLE}/master" in start) == (dtype == "bfloat16")
    assert_taken_over(present, former, rows, start)
    train(former, FORMER, range(3, 6))
    train(present, GROWN, range(3, 6))
    assert_equal_rows(present, former, rows)


def test_a_model_that_is_not_compiled_takes_the_weights(tmp_path):
    former = train(model_of(FORMER, tg.Adam()), FORMER, range(2))
    file = saved(former, tmp_path / "former.weights.h5")
    present = model_of(SHRUNK)
    present.compile()
    del present.optimizer
    load(present, file, {"embeddings": (FORMER, SHRUNK)})
    np.testing.assert_array_equal(present.get_weights()[0], former.get_weights()[0][[3, 1, 4]])


@pytest.mark.parametrize("kind", KINDS[::2])
def test_a_file_of_weights_alone(kind, tmp_path):
    file = saved(model_of(FORMER, None), tmp_path / kind)
    present = train(model_of(SHRUNK, tg.Adam()), SHRUNK, range(2))
    state = values(present)
    with pytest.warns(UserWarning, match="Adam: .*; the optimizer goes on with the state it has"):
        load(present, file, {TABLE: (FORMER, SHRUNK)})
    for name, variable in present.optimizer.state.named().items():
        np.testing.assert_array_equal(variable, state[name], name)


def test_a_frozen_table_has_no_state(tmp_path):
    former = model_of(FORMER, tg.Adam())
    former.layers[1].trainable = False
    file = saved(train(former, FORMER, range(2)), tmp_path / "former.weights.h5")
    present = model_of(GROWN, tg.Adam())
    present.layers[1].trainable = False
    load(present, file, {TABLE: (FORMER, GROWN)})
    np.testing.assert_array_equal(present.get_weights()[0][4], former.get_weights()[0][0])
    assert int(present.optimizer.iterations) == 2


@pytest.mark.parametrize("kind", samples.with_slow(KINDS, KINDS[1:2]))
def test_copies_of_replicas(kind, tmp_path):
    former = train(model_of(FORMER, tg.Adam(use_ema=True)), FORMER, range(3))
    file = saved(former, tmp_path / kind)
    with mirrored().scope():
        present = model_of(GROWN, tg.Adam(use_ema=True))
        present.optimizer.build(present.trainable_variables)
    start, rows = values(present), former_rows(FORMER, GROWN)
    load(present, file, {TABLE: rows})
    assert_taken_over(present, former, rows, start)
    for variable in (*present.variables, *present.optimizer.variables):
        first, second = mirrored().experimental_local_results(variable.value)
        np.testing.assert_array_equal(first, second)


def test_a_layer_that_was_frozen_when_the_file_was_written(tmp_path):
    """And models whose number differs, as of every second one in a process."""

    def make(words, trainable):
        table = keras.layers.Embedding(len(words), 2, name="words")
        head = keras.layers.Dense(1, name="head", trainable=trainable)
        model = keras.Sequential([keras.Input([3], dtype="int32"), table, head])
        model.compile(tg.Adam(0.1), "mse")
        return model

    former, present = make(FORMER, False), make(GROWN, True)
    train(former, FORMER, range(2))
    file = saved(former, tmp_path / "former.weights.h5")
    with pytest.warns(UserWarning, match="state for '.*/head/kernel', .* was not saved"):
        load(present, file, {TABLE: (FORMER, GROWN)})
    rows = former_rows(FORMER, GROWN)
    (was,), (now,) = (
        [v.numpy() for v in model.optimizer.variables if v.path.endswith(f"{TABLE}/velocity")]
        for model in (former, present)
    )
    np.testing.assert_array_equal(now[rows >= 0], was[rows[rows >= 0]])
    assert not np.any(now[rows < 0])


@pytest.mark.parametrize("name", samples.with_slow(samples.listed(wrapper=False), ["muon"]))
def test_state_of_every_optimizer(name, tmp_path):
    former = train(model_of(FORMER, tg.get(name)), FORMER, range(2))
    file = saved(former, tmp_path / "former.weights.h5")
    present = model_of(GROWN, tg.get(name))
    present.optimizer.build(present)
    start, rows = values(present), former_rows(FORMER, GROWN)
    load(present, file, {TABLE: rows})
    assert_taken_over(present, former, rows, start)
    train(present, GROWN, [2])
    assert all(np.isfinite(value).all() for value in values(present).values())


def test_two_tables_of_one_model(tmp_path):
    def make(*rows):
        ids = keras.Input([], dtype="int32")
        embeddings = [keras.layers.Embedding(n, 2, name=f"of_{i}") for i, n in enumerate(rows)]
        model = keras.Model(ids, keras.layers.Add()([layer(ids) for layer in embeddings]))
        model.compile(tg.SGD(0.1, momentum=0.9), "mse")
        return model

    former, present = make(3, 2), make(2, 4)
    former.fit(np.array([0, 1]), np.ones([2, 2]), verbose=0)
    file = saved(former, tmp_path / "former.weights.h5")
    load(present, file, {"of_0/embeddings": [1, 2], "of_1/embeddings": [-1, 1, 0, -1]})
    was, now = values(former), values(present)
    for role in ("", "/momentum"):
        np.testing.assert_array_equal(
            now[f"of_0/embeddings{role}"], was[f"of_0/embeddings{role}"][[1, 2]]
        )
        np.testing.assert_array_equal(
            now[f"of_1/embeddings{role}"][[2, 1]], was[f"of_1/embeddings{role}"]
        )
    assert not np.any(now["of_1/embeddings/momentum"][[0, 3]])


# What is refused.


def of_sgd(folder):
    return saved(train(model_of(FORMER, tg.SGD()), FORMER, [0]), folder / "sgd.weights.h5")


def of_another_width(folder):
    model = train(model_of(FORMER, tg.Adam(), width=5), FORMER, [0])
    return saved(model, folder / "wide.weights.h5")


def of_another_width_in_a_checkpoint(folder):
    model = train(model_of(FORMER, tg.Adam(), width=5), FORMER, [0])
    return saved(model, folder / "wide")


def of_keras(folder):
    model = model_of(FORMER, keras.optimizers.Adam())
    model.fit(np.zeros([1, 3]), np.ones([1, 1]), verbose=0)
    return saved(model, folder / "keras.weights.h5")


def of_another_model(folder):
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    return saved(model, folder / "another")


def damaged(folder):
    (folder / "damaged.weights.h5").write_bytes(b"no file of Keras")
    return folder / "damaged.weights.h5"


def of_the_former(folder):
    former = train(model_of(FORMER, tg.Adam()), FORMER, [0])
    return saved(former, folder / "former.weights.h5")


def of_the_former_in_a_checkpoint(folder):
    return saved(train(model_of(FORMER, tg.Adam()), FORMER, [0]), folder / "former")


ROW_9 = [0, 1, 9, -1, -1, 2, 3, 4, -1]


@pytest.mark.parametrize(
    ("make", "rows", "message"),
    [
        (of_sgd, {}, "what was saved is the state of SGD"),
        (of_another_width, {}, r"its words/embeddings is of shape \(5, 5\), and the model's is"),
        (of_another_width_in_a_checkpoint, {}, r"embeddings/momentum', was of shape \(9, 5\)"),
        (
            of_keras,
            {},
            "only state that an optimizer of tf_graft saved has rows that can be mapped",
        ),
        (of_another_model, {}, "another cannot be loaded: it holds no words/embeddings of shape"),
        (damaged, {}, "damaged.weights.h5 cannot be loaded: "),
        (lambda folder: folder / "none.weights.h5", {}, "none.weights.h5 cannot be loaded: "),
        (lambda folder: folder / "none", {}, "none cannot be loaded: "),
        (of_the_former, {TABLE: ROW_9}, "names row 9, and the saved table has 5 rows"),
        (of_the_former_in_a_checkpoint, {TABLE: ROW_9}, "names row 9, and the saved table has 5"),
    ],
)
def test_a_file_that_does_not_fit_changes_nothing(make, rows, message, tmp_path):
    present = train(model_of(GROWN, tg.Adam()), GROWN, range(2))
    file, before = make(tmp_path), values(present)
    with pytest.raises(tg.CheckpointError, match=f"^vocabulary.load: .*{message}") as raised:
        load(present, file, rows or {TABLE: (FORMER, GROWN)})
    assert "\n" not in str(raised.value)
    np.testing.assert_equal(values(present), before)
    train(present, GROWN, [2])


@pytest.mark.parametrize("kind", samples.with_slow(KINDS, KINDS[:1]))
def test_another_variable_of_another_shape(kind, tmp_path):
    """Of models without an optimizer, which would see it first in a checkpoint."""
    file = saved(model_of(FORMER, None, width=5), tmp_path / kind)
    present = model_of(FORMER, None, width=4)
    before = present.get_weights()
    message = r"its words/embeddings is of shape \(5, 5\), and the model's is of shape \(5, 4\)\.$"
    with pytest.raises(tg.CheckpointError, match=message):
        load(present, file, {})
    np.testing.assert_equal(present.get_weights(), before)


@pytest.mark.parametrize("kind", samples.with_slow(KINDS, KINDS[2:]))
def test_the_optimizer_is_put_back_too(kind, tmp_path):
    """Of which all fits: only a frozen layer does not."""

    def make(words, width):
        ids = keras.Input([3], dtype="int32")
        x = keras.layers.Embedding(len(words), 2, name="words")(ids)
        x = keras.layers.Dense(width, name="frozen", trainable=False)(x)
        model = keras.Model(ids, x)
        model.compile(tg.Adam(0.1), "mse")
        return model

    file = saved(train(make(FORMER, 4), FORMER, range(3)), tmp_path / kind)
    present = train(make(GROWN, 3), GROWN, [0])
    before = values(present)
    with pytest.raises(tg.CheckpointError, match=r"its frozen/.* is of shape \(.*4\)"):
        load(present, file, {TABLE: (FORMER, GROWN)})
    np.testing.assert_equal(values(present), before)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ({"text/embeddings": [0]}, ValueError, "'text/embeddings', and none of the model's"),
        ({"": [0]}, ValueError, "none of the model's"),
        ({TABLE: [0, 1]}, ValueError, "has 2 rows, and the table has 9"),
        ({TABLE: (FORMER, SHRUNK)}, ValueError, "has 3 rows, and the table has 9"),
        ({TABLE: [-2] * 9}, ValueError, "has the row -2; a row must be at least 0, or -1"),
        ({TABLE: [0.5] * 9}, TypeError, "must be a list of row numbers, or the former and"),
        ({TABLE: FORMER}, TypeError, "must be a list of row numbers, or the former and"),
        ({TABLE: (["a", "a"], GROWN)}, ValueError, "the token 'a' in the rows 0 and 1"),
        ({TABLE: [0] * 9, "embeddings": [0] * 9}, ValueError, "two maps of 'words/embeddings'"),
        ([0] * 9, TypeError, "it must map paths to row numbers"),
    ],
)
def test_bad_maps(rows, error, message, tmp_path):
    present = model_of(GROWN, tg.Adam())
    with pytest.raises(error, match=f"^vocabulary.load: .*{message}"):
        load(present, tmp_path / "none.weights.h5", rows)


def test_models_that_cannot_take_over(tmp_path):
    file, maps = tmp_path / "none.weights.h5", {TABLE: (FORMER, GROWN)}
    with pytest.raises(TypeError, match="model must be a Model"):
        load(tg.Adam(), file, maps)
    with pytest.raises(TypeError, match="compile the model with an optimizer of tf_graft"):
        load(model_of(GROWN, keras.optimizers.Adam()), file, maps)
    with pytest.raises(ValueError, match=r"must be a \.keras or \.weights\.h5 file"):
        load(model_of(GROWN, tg.Adam()), tmp_path / "old.h5", maps)
    with pytest.raises(ValueError, match="the model is not built"):
        load(keras.Sequential([keras.layers.Embedding(9, 4, name="words")]), file, maps)
    inner = model_of(GROWN, tg.Adam())
    outer = keras.Sequential([keras.Input([3], dtype="int32"), inner])
    with pytest.raises(ValueError, match=f"'{inner.name}' in the model has an optimizer of its"):
        load(outer, file, maps)


# Vocabularies.


def test_rows_of_lists():
    assert former_rows(FORMER, GROWN).tolist() == [-1, 1, 4, -1, 0, 2, -1, -1, 3]
    assert former_rows(np.array([7, 3]), (3, 5, 7)).tolist() == [1, -1, 0]
    assert former_rows([], ["a"]).tolist() == [-1]
    assert former_rows([b"cat", "dög".encode(), b"\xff"], ["dög", "cat"]).tolist() == [1, 0]
    assert former_rows(np.array([b"cat"]), ["cat"]).tolist() == [0]
    assert former_rows(["a"], []).shape == (0,)


def test_layers_may_spell_masks_and_unknown_tokens_differently():
    def lookup(words, **options):
        return keras.layers.StringLookup(vocabulary=words, **options)

    former, present = lookup(["a", "b"]), lookup(["b", "c"], oov_token="<unk>")
    assert former_rows(former, present).tolist() == [0, 2, -1]
    former, present = (
        lookup(["a", "b"], mask_token="", num_oov_indices=2),
        lookup(["b", "c"], mask_token="[M]", num_oov_indices=2, oov_token="?"),
    )
    assert former_rows(former, present).tolist() == [0, 1, 2, 4, -1]
    assert former_rows(["[UNK]", "a"], lookup(["a"])).tolist() == [0, 1]  # a list has spellings


@pytest.mark.parametrize("mask", [None, ""])
@pytest.mark.parametrize("unknown", [0, 1, 2])
def test_rows_of_string_lookups(mask, unknown):
    def layer(tokens, count):
        return keras.layers.StringLookup(vocabulary=tokens, mask_token=mask, num_oov_indices=count)

    former, present = layer(FORMER, unknown), layer(SHRUNK, unknown)
    special = unknown + (mask is not None)
    expected = [*range(special), *(special + np.array([3, 1, 4]))]
    assert former_rows(former, present).tolist() == expected
    assert former(present.get_vocabulary()[special:]).numpy().tolist() == expected[special:]
    more = former_rows(former, layer(SHRUNK, unknown + 1))
    assert more[special] == -1
    assert more[special + 1 :].tolist() == expected[special:]


def test_rows_of_integer_lookups():
    former = keras.layers.IntegerLookup(vocabulary=[10, 20], mask_token=0)
    present = keras.layers.IntegerLookup(vocabulary=[20, 30, 10], mask_token=0)
    assert former_rows(former, present).tolist() == [0, 1, 3, -1, 2]
    assert former_rows([10, 20], present).tolist() == [-1, -1, 1, -1, 0]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (["a", "b", "a"], ValueError, "present has the token 'a' in the rows 0 and 2; it must"),
        ([1, 1.0], ValueError, "present has the token 1.0 in the rows 0 and 1"),
        ("ab", TypeError, "present is 'ab'; it must be a list of tokens or a lookup layer"),
        (3, TypeError, "present is 3; it must be a list of tokens or a lookup layer"),
        (
            [["a"]],
            TypeError,
            "present is a list of .*; it must be a list of tokens or a lookup layer",
        ),
    ],
)
def test_bad_vocabularies(given, error, message):
    with pytest.raises(error, match=f"^former_rows: {message}"):
        former_rows(["a"], given)
