"""Ids get rows when they come, keep them, and lose them: as a dictionary by hand would have it."""

import contextlib
from collections import Counter

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support.replicas import mirrored
from tf_graft.vocabulary import DynamicLookup, EvictRows

CAPACITY, AFTER = 6, 2


class Dictionary:
    """What `DynamicLookup` says, by hand."""

    def __init__(self):
        self.rows, self.seen, self.last, self.calls = {}, Counter(), {}, 0

    def learn(self, ids):
        self.calls += 1
        self.seen.update(ids)
        for x in dict.fromkeys(ids):
            self.last[x] = self.calls
            free = sorted({*range(1, CAPACITY)} - {*self.rows.values()})
            if x not in self.rows and self.seen[x] >= AFTER and free:
                self.rows[x] = free[0]
        return [self.rows.get(x, 0) for x in ids]

    def evict(self, unused_for):
        old = [x for x, last in self.last.items() if self.calls - last >= unused_for]
        for x in old:
            del self.seen[x], self.last[x]
        return sorted(self.rows.pop(x) for x in old if x in self.rows)


def batches(count, seed=0):
    """Batches of ids of which some come often; each id is as large as an int64 may be."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(-(2**63), 2**63 - 1, 12)
    return [ids[rng.zipf(1.5, size=[2, 3]) % 12] for _ in range(count)]


def lookup():
    return DynamicLookup(CAPACITY, AFTER)


@pytest.mark.parametrize("traced", [False, True])
def test_rows_are_those_of_a_dictionary(traced):
    layer, expected, freed = lookup(), Dictionary(), 0

    def learn(ids):
        return layer(ids, training=True)

    run = tf.function(learn) if traced else learn
    for number, ids in enumerate(batches(60), 1):
        assert run(tf.constant(ids)).numpy().ravel().tolist() == expected.learn(
            ids.ravel().tolist()
        )
        if number % 5 == 0:
            rows = expected.evict(4)
            assert layer.evict(4).tolist() == rows
            freed += len(rows)
        assert layer.ids() == expected.rows
        assert layer.size == len(expected.rows)
    assert freed > 5


def test_a_look_up_changes_nothing():
    layer = lookup()
    ids = np.array([[5, 5, 6]])
    assert layer(ids, training=True).numpy().tolist() == [[1, 1, 0]]
    for _ in range(3):
        found = layer(ids)
        assert found.numpy().tolist() == [[1, 1, 0]]
    assert found.dtype == tf.int64
    assert layer.ids() == {5: 1}


@pytest.mark.parametrize("calls", [None, 4])
def test_a_dataset(calls):
    """Batch by batch it gives the rows of eager calls; in parallel, another order of them."""
    data, layer, other = batches(40), lookup(), lookup()
    dataset = tf.data.Dataset.from_tensor_slices(np.stack(data))
    mapped = dataset.map(lambda ids: layer(ids, training=True), num_parallel_calls=calls)
    rows = [row.numpy().tolist() for row in mapped]
    if calls is None:
        assert rows == [other(ids, training=True).numpy().tolist() for ids in data]
    assert sorted(layer.ids().values()) == list(range(1, CAPACITY))


@pytest.mark.parametrize("file", ["x.keras", "x.weights.h5", "checkpoint"])
def test_a_file_goes_on_where_it_was(tmp_path, file):
    layer = lookup()
    model, other = (
        keras.Sequential([keras.Input([3], dtype="int64"), x]) for x in (layer, lookup())
    )
    data = batches(30)
    for ids in data[:15]:
        layer(ids, training=True)
    layer.evict(3)
    if file == "checkpoint":
        path = tf.train.Checkpoint(model=model).save(tmp_path / file)
        tf.train.Checkpoint(model=other).restore(path).assert_consumed()
    elif file == "x.keras":
        model.save(tmp_path / file)
        other = keras.models.load_model(tmp_path / file)
    else:
        model.save_weights(tmp_path / file)
        other.load_weights(tmp_path / file)
    loaded = other.layers[0]
    assert loaded.ids() == layer.ids() != {}
    for ids in data[15:]:
        np.testing.assert_array_equal(loaded(ids, training=True), layer(ids, training=True))
        assert loaded.evict(3).tolist() == layer.evict(3).tolist()


def test_a_larger_layer_loads_the_file_of_a_smaller_one(tmp_path):
    small, large, smaller = (DynamicLookup(capacity) for capacity in (4, 5, 3))
    models = [
        keras.Sequential([keras.Input([3], dtype="int64"), x]) for x in (small, large, smaller)
    ]
    small(np.array([[7, 8, 9]]), training=True)
    models[0].save_weights(tmp_path / "small.weights.h5")
    models[1].load_weights(tmp_path / "small.weights.h5")
    assert large(np.array([[9, 10, 11]]), training=True).numpy().tolist() == [[3, 4, 0]]
    with pytest.raises(ValueError, match="the file has the row 3, and the layer has 3 rows"):
        models[2].load_weights(tmp_path / "small.weights.h5")
    assert smaller.ids() == {}


def model_of(lookup, optimizer):
    keras.utils.set_random_seed(1)
    table = keras.layers.Embedding(lookup.capacity, 4, name="table")
    model = keras.Sequential([keras.Input([3], dtype="int64"), table, keras.layers.Flatten()])
    model.add(keras.layers.Dense(1))
    model.compile(optimizer, "mse")
    return model, table


def fitted(strategy):
    """A model whose ids are others after the first epoch; its table, and what it was in between.

    After the second epoch the ids of the first have not come for two batches.
    """
    layer = DynamicLookup(CAPACITY)
    with strategy.scope():
        model, table = model_of(layer, tg.Adam(0.1, use_ema=True))
    first, evict = table.embeddings.numpy(), EvictRows(layer, table, unused_for=2)
    for wave in (0, 100):
        x = np.random.default_rng(wave).integers(wave, wave + 4, [8, 3])
        data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True) / 100)).batch(4)
        data = data.map(lambda ids, y: (layer(ids, training=True), y)).prefetch(1)
        model.fit(data, shuffle=False, verbose=0, callbacks=[evict])
    np.testing.assert_array_equal(table.embeddings.numpy()[1:5], first[1:5])
    assert np.all(table.embeddings.numpy()[5] != first[5])
    for variable in model.optimizer.variables:
        if variable.path.endswith(("embeddings/momentum", "embeddings/velocity")):
            assert not variable.numpy()[1:5].any()
            assert variable.numpy()[5].all()
    model.fit(data, shuffle=False, verbose=0, callbacks=[evict])
    return table.embeddings.numpy(), layer


@pytest.mark.slow
def test_tables_that_share_a_lookup_begin_anew_together():
    lookup, ids = DynamicLookup(5), keras.Input([], dtype="int64")
    wide = keras.layers.Embedding(
        5, 2, embeddings_initializer=keras.initializers.RandomNormal(1, 1, 1)
    )
    narrow = keras.layers.Embedding(5, 1, embeddings_initializer="zeros")
    model = keras.Model(ids, keras.layers.Dense(1)(wide(ids)) + narrow(ids))
    model.compile(tg.Adam(0.1), "mse")
    first = wide.embeddings.numpy()
    data = tf.data.Dataset.from_tensor_slices(([70, 51] + [70] * 6, np.ones([8, 1]))).batch(2)
    data = data.map(lambda ids, y: (lookup(ids, training=True), y))
    evict = EvictRows(lookup, [wide, narrow], unused_for=2)
    model.fit(data, shuffle=False, verbose=0, callbacks=[evict])
    assert lookup.ids() == {70: 1}
    np.testing.assert_array_equal(wide.embeddings[2], first[2])
    assert (narrow.embeddings.numpy() != 0).ravel().tolist() == [False, True, False, False, False]
    for path, variable in model.optimizer.state.named().items():
        if "embedding" in path and path.endswith("momentum"):
            assert np.any(variable[1] != 0)
            assert not np.any(variable[2])


def test_a_row_that_was_freed_and_trained_again_is_reset_again():
    """The ids were looked up once, before `fit`, and later epochs still use their rows."""
    lookup, table = DynamicLookup(5), keras.layers.Embedding(5, 1, embeddings_initializer="zeros")
    model = keras.Sequential([keras.Input([], dtype="int64"), table])
    model.compile(tg.SGD(0.5), "mse")
    batches = [[70, 51], [70, 70], [70, 70], [70, 70]]
    rows = np.concatenate([lookup(np.array(batch), training=True) for batch in batches])
    evict = EvictRows(lookup, table, unused_for=2)
    model.fit(rows, np.full([8, 1], 9.0), 2, epochs=3, shuffle=False, verbose=0, callbacks=[evict])
    assert lookup(np.array([99]), training=True).numpy().tolist() == [2]
    assert table.embeddings.numpy().ravel().tolist() == [0, 9, 0, 0, 0]


@pytest.mark.slow
def test_a_row_of_another_id_begins_anew():
    """On one device and on two replicas."""
    table, layer = fitted(tf.distribute.get_strategy())
    assert sorted(layer.ids()) == [100, 101, 102, 103]
    of_replicas, _ = fitted(mirrored())
    np.testing.assert_allclose(table, of_replicas, rtol=1e-5, atol=1e-6)


def test_a_layer_of_the_model_learns_in_fit():
    layer = DynamicLookup(20, name="lookup")
    model = keras.Sequential(
        [keras.Input([3], dtype="int64"), layer, keras.layers.Embedding(20, 2)]
    )
    model.compile(tg.Adam(), "mse")
    x = np.arange(30).reshape([10, 3]) * 10**15
    model.fit(x, np.zeros([10, 3, 2]), epochs=1, verbose=0)
    assert layer.size == 19
    known = layer.ids()
    model.evaluate(x + 1, np.zeros([10, 3, 2]), verbose=0)
    assert layer.ids() == known


def test_what_it_cannot_do_is_refused():
    layer = DynamicLookup(5, name="lookup")
    with pytest.raises(TypeError, match="ids must be integers, not float32"):
        layer(np.array([1.5], "float32"))
    with pytest.raises(TypeError, match="ids must be integers, not string; hash strings"):
        layer(tf.constant(["a"]))
    with pytest.raises(ValueError, match="cannot be called in XLA; map the dataset"):
        tf.function(lambda: layer(tf.constant([1])), jit_compile=True)()
    with pytest.raises(ValueError, match="by several replicas; map the dataset"):
        mirrored().run(lambda: layer(tf.constant([1])))
    for arguments, said in {
        (1,): r"DynamicLookup\(capacity=1\): capacity must be at least 2",
        (5, 0): r"DynamicLookup\(admit_after=0\): admit_after must be at least 1",
    }.items():
        with pytest.raises(ValueError, match=said):
            DynamicLookup(*arguments)
    with pytest.raises(ValueError, match="unused_for must be at least 1"):
        layer.evict(0)
    assert layer.ids() == {}


def test_a_callback_for_other_layers_is_refused():
    layer, table = DynamicLookup(5, name="lookup"), keras.layers.Embedding(5, 2, name="table")
    with pytest.raises(
        TypeError, match=r"EvictRows: lookup is .*; it must be a layer of type DynamicLookup"
    ):
        EvictRows(table, table, 1)
    with pytest.raises(
        TypeError, match=r"EvictRows: embedding is .*; it must be a layer of type Embedding"
    ):
        EvictRows(layer, layer, 1)
    with pytest.raises(ValueError, match="embedding is an empty list; give at least one layer"):
        EvictRows(layer, [], 1)
    with pytest.raises(ValueError, match="'table' has 5 rows, and 'lookup' gives 6"):
        EvictRows(DynamicLookup(6, name="lookup"), table, 1)
    model, table = model_of(layer, keras.optimizers.Adam())
    with pytest.raises(TypeError, match=r"EvictRows: the optimizer .* cannot reset rows"):
        model.fit(
            np.zeros([4, 3], "int64"), np.zeros([4, 1]), callbacks=[EvictRows(layer, table, 1)]
        )


@pytest.mark.slow
def test_a_lookup_that_was_not_loaded_is_noticed(tmp_path):
    """If it is an attribute of the model, the file of the model's weights has it."""
    file = tmp_path / "model.weights.h5"
    x = np.arange(30).reshape([10, 3]) * 10**15

    def calls(attribute, loaded):
        layer = DynamicLookup(CAPACITY)
        model, table = model_of(layer, tg.Adam())
        if attribute:
            model.lookup = layer
        if loaded:
            model.load_weights(file)
        data = tf.data.Dataset.from_tensor_slices((x, np.zeros([10, 1]))).batch(5)
        data = data.map(lambda ids, y: (layer(ids, training=True), y))
        model.fit(data, shuffle=False, verbose=0, callbacks=[EvictRows(layer, table, 9)])
        model.save_weights(file)
        return layer.calls

    assert calls(attribute=True, loaded=False) == 2
    assert calls(attribute=True, loaded=True) == 4
    calls(attribute=False, loaded=False)
    with pytest.warns(UserWarning, match=r"taken 2 updates, but '.*' has seen no id"):
        calls(attribute=False, loaded=True)


def model_that_looks_up(optimizer, ids):
    layer = DynamicLookup(6, name="lookup")
    layer(np.array(ids), training=True)
    layers = [layer, keras.layers.Embedding(6, 2, name="emb"), keras.layers.Flatten()]
    inputs = keras.Input([2], dtype="int64")
    model = keras.Sequential([inputs, *layers, keras.layers.Dense(1)], name="model")
    model.compile(optimizer, "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model, layer


SEARCHED = (np.array([[70, 71]]), np.ones([1, 1]))
LOADS = {
    "load_weights": lambda model, file: model.load_weights(file),
    "average_files": lambda model, file: tg.averages.average_files(model, [file, "none"]),
    "load": lambda model, file: tg.vocabulary.load(model, file, {"embeddings": [*range(6)]}),
    "find_learning_rate": lambda model, _: tg.find_learning_rate(model, SEARCHED, steps=3),
}


@pytest.mark.parametrize("name", LOADS)
def test_what_changes_nothing_does_not_change_the_ids_either(name, tmp_path):
    file = str(tmp_path / "saved.weights.h5")
    saved, _ = model_that_looks_up(tg.RMSprop(0.01, momentum=0.9), [70, 71, 72])
    saved.save_weights(file)
    model, layer = model_that_looks_up(tg.Adam(0.01), [1, 2])
    before = [value.copy() for value in model.get_weights()]
    refused = pytest.raises((tg.CheckpointError, ValueError))  # Keras makes one of the other
    with contextlib.nullcontext() if name == "find_learning_rate" else refused:
        LOADS[name](model, file)
    assert layer.ids() == {1: 1, 2: 2}
    assert (layer.size, layer.calls) == (2, 1)
    for value, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, old)
