"""A step through `keras.layers.Embedding` costs what its rows cost: nothing copies the table.

Where a table lies in memory tells: a copy lies elsewhere.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft
from support import samples
from support.replicas import mirrored

ALL_ON = {
    "use_ema": True,
    "weight_decay": 0.01,
    "global_clipnorm": 1.0,
    "gradient_accumulation_steps": 2,
}
X = np.array([[1, 1, 2], [3, 49, 1]], "int32")
Y = np.ones((2, 1), "float32")


def embedding_model():
    return keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            keras.layers.Embedding(50, 4),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )


def address(tensor):
    return np.frombuffer(memoryview(tensor), np.uint8).__array_interface__["data"][0]


def places(variables):
    """Where two reads of each variable lie, one made while the other is there."""
    reads = [(v.read_value(), v.read_value()) for v in variables]
    return [(address(a), address(b)) for a, b in reads]


def assert_nothing_copies(step, variables):
    """Neither a step nor a read after it copies one of the variables."""
    step()
    before = places(variables)
    assert all(a == b for a, b in before), "a read copies the table"
    for _ in range(10):
        step()
        assert places(variables) == before, "a step moves the table"


# A kernel, idle rows, a slot for each row, norms, two weights, a wrapper, a graft, Keras' own.
SOME = (
    *("sgd_momentum", "adagrad", "adam_amsgrad", "rowwise_adagrad", "lamb", "larc_clip"),
    *("schedule_free_adamw", "cautious", "graft_sgd_adam", "wrapped_nadam"),
)
MADE = {
    "adam": lambda: tf_graft.Adam(),
    "adam_all_on": lambda: tf_graft.Adam(**ALL_ON),
    "adam_unchecked": lambda: tf_graft.Adam(nonfinite="apply", use_ema=True, weight_decay=0.01),
    "mixed_precision": lambda: tf_graft.MixedPrecision(tf_graft.Adagrad(), "backoff"),
    "agn": lambda: tf_graft.AGN(tf_graft.SGD(0.1), communication_period=2),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("adam_all_on", "agn") else pytest.param(name, marks=pytest.mark.slow)
        for name in MADE
    ],
)
def test_a_compiled_model_copies_no_table(name):
    model = embedding_model()
    model.compile(MADE[name](), "mse")
    table = model.layers[0].embeddings.value
    assert_nothing_copies(lambda: model.train_on_batch(X, Y), [table])


@pytest.mark.slow
def test_replicas_copy_no_table():
    with mirrored().scope():
        model = embedding_model()
        model.compile(tf_graft.Adam(use_ema=True), "mse")
    copies = model.layers[0].embeddings.value.values
    assert_nothing_copies(lambda: model.train_on_batch(X, Y), copies)


def test_an_eager_loop_leaves_tables_shared():
    table, optimizer = tf.Variable(tf.ones([50, 4])), tf_graft.Adam()
    optimizer.apply([tf.IndexedSlices(tf.ones([2, 4]), tf.constant([1, 1]))], [table])
    ((a, b),) = places([table])
    assert a == b


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({}, samples.SAMPLES),
        (ALL_ON, samples.SAMPLES),
        (ALL_ON, samples.of_each_class()),
        (ALL_ON, [samples.BY_NAME[name] for name in SOME]),
    ],
    ids=["plain", "all_on", "each_class", "some"],
)
def test_no_optimizer_copies_a_table(options, chosen):
    """All in one function, each with a table of its own, read as a layer reads it."""
    tables, optimizers = [], []
    for sample in chosen:
        if options.get("weight_decay") and getattr(sample.make(), "optimizer", None) is not None:
            continue  # what decays by itself refuses another decay
        if options.get("gradient_accumulation_steps") and sample.name == "prodigy":
            continue  # copies it: its steps wait for sums over all variables, in a conditional
        optimizers.append(sample.make(**options))
        tables.append(tf.Variable(tf.ones([50, 4]), name=sample.name))
        optimizers[-1].build(tables[-1:])

    @tf.function
    def step():
        for table, optimizer in zip(tables, optimizers, strict=True):
            with tf.GradientTape() as tape:
                rows = tf.gather(tf.convert_to_tensor(table), X)
                loss = tf.reduce_sum(rows**2)
            optimizer.apply(tape.gradient(loss, [table]), [table])

    by_rows = [
        table
        for table, optimizer in zip(tables, optimizers, strict=True)
        if not optimizer.whole(table.name.partition(":")[0])
    ]
    assert len(by_rows) > len(tables) // 2
    assert_nothing_copies(step, by_rows)
