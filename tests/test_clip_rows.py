"""The gradient of each row clipped by itself: to a number, and as CowClip's paper has it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support.replicas import row_steps

ROWS, WIDTH, RATIO, BOUND = 6, 3, 0.2, 0.05
IDS = ([0, 1, 1, 4], [1, 4, 4, 4], [5, 2, 0, 0], [2, 2, 1, 5])
COW = {"clip_rows": {"table": tg.CowClip(RATIO, BOUND)}}


def weights():
    start = np.random.default_rng(3).normal(size=[ROWS, WIDTH]).astype("float32")
    start[4] = 0  # whose limit is the lower bound
    return start


def values(step):
    return np.random.default_rng([5, step]).normal(size=[len(IDS[step]), WIDTH]).astype("float32")


def slices(values, ids):
    return tf.IndexedSlices(tf.constant(values), tf.constant(ids), tf.constant([ROWS, WIDTH]))


def gradient(step):
    return slices(values(step), IDS[step])


def cow_clipped(w, groups):
    """Algorithm 1 in float64: the clipped gradient of the mean of batches."""
    total, count = np.zeros([ROWS, WIDTH]), np.zeros(ROWS)
    for values, ids in groups:
        np.add.at(total, ids, values.astype("float64") / len(groups))
        np.add.at(count, ids, 1)
    largest = count * np.maximum(RATIO * np.linalg.norm(w.astype("float64"), axis=1), BOUND)
    length = np.linalg.norm(total, axis=1)
    factor = np.where(length > largest, largest / np.where(length, length, 1), 1)
    assert np.any(factor < 1)
    return total * factor[:, None]


def expected(groups_of_steps, rate=0.5):
    w = weights().astype("float64")
    for groups in groups_of_steps:
        w -= rate * cow_clipped(w, groups)
    return w


ONE_BY_ONE = [[(values(step), IDS[step])] for step in range(len(IDS))]
EXECUTIONS = {
    "eager": lambda f: f,
    "function": tf.function,
    "xla": lambda f: tf.function(f, jit_compile=True),
}


def trained(optimizer, wrap=lambda f: f, form=lambda g: g):
    table = tf.Variable(weights(), name="table")
    optimizer.build([table])
    step = wrap(lambda g: optimizer.apply([form(g)], [table]))
    for number in range(len(IDS)):
        step(gradient(number))
    return table.numpy()


@pytest.mark.parametrize("sparse", ["lazy", "exact"])
@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("momentum", [0.0, 1e-30])
def test_cow_clip_is_its_papers(execution, sparse, momentum):
    """With a momentum `sparse="exact"` makes the gradient dense, and the ids still count."""
    optimizer = tg.SGD(0.5, momentum=momentum, sparse=sparse, **COW)
    found = trained(optimizer, EXECUTIONS[execution])
    np.testing.assert_allclose(found, expected(ONE_BY_ONE), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_accumulated_batches_are_one_large_batch(execution):
    optimizer = tg.SGD(0.5, gradient_accumulation_steps=2, **COW)
    found = trained(optimizer, EXECUTIONS[execution])
    pairs = [ONE_BY_ONE[0] + ONE_BY_ONE[1], ONE_BY_ONE[2] + ONE_BY_ONE[3]]
    np.testing.assert_allclose(found, expected(pairs), rtol=1e-5, atol=1e-6)
    (kept,) = [v for v in optimizer.variables if v.path.endswith("accumulated_times")]
    assert not np.any(kept)


@pytest.mark.slow
def test_replicas_count_the_ids_of_all():
    _, table, step = row_steps(lambda: tg.SGD(0.5, **COW), weights())
    for number, ids in enumerate(IDS):
        both = [values(number)[:2], values(number)[2:]]
        step(both, [ids[:2], ids[2:]])
    np.testing.assert_allclose(table.numpy(), expected(ONE_BY_ONE), rtol=1e-5, atol=1e-6)


def of_embedding(**penalty):
    """A model that looks up rows and multiplies them by a large number."""
    keras.utils.set_random_seed(0)
    table = keras.layers.Embedding(ROWS, WIDTH, name="table", **penalty)
    model = keras.Sequential([keras.Input([2], dtype="int32"), table, keras.layers.Rescaling(1e3)])
    model.compile(tg.SGD(1.0, **COW), "mse")
    return model


def test_cow_clip_refuses_a_dense_gradient_in_which_it_cannot_count():
    model = of_embedding(embeddings_regularizer="l2")
    before = model.get_weights()[0]
    with pytest.raises(ValueError, match="table/embeddings' is dense"):
        model.train_on_batch(np.array([[0, 1]]), np.zeros([1, 2, WIDTH]))
    np.testing.assert_array_equal(model.get_weights()[0], before)


def test_cow_clip_counts_ids_beside_a_penalty_of_the_rows_of_the_batch():
    model = of_embedding(activity_regularizer=keras.regularizers.L2(1e-3))
    before = model.get_weights()[0]
    model.train_on_batch(np.array([[0, 1], [1, 1]]), np.zeros([2, 2, WIDTH]))
    moved = np.linalg.norm(model.get_weights()[0] - before, axis=1)
    once = np.maximum(RATIO * np.linalg.norm(before, axis=1), BOUND)
    np.testing.assert_allclose(moved, once * [1, 3, 0, 0, 0, 0], rtol=1e-4)


@pytest.mark.parametrize("form", [lambda g: g, tf.convert_to_tensor], ids=["rows", "dense"])
def test_a_number_is_the_largest_norm_of_a_row(form):
    table, other = tf.Variable(weights(), name="table"), tf.Variable(weights(), name="other")
    optimizer = tg.SGD(1.0, clip_rows={"table": 0.25})
    optimizer.apply([form(gradient(0)), form(gradient(0))], [table, other])
    whole = tf.convert_to_tensor(gradient(0)).numpy()
    length = np.linalg.norm(whole, axis=1, keepdims=True)
    assert np.any(length > 0.25)
    right = whole * np.minimum(1, 0.25 / np.where(length, length, 1))
    np.testing.assert_allclose(table, weights() - right, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(other, weights() - whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [None, 4.0])
def test_a_global_norm_is_of_the_clipped_rows(scale):
    table = tf.Variable(weights(), name="table")
    optimizer = tg.SGD(1.0, global_clipnorm=0.1, loss_scale_factor=scale, **COW)
    optimizer.apply([slices((scale or 1) * values(0), IDS[0])], [table])
    right = cow_clipped(weights(), [(values(0), IDS[0])])
    right *= 0.1 / np.linalg.norm(right)
    np.testing.assert_allclose(table, weights() - right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scaling", [4.0, None])
def test_scaled_gradients_are_clipped_as_others(scaling):
    table = tf.Variable(weights(), name="table")
    optimizer = tg.MixedPrecision(tg.SGD(0.5, **COW)) if scaling is None else None
    optimizer = optimizer or tg.SGD(0.5, loss_scale_factor=scaling, **COW)
    scale = float(optimizer.scale_loss(tf.constant(1.0)))
    for number in range(len(IDS)):
        optimizer.apply([slices(scale * values(number), IDS[number])], [table])
    np.testing.assert_allclose(table, expected(ONE_BY_ONE), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_precisions(dtype):
    table = tf.Variable(tf.cast(weights(), dtype), name="table")
    optimizer = tg.SGD(0.5, **COW)
    for number in range(len(IDS)):
        values_now = tf.cast(values(number), dtype)
        optimizer.apply([tf.IndexedSlices(values_now, tf.constant(IDS[number]))], [table])
    tolerance = 1e-6 if dtype == "float64" else 0.03
    right = expected(ONE_BY_ONE)
    np.testing.assert_allclose(tf.cast(table, "float64"), right, atol=tolerance)


def test_nan_stays_where_nobody_judges():
    table = tf.Variable(weights(), name="table")
    optimizer = tg.SGD(0.5, nonfinite="apply", **COW)
    optimizer.apply([slices(np.full([1, WIDTH], np.nan, "float32"), [1])], [table])
    assert np.all(np.isnan(table.numpy()[1]))
    assert not np.any(np.isnan(table.numpy()[[0, 2, 3, 4, 5]]))


def test_vectors_and_scalars_have_rows_of_one_entry():
    variables = [tf.Variable([0.0, 0.0], name="bias"), tf.Variable(0.0, name="scale")]
    tg.SGD(1.0, clip_rows={"": 0.5}).apply([tf.constant([0.25, -3.0]), tf.constant(2.0)], variables)
    np.testing.assert_allclose(variables[0], [-0.25, 0.5])
    assert float(variables[1]) == -0.5


def test_empty_batches_change_nothing():
    table = tf.Variable(weights(), name="table")
    optimizer = tg.SGD(0.5, **COW)
    optimizer.apply([slices(np.zeros([0, WIDTH], "float32"), np.zeros([0], "int64"))], [table])
    np.testing.assert_array_equal(table, weights())


@pytest.mark.slow
def test_in_fit_saved_and_resumed(tmp_path):
    def made():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input([2], dtype="int32"), keras.layers.Embedding(6, 3)])
        limits = {"embeddings": tg.CowClip(0.5)}
        model.compile(tg.Adam(0.1, gradient_accumulation_steps=2, clip_rows=limits), "mse")
        return model

    x, y = np.array([[0, 1], [1, 1], [4, 1]]), np.ones([3, 2, 3])
    model = made()
    model.fit(x, y, batch_size=1, shuffle=False, verbose=0)  # ends within an update
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.clip_rows == model.optimizer.clip_rows
    for each in (model, loaded):
        each.fit(x, y, batch_size=1, shuffle=False, verbose=0)
    np.testing.assert_array_equal(model.get_weights()[0], loaded.get_weights()[0])


def test_limits_in_every_form():
    cow = tg.CowClip(0.5, 0.01)
    for given in (cow, {"name": "cow_clip", "ratio": 0.5, "lower_bound": 0.01}, 2, 0.5):
        optimizer = tg.Adam(clip_rows={"table": given})
        assert optimizer.clip_rows == {"table": given if isinstance(given, int | float) else cow}
        assert tg.deserialize(tg.serialize(optimizer)).clip_rows == optimizer.clip_rows


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (0.5, TypeError, "must be a dict of numbers or CowClip by pattern"),
        ({"table": 0}, ValueError, "above 0"),
        ({"table": "cow"}, TypeError, "must be a number"),
        ({"table": tg.CowClip}, TypeError, "this is the class; give a limit"),
        ({"(": 1.0}, ValueError, "is not a regular expression"),
        ({"table": {"name": "clip"}}, ValueError, "its 'name' must be 'cow_clip'"),
        ({"table": {"name": "cow_clip", "ratio": -1}}, ValueError, "ratio"),
        ({"table": {"name": "cow_clip", "r": 1}}, TypeError, "r"),
    ],
)
def test_nonsense_is_refused(given, error, said):
    with pytest.raises(error, match=said):
        tg.Adam(clip_rows=given)


def test_patterns_that_match_nothing_are_refused():
    with pytest.raises(ValueError, match=r"Adam\(clip_rows=\{'none': \.\.\.\}\)"):
        tg.Adam(clip_rows={"none": 1.0}).build([tf.Variable(weights(), name="table")])
    with pytest.raises(ValueError, match="ratio"):
        tg.CowClip(ratio=0)


@pytest.mark.parametrize("steps", [None, 2])
def test_cow_clip_with_a_penalty_of_all_rows(steps):
    """The penalty moves rows that are in no batch; their limit is that of one occurrence."""
    regularizer = tg.scaling.MasterRegularizer("l2")
    layer = keras.layers.Embedding(6, 3, dtype="float16", embeddings_regularizer=regularizer)
    layer.build((None,))
    start, gradients = layer.embeddings.numpy().astype("float32"), np.zeros((6, 3), "float32")
    gradients[[1, 2]] = [[2.0], [1.0]]
    inner = tg.SGD(1.0, clip_rows={"": tg.CowClip(0.5, 1e-5)}, gradient_accumulation_steps=steps)
    optimizer = tg.MixedPrecision(inner, loss_scale=1)
    for _ in range(steps or 1):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(layer(tf.constant([1, 1, 2]))))
        optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
    g = gradients + 0.02 * start
    norms, of_weights = (np.linalg.norm(x, axis=1, keepdims=True) for x in (g, start))
    times = np.array([[1], [2], [1], [1], [1], [1]]) * (steps or 1)
    expected = start - g * np.minimum(1, 0.5 * of_weights * times / norms)
    np.testing.assert_allclose(layer.embeddings.numpy(), expected, rtol=2e-3, atol=1e-5)


def test_a_row_whose_square_overflows_is_shortened():
    table = tf.Variable(tf.zeros([2, 2]), name="table")
    optimizer = tg.SGD(1.0, clip_rows={"table": 1.0}, clipvalue=1.0)
    optimizer.apply([tf.constant([[3e30, 4e30], [4.0, 0.0]])], [table])
    np.testing.assert_allclose(table.numpy(), [[-0.6, -0.8], [-1.0, 0.0]], rtol=1e-6)
