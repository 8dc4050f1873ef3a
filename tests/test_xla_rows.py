"""Row-sparse gradients compiled by XLA, where sizes are static: as without it, row 0 included.

XLA fills up what has a dynamic size, with zeros where it is rows: row 0 is what goes wrong first.
"""

import itertools
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support.replicas import mirrored
from support.samples import slices, state_of, variables, weights
from tf_graft.core.places import replicas
from tf_graft.core.tensors import rows

ROWS, LENGTH, BATCH, STEPS = 12, 4, 3, 8
PADDING = ROWS - 1
FIRST = [0, 0, 1, 1, 0, 1, 1, 1]  # the least id of each step: in some periods row 0 is not touched


@keras.saving.register_keras_serializable()
class Present(keras.layers.Layer):
    """The sum of the embeddings of the ids that are no padding: of how many, the data say."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embedding = keras.layers.Embedding(ROWS, 3)

    def build(self, shape):
        self.embedding.build(shape)

    def call(self, ids):
        flat = tf.reshape(ids, [-1])
        there = tf.reshape(tf.where(flat != PADDING), [-1])
        found = self.embedding(tf.gather(flat, there))
        return tf.math.unsorted_segment_sum(found, there // LENGTH, tf.shape(ids)[0])


@keras.saving.register_keras_serializable()
class Scale(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x):
        return x * self.scale


def fitted(optimizer, jit_compile, dynamic):
    """All weights, and all state of the optimizer, after a `fit` that sees id 0."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    static = [keras.layers.Embedding(ROWS, 3), keras.layers.GlobalAveragePooling1D()]
    ends = [keras.layers.BatchNormalization(), keras.layers.Dense(2), Scale()]
    model = keras.Sequential([Present()] if dynamic else static)
    for layer in ends:
        model.add(layer)
    random = np.random.default_rng(0)
    ids = np.concatenate([random.integers(least, ROWS, (BATCH, LENGTH)) for least in FIRST])
    y = random.normal(size=(len(ids), 2)).astype("float32")
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    model.fit(ids, y, BATCH, 1, verbose=0, shuffle=False)
    named = {f"weight {i}": w for i, w in enumerate(model.get_weights())}
    return named | state_of(optimizer)


FITTED = {
    "adam": (lambda: tg.Adam(0.1), True),
    "agn": (lambda: tg.AGN(tg.Adam(0.1), communication_period=2), False),
    "agn_dynamic": (lambda: tg.AGN(tg.Adam(0.1), communication_period=2), True),
    "agn_mixed": (
        lambda: tg.AGN(tg.MixedPrecision(tg.SGD(0.1, momentum=0.9), 8.0), communication_period=2),
        False,
    ),
    "agn_together": (
        lambda: tg.AGN(
            tg.AdaGraft(tg.Adam(0.1), tg.SGD(1.0)),
            communication_period=2,
            center_optimizer=tg.Adam(0.1, use_ema=True, global_clipnorm=0.1),
            mode="updates",
            reset_local_state=True,
            clipnorm=0.5,
        ),
        False,
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.slow if name in ("adam", "agn_dynamic") else pytest.mark.rare
        )
        for name in FITTED
    ],
)
def test_fit(name):
    make, dynamic = FITTED[name]
    compiled, right = (fitted(make(), jit, dynamic) for jit in (True, False))
    assert compiled.keys() == right.keys()
    for path, value in right.items():
        np.testing.assert_allclose(compiled[path], value, rtol=2e-5, atol=2e-5, err_msg=path)


# The optimizer alone, with rows of which the data say how many there are.

SHAPES = {"table": (6, 3), "kernel": (4, 3), "scale": ()}
IDS = [[0, 0, 1], [2, 5, 2], [1, 0, 4], [3, 3, 3], [0, 5, 1], [4, 0, 0]]
KEPT = [[1, 1, 1], [1, 0, 1], [0, 1, 1], [0, 1, 1], [0, 0, 0], [1, 1, 1]]
ALONE = {
    "adam": lambda: tg.Adam(0.1, global_clipnorm=0.5, use_ema=True),
    "exact": lambda: tg.Adam(0.1, sparse="exact"),
    "accumulated": lambda: tg.AdaGraft(tg.Adam(0.1), tg.SGD(1.0), gradient_accumulation_steps=2),
    "agn": lambda: tg.AGN(tg.Adam(0.1), communication_period=2, clipnorm=0.5),
}


def applied(optimizer, jit_compile):
    model = variables(weights(SHAPES))
    optimizer.build(list(model.values()))

    @tf.function(jit_compile=jit_compile)
    def apply(values, ids, kept, kernel, scale):
        values, ids = tf.boolean_mask(values, kept), tf.boolean_mask(ids, kept)
        optimizer.apply([tf.IndexedSlices(values, ids), kernel, scale], list(model.values()))

    random = np.random.default_rng(0)
    for ids, kept in zip(IDS, KEPT, strict=True):
        values = [random.normal(size=s).astype("float32") for s in ((3, 3), (4, 3), ())]
        apply(values[0], tf.constant(ids), tf.constant(np.array(kept, bool)), *values[1:])
    return state_of(optimizer, *model.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_rows_of_dynamic_number(name):
    compiled, right = (applied(ALONE[name](), jit) for jit in (True, False))
    for path, value in right.items():
        np.testing.assert_allclose(compiled[path], value, rtol=2e-5, atol=2e-5, err_msg=path)


PERIODIC = {
    "accumulated": lambda: tg.Adam(0.1, gradient_accumulation_steps=2),
    "agn": lambda: tg.AGN(tg.Adam(0.1), communication_period=2),
    "agn_accumulated": lambda: tg.AGN(
        tg.SGD(0.1, gradient_accumulation_steps=2), communication_period=2
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["accumulated", "agn", pytest.param("agn_accumulated", marks=pytest.mark.rare)]
)
def test_a_micro_step_of_more_rows_than_the_last(name):
    """XLA knows how many rows the last has: all rows are then updated under a mask."""

    def left(jit_compile):
        optimizer, table = PERIODIC[name](), tf.Variable(tf.ones([40, 2]), name="table")
        optimizer.build([table])
        apply = tf.function(optimizer.apply, jit_compile=jit_compile)
        for count in (9, 2, 3, 3) * 2:  # each number is compiled anew
            ids = tf.range(count) * 7 % 40
            apply([tf.IndexedSlices(tf.ones([count, 2]), ids)], [table])
        return state_of(optimizer, table)

    right = left(False)
    for path, value in left(True).items():
        np.testing.assert_allclose(value, right[path], rtol=2e-5, atol=2e-5, err_msg=path)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 15, 16, 17, 700])
def test_marked_rows_are_found_in_order(number):
    marks = np.random.default_rng(number).random(number) < 0.3
    right = np.flatnonzero(marks)
    find = tf.function(rows._first_true, jit_compile=True)
    for length in {0, 1, len(right), number + 3}:
        found, count = find(tf.constant(marks), length)
        assert int(count) == len(right)
        assert found.numpy()[: len(right)].tolist() == right[:length].tolist()
        assert (found.numpy()[len(right) :] == number).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: tg.Adam(0.1, use_ema=True),
        lambda: tg.Adam(0.1, use_ema=True, gradient_accumulation_steps=2),
        lambda: tg.AGN(tg.Adam(0.1), communication_period=2),
    ],
    ids=["averaged", "accumulated", "agn"],
)
def test_the_cost_follows_the_rows_and_not_the_table(make):
    """With 100 times the rows, copies of the table took 40 to 90 times as long."""

    def seconds(number):
        optimizer, table = make(), tf.Variable(tf.ones([number, 32]), name="table")
        optimizer.build([table])
        apply = tf.function(optimizer.apply, jit_compile=True)
        gradient = tf.IndexedSlices(tf.ones([256, 32]), tf.range(256) * 7)

        def period():
            began = time.perf_counter()
            for _ in range(2):
                apply([gradient], [table])
            return time.perf_counter() - began

        return min(period() for _ in range(12))

    assert seconds(1_000_000) < 10 * seconds(10_000)


def operations(function):
    """The types of all operations of a traced function, its branches included."""
    graph = function.graph.as_graph_def()
    nodes = itertools.chain(graph.node, *(f.node_def for f in graph.library.function))
    return [node.op for node in nodes]


def test_what_is_unique_is_not_coalesced_again():
    """AGN sends its center each row once: only the gradient that is given is coalesced."""
    table = tf.Variable(tf.zeros([4, 2]))
    optimizer = tg.AGN(tg.SGD(0.1, gradient_accumulation_steps=2), communication_period=2)
    optimizer.build([table])

    def apply(values):
        optimizer.apply([slices([0, 0], values)], [table])

    traced = tf.function(apply).get_concrete_function(tf.TensorSpec([2, 2]))
    assert operations(traced).count("Unique") == 1


@pytest.mark.parametrize("on_server", [False, True])
def test_rows_are_added_only_where_other_workers_write_them(monkeypatch, on_server):
    """Elsewhere they are written, in half the time."""
    monkeypatch.setattr(replicas, "on_server", lambda _: on_server)
    table = tf.Variable(tf.zeros([4, 2]))
    optimizer = tg.SGD(0.1)
    optimizer.build([table])

    def apply(values):
        optimizer.apply([slices([0, 0], values)], [table])

    traced = tf.function(apply).get_concrete_function(tf.TensorSpec([2, 2]))
    kinds = {op for op in operations(traced) if op.startswith("ResourceScatter")}
    assert kinds == {"ResourceScatterAdd" if on_server else "ResourceScatterUpdate"}


@pytest.mark.parametrize("ids", [[-1, 0, 7], [0, -1, 7]])
def test_rows_that_do_not_exist_are_dropped(ids):
    """XLA has no assertions; row 0 gets nothing of theirs."""
    table = tf.Variable(tf.zeros([3, 1]))
    optimizer = tg.SGD(1.0)
    optimizer.build([table])
    values = tf.constant([[1.0], [10.0], [100.0]])
    apply = tf.function(
        lambda: optimizer.apply([tf.IndexedSlices(values, tf.constant(ids))], [table]),
        jit_compile=True,
    )
    apply()
    np.testing.assert_array_equal(table[:, 0], [-values[ids.index(0), 0], 0, 0])


@pytest.mark.slow
def test_replicas_that_meet_are_refused_in_xla():
    """They would wait for each other for ever."""
    strategy = mirrored()
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        optimizer = tg.AGN(tg.SGD(0.1), communication_period=2)
        model.compile(optimizer, "mse", jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile=True on the replicas of a MirroredStrategy"):
        model.fit(np.ones((4, 2)), np.ones((4, 1)), 2, verbose=0)
