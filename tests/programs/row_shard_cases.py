"""A table whose rows a mesh divides: the numbers of one device, and nothing as large as the table.

Run by `test_dtensor.py`, in a process of its own.
"""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import tf_graft as tg
from programs.dtensor_cases import adam, made, mesh, optimizer_state, train
from tf_graft import dtensor as td
from tf_graft.core.tensors import row_shards

ROWS, WIDTH = 64, 4
RNG = np.random.default_rng(0)
IDS = RNG.integers(0, ROWS, (24, 6))
IDS[:, 0] = 3  # a row that repeats in each batch
Y = RNG.integers(0, 4, 24)
BY = {"other": ["model", None], "batch": ["batch", None], "both": ["model", "batch"]}


def tower(ids="int32", dtype=None, embedding=keras.layers.Embedding, **options):
    inputs = keras.Input((6,), dtype=ids)
    found = embedding(ROWS, WIDTH, name="table", dtype=dtype, **options)(inputs)
    pooled = keras.layers.GlobalAveragePooling1D(dtype="float32")(found)
    return keras.Model(inputs, keras.layers.Dense(4, name="head")(pooled))


def assert_alike(specs, make=tower, optimizer=adam, ids=IDS, atol=2e-6, **options):
    """The same losses and weights as on one device; returns the model."""
    one, model, _ = train(make, {}, (ids, Y), optimizer=optimizer, **options)
    many, divided, _ = train(
        make, {"table/embeddings": specs}, (ids, Y), mesh(), optimizer=optimizer
    )
    np.testing.assert_allclose(many["loss"], one["loss"], rtol=1e-5, atol=1e-6)
    for actual, expected in zip(divided.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=atol)
    alike = divided.predict(ids, verbose=0), model.predict(ids, verbose=0)
    np.testing.assert_allclose(*alike, rtol=2e-5, atol=1e-5)
    return divided


OPTIONS = {
    "lazy": {},
    "exact": {"sparse": "exact"},
    "all_on": {
        **{"use_ema": True, "weight_decay": 0.01, "global_clipnorm": 1.0},
        "gradient_accumulation_steps": 2,
    },
    "counted": {
        "count_rows": {"table": tg.RowFrequency(3.0, half_life=2.0)},
        "clip_rows": {"table": tg.CowClip()},
    },
    "decaying": {"sparse": "lazy_decay", "weight_decay": 0.1},
    "rounded": {"state_dtype": "bfloat16"},
}


SOON = {("both", "counted")}  # lazy ones: `subclass` over "model", the pooled table over "batch"
CELLS = [
    pytest.param(*cell, marks=[] if cell in SOON else pytest.mark.slow)
    for cell in itertools.product(BY, OPTIONS)
]


@pytest.mark.parametrize(("specs", "options"), CELLS)
def test_training_is_that_of_one_device(specs, options):
    assert_alike(BY[specs], optimizer=lambda: adam(**OPTIONS[options]))


@pytest.mark.slow
@pytest.mark.parametrize("make", [tg.SGD, tg.Adagrad, tg.RowWiseAdagrad, tg.Ftrl])
def test_other_rules(make):
    assert_alike(BY["other"], optimizer=lambda: make(0.1, name="optimizer"))


class Scaled(keras.layers.Embedding):
    """An `Embedding` with a call of its own."""

    def call(self, inputs, factor=2.0):
        return factor * super().call(inputs)


KINDS = {
    "subclass": (lambda: tower(embedding=Scaled), IDS),
    "bfloat16": (lambda: tower(dtype="bfloat16"), IDS),
    "int64": (lambda: tower("int64"), IDS.astype("int64")),
    "masked": (lambda: tower(mask_zero=True), np.where(IDS < 20, 0, IDS)),
    "negative": (tower, IDS - ROWS),
    "half": (lambda: tower(dtype="mixed_bfloat16"), IDS),
    "float64": (lambda: tower(dtype="float64"), IDS),
    "lora": (lambda: tower(lora_rank=2), IDS),
}
SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in list(KINDS)[1:]]


@pytest.mark.parametrize("kind", [*list(KINDS)[:1], *SLOW])
def test_layers_of_every_kind(kind):
    make, ids = KINDS[kind]
    assert_alike(BY["other"], make, ids=ids, atol=1e-2 if kind == "bfloat16" else 2e-6)


def test_a_pooled_table_over_the_devices_of_the_batch():
    """The lookups are laid out as the pooling wants them, and so are their gradients."""

    def pooled():
        layers = [keras.layers.Embedding(ROWS, WIDTH, name="table")]
        layers += [keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(4)]
        return keras.Sequential([keras.Input((6,), dtype="int32"), *layers])

    assert_alike(BY["batch"], pooled, ids=IDS.astype("int32"))


def test_a_device_holds_its_share_and_sends_rows_of_the_batch():
    """What a step sends does not depend on the table, and is less than the table."""
    sent, held = [], []
    for rows in (1024, 4096):
        model = made(lambda rows=rows: table_of(rows), adam(), metrics=[])
        td.distribute(model, td.LayoutMap(mesh(), {"table": BY["other"]}))
        sent.append(td.traffic(model, (IDS[:8], Y[:8])).sent)
        held.append(td.memory(model))
    more = 4 * (4096 - 1024) * WIDTH // 2
    assert held[1]["model"] - held[0]["model"] == more
    assert held[1]["optimizer"] - held[0]["optimizer"] == 2 * more
    assert sent[0] == sent[1] < 4 * 1024 * WIDTH / 4


def table_of(rows):
    inputs = keras.Input((6,), dtype="int32")
    found = keras.layers.Embedding(rows, WIDTH, name="table")(inputs)
    return keras.Model(inputs, keras.layers.Dense(4)(keras.layers.Flatten()(found)))


def test_an_id_out_of_range_is_an_error():
    model = made(tower, adam())
    td.distribute(model, td.LayoutMap(mesh(), {"table": BY["other"]}))
    model.fit(IDS, Y, batch_size=8, verbose=0)
    before = model.get_weights()
    for outside in (ROWS, -ROWS - 1):
        with pytest.raises(tf.errors.OpError):
            model.fit(np.where(IDS == 3, outside, IDS), Y, batch_size=8, verbose=0)
    np.testing.assert_equal(model.get_weights(), before)


def test_nan_in_a_row_stays_there():
    """A shard is multiplied by zero where another device's row is meant."""
    model = made(tower, tg.SGD(0.1, nonfinite="apply", name="optimizer"))
    table = model.get_layer("table")
    spoiled = table.get_weights()[0]
    spoiled[:: ROWS // 2] = np.nan  # the first row of each device
    table.set_weights([spoiled])
    td.distribute(model, td.LayoutMap(mesh(), {"table": BY["other"]}))
    ids = np.where(IDS % (ROWS // 2) == 0, 1, IDS)
    assert np.isfinite(model.predict(ids, verbose=0)).all()
    model.fit(ids, Y, batch_size=8, verbose=0)
    np.testing.assert_array_equal(np.isnan(table.get_weights()[0]), np.isnan(spoiled))


def test_a_gradient_of_nan_stays_in_its_row():
    values = tf.constant([[np.nan, 1.0], [2.0, 3.0]])
    layout = dtensor.Layout(["model", dtensor.UNSHARDED], mesh())
    replicated = dtensor.Layout.replicated(mesh(), 1)

    @tf.function
    def summed(values, rows):
        return row_shards.summed(values, rows, 8, layout)

    on_mesh = dtensor.copy_to_mesh(values, dtensor.Layout.replicated(mesh(), 2))
    rows = dtensor.copy_to_mesh(tf.constant([0, 3]), replicated)
    expected = np.zeros((8, 2))
    expected[[0, 3]] = values
    np.testing.assert_array_equal(td.from_mesh(summed(on_mesh, rows)), expected)


@pytest.mark.slow
def test_it_is_saved_loaded_and_taken_back(tmp_path):
    model = made(tower, adam(use_ema=True))
    td.distribute(model, td.LayoutMap(mesh(), {"table": BY["other"]}))
    model.fit(IDS, Y, batch_size=8, verbose=0)
    model.save(tmp_path / "model.keras")
    again = made(tower, adam(use_ema=True))
    td.distribute(again, td.LayoutMap(mesh(), {"table": BY["other"]}))
    again.load_weights(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for other in (again, loaded, td.collect(model)):
        other.fit(IDS, Y, batch_size=8, shuffle=False, verbose=0)
    for other in (again, loaded):
        for actual, expected in zip(other.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6)
        found = optimizer_state(other).values(), optimizer_state(model).values()
        for actual, expected in zip(*found, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.slow
def test_rows_that_are_given_to_other_ids():
    """Of a divided table `reset_rows` clears the slots of its rows, and no others."""
    model = made(tower, adam())
    td.distribute(model, td.LayoutMap(mesh(), {"table": BY["other"]}))
    model.fit(IDS, Y, batch_size=8, verbose=0)
    table = model.get_layer("table").embeddings
    slot = next(v for p, v in slots_of(model).items() if p.endswith("table/embeddings/velocity"))
    before = td.from_mesh(slot.value).numpy()
    model.optimizer.reset_rows(table, [3, 40])
    after = td.from_mesh(slot.value).numpy()
    assert before[3].any()
    assert not after[[3, 40]].any()
    np.testing.assert_array_equal(np.delete(after, [3, 40], 0), np.delete(before, [3, 40], 0))


def slots_of(model):
    return {v.path: v for v in model.optimizer.variables}


def test_a_loop_with_a_tape():
    """The gradient has the rows of the batch."""
    model = made(tower, adam())
    td.distribute(model, td.LayoutMap(mesh(), {"table": BY["other"]}))
    optimizer = model.optimizer
    x, y = td.pack_batch((IDS[:8].astype("int32"), Y[:8]), mesh())
    sparse = []

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = model.compute_loss(y=y, y_pred=model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        sparse.append(isinstance(gradients[0], tf.IndexedSlices))
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    losses = [float(td.from_mesh(step())) for _ in range(8)]
    assert sparse == [True] * len(sparse)
    assert losses[-1] < losses[0]
