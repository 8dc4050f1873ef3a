"""Rows that count: each trains as a variable of its own, in every execution."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import samples
from support.replicas import row_steps

ROWS, WIDTH, STEPS = 5, 3, 6
IDS = ([0, 1, 1], [1, 4, 4], [1, 2, 0], [2, 2, 1], [1, 0, 3], [4, 1, 1])
COUNTED = {"count_rows": ["table"]}
TOGETHER = {"nadam", "prodigy", "schedule_free_sgd", "schedule_free_adamw", "schedule_free_radam"}
TOGETHER |= {"novo_grad", "sgdsai", "adafactor"}
NAMES = [n for n in samples.listed(matrix=False, wrapper=False) if n not in TOGETHER]
OF_ALL_ROWS = ("lamb", "lars", "mars")  # whose norms are over all touched rows
ALONE = [name for name in NAMES if name not in OF_ALL_ROWS]
QUICK = ("adam", "row_wise_adam", "rmsprop", "adopt", "adamax", "ftrl")


def weights():
    return np.random.default_rng(3).normal(size=[ROWS, WIDTH]).astype("float32")


def values(step, dtype="float32"):
    return np.random.default_rng([5, step]).normal(size=[len(IDS[step]), WIDTH]).astype(dtype)


def gradient(step, dtype="float32"):
    ids = tf.constant(IDS[step])
    return tf.IndexedSlices(tf.constant(values(step, dtype)), ids, tf.constant([ROWS, WIDTH]))


def alone(make, dtype="float32"):
    """Each row as a variable of its own, with an optimizer of its own."""
    rows = [tf.Variable(row[np.newaxis].astype(dtype)) for row in weights()]
    optimizers = [make() for _ in rows]
    for step in range(STEPS):
        whole = tf.convert_to_tensor(gradient(step, dtype))
        for row in set(IDS[step]):
            optimizers[row].apply([whole[row : row + 1]], [rows[row]])
    return np.concatenate([row.numpy() for row in rows])


def counted(optimizer, steps=range(STEPS), dtype="float32", wrap=lambda f: f, table=None):
    """A table whose rows count, and the optimizer."""
    table = tf.Variable(weights().astype(dtype), name="table") if table is None else table
    optimizer.build([table])
    step = wrap(lambda g: optimizer.apply([g], [table]))
    for number in steps:
        step(gradient(number, dtype))
    return table


def counts_of(optimizer):
    (found,) = [v for v in optimizer.variables if v.path.endswith("row_updates")]
    return found.numpy().tolist()


COUNTS = [sum(row in ids for ids in IDS) for row in range(ROWS)]
EXECUTIONS = {
    "eager": lambda f: f,
    "function": tf.function,
    "xla": lambda f: tf.function(f, jit_compile=True),
}


@pytest.mark.parametrize("name", samples.with_slow(ALONE, QUICK))
def test_each_row_trains_as_a_variable_of_its_own(name):
    optimizer = tg.get({"name": name, **COUNTED})
    table = counted(optimizer)
    np.testing.assert_allclose(table, alone(lambda: tg.get(name)), rtol=1e-5, atol=1e-6)
    assert counts_of(optimizer) == COUNTS
    assert np.sum(np.any(table.numpy() != weights(), 1)) >= 3


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("name", ["adam", "row_wise_adam"])
@pytest.mark.parametrize("dtype", samples.with_slow(["float32", "float64"], ["float32"]))
def test_in_every_execution(execution, name, dtype):
    optimizer = tg.get({"name": name, "weight_decay": 0.1, "learning_rate": 0.1, **COUNTED})
    table = counted(optimizer, dtype=dtype, wrap=EXECUTIONS[execution])
    expected = alone(
        lambda: tg.get({"name": name, "learning_rate": 0.1, "weight_decay": 0.1}), dtype
    )
    np.testing.assert_allclose(table, expected, rtol=1e-5, atol=1e-6)
    assert counts_of(optimizer) == COUNTS


def test_the_first_step_of_a_rare_row_is_the_learning_rate():
    """After thousands of updates of others; without counts it is three times as long."""
    steps = {}
    for count_rows in (["table"], None):
        table = tf.Variable(np.zeros([2, 1], "float32"), name="table")
        optimizer = tg.Adam(0.01, count_rows=count_rows)
        optimizer.iterations.assign(10_000)  # as after so many updates of other rows
        optimizer.apply([tf.IndexedSlices([[1.0]], [1])], [table])
        steps[bool(count_rows)] = -float(table[1, 0])
    assert steps[True] == pytest.approx(0.01, rel=1e-4)
    assert steps[False] == pytest.approx(0.01 * 0.1 / np.sqrt(0.001), rel=1e-3)


def test_a_dense_gradient_counts_every_row():
    table, plain = (tf.Variable(weights(), name="table") for _ in range(2))
    optimizer, other = tg.Adam(0.1, **COUNTED), tg.Adam(0.1)
    for step in range(3):
        dense = tf.convert_to_tensor(gradient(step))
        optimizer.apply([dense], [table])
        other.apply([dense], [plain])
    np.testing.assert_allclose(table, plain, rtol=1e-6)
    assert counts_of(optimizer) == [3] * ROWS


def test_steps_that_xla_compiles_on_their_own():
    tables = [tf.Variable(weights(), name="table") for _ in range(2)]
    optimizers = [tg.Adam(0.1, jit_compile=compiles, **COUNTED) for compiles in (True, False)]
    for optimizer, table in zip(optimizers, tables, strict=True):
        for step in range(3):
            optimizer.apply([tf.convert_to_tensor(gradient(step))], [table])
    np.testing.assert_allclose(*tables, rtol=1e-5, atol=1e-6)
    assert counts_of(optimizers[0]) == [3] * ROWS


def test_vectors_and_scalars_have_rows_of_one_entry():
    """A pattern may match every variable of a model."""
    made = [[tf.Variable([1.0, 2.0], name="bias"), tf.Variable(3.0, name="scale")] for _ in "12"]
    for optimizer, variables in zip(
        (tg.Adam(0.1, count_rows=[""]), tg.Adam(0.1)), made, strict=True
    ):
        for _ in range(3):
            optimizer.apply([tf.constant([0.5, -1.0]), tf.constant(2.0)], variables)
    for counted_one, plain in zip(*made, strict=True):
        np.testing.assert_allclose(counted_one, plain, rtol=1e-6)


@pytest.mark.slow
def test_replicas_count_as_one():
    optimizer, table, step = row_steps(lambda: tg.Adam(0.1, **COUNTED), weights())
    for number in range(STEPS):  # the last row of each on the second replica
        both = [values(number)[:2], np.pad(values(number)[2:], [[0, 1], [0, 0]])]
        ids = [IDS[number][:2], [IDS[number][2]] * 2]
        step(both, ids)
    expected = alone(lambda: tg.Adam(0.1))
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert counts_of(optimizer) == COUNTS


def test_accumulated_gradients_count_once():
    optimizer = tg.Adam(0.1, gradient_accumulation_steps=3, **COUNTED)
    counted(optimizer)
    halves = [{*IDS[0], *IDS[1], *IDS[2]}, {*IDS[3], *IDS[4], *IDS[5]}]
    assert counts_of(optimizer) == [sum(row in half for half in halves) for row in range(ROWS)]


def test_skipped_updates_do_not_count():
    optimizer = tg.Adam(0.1, **COUNTED)
    table = counted(optimizer)
    optimizer.apply([tf.IndexedSlices([[np.nan] * WIDTH], [1])], [table])
    assert counts_of(optimizer) == COUNTS


def test_a_multiplier_follows_the_count_of_the_row():
    """A schedule takes the number of the row's updates so far, as learning rates take all."""
    schedule = keras.optimizers.schedules.InverseTimeDecay(1.0, 1, 1.0)  # 1, 1/2, 1/3 ...
    table = tf.Variable(np.zeros([2, 1], "float32"), name="table")
    optimizer = tg.SGD(1.0, count_rows={"table": schedule})
    for rows in ([0], [0], [0, 1], [1]):
        optimizer.apply([tf.IndexedSlices(tf.ones([len(rows), 1]), rows)], [table])
    expected = [[-(1 + 1 / 2 + 1 / 3)], [-(1 + 1 / 2)]]
    np.testing.assert_allclose(table, expected, rtol=1e-6)


def test_a_number_multiplies_weight_decay_too():
    table = tf.Variable(np.ones([2, 1], "float32"), name="table")
    optimizer = tg.SGD(1.0, weight_decay=0.5, count_rows={"table": 0.5})
    optimizer.apply([tf.IndexedSlices([[1.0]], [1])], [table])
    np.testing.assert_allclose(table, [[1.0], [1 - 0.5 * 0.5 - 0.5]])


@pytest.mark.parametrize(
    "make",
    [
        lambda **common: tg.MultiOptimizer({"": tg.Adam(0.1)}, **common),
        lambda **common: tg.MixedPrecision(tg.MultiOptimizer({"": tg.Adam(0.1)}), **common),
    ],
    ids=["multi_optimizer", "two_wrappers"],
)
def test_around_other_optimizers(make):
    optimizer = make(**COUNTED)
    table = counted(optimizer)
    assert counts_of(optimizer) == COUNTS
    np.testing.assert_allclose(table, alone(make), rtol=1e-5, atol=1e-6)


def test_lamb_corrects_by_row():
    """Its norm is over the touched rows; of a single one it is the row's."""
    steps = {}
    for name, given in {"counted": COUNTED, "plain": {}}.items():
        table = tf.Variable(weights(), name="table")
        optimizer = tg.LAMB(0.1, **given)
        for row in (0, 0, 0, 1):
            optimizer.apply([tf.IndexedSlices(tf.ones([1, WIDTH]), [row])], [table])
        steps[name] = table.numpy()[1] - weights()[1]
    other = tf.Variable(weights()[1:2])
    tg.LAMB(0.1).apply([tf.ones([1, WIDTH])], [other])
    np.testing.assert_allclose(steps["counted"], other[0] - weights()[1], rtol=1e-5)


@pytest.mark.slow
def test_counts_are_saved(tmp_path):
    def made():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input([2], dtype="int32"), keras.layers.Embedding(6, 3)])
        model.compile(tg.Adam(0.1, count_rows=["embeddings"]), "mse")
        return model

    x, y = np.array([[0, 1], [1, 1], [4, 1]]), np.ones([3, 2, 3])
    model = made()
    model.fit(x, y, batch_size=1, epochs=2, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert counts_of(loaded.optimizer) == [2, 6, 0, 0, 2, 0]
    for each in (model, loaded):
        each.fit(x[:2], y[:2], batch_size=1, shuffle=False, verbose=0)
    np.testing.assert_array_equal(model.get_weights()[0], loaded.get_weights()[0])


def test_rows_that_begin_anew_count_anew():
    optimizer = tg.Adam(0.1, **COUNTED)
    table = counted(optimizer)
    optimizer.reset_rows(table, [1])
    assert counts_of(optimizer) == [COUNTS[0], 0, *COUNTS[2:]]


@pytest.mark.parametrize("dtype", ["bfloat16", "bfloat16+8"])
def test_rounded_slots(dtype):
    """With noise that is the same each time."""
    optimizer = tg.Adam(0.1, state_dtype=dtype, **COUNTED)
    table = counted(optimizer)
    np.testing.assert_allclose(table, alone(lambda: tg.Adam(0.1)), atol=0.02)
    again = counted(tg.Adam(0.1, state_dtype=dtype, **COUNTED))
    np.testing.assert_array_equal(table, again)


def test_the_config_has_the_multipliers():
    schedule = keras.optimizers.schedules.InverseTimeDecay(1.0, 1, 1.0)
    for given in (["a", "b"], {"a": 0.5, "b": schedule}, None):
        optimizer = tg.Adam(count_rows=given)
        again = tg.deserialize(tg.serialize(optimizer))
        assert repr(again.count_rows) == repr(optimizer.count_rows) or given is not None
        assert list(again.count_rows or ()) == list(given or ())


@pytest.mark.parametrize("name", sorted(TOGETHER))
def test_state_of_several_rows_is_refused(name):
    optimizer = tg.get({"name": name, **COUNTED})
    with pytest.raises(ValueError, match=r"\(count_rows=\.\.\.\): the rows of 'table' cannot be"):
        optimizer.build([tf.Variable(weights(), name="table")])


def test_what_makes_no_sense_is_refused():
    table = tf.Variable(weights(), name="table")
    with pytest.raises(TypeError, match="must be a list of patterns, or a dict of multipliers"):
        tg.Adam(count_rows="table")
    with pytest.raises(ValueError, match=r"Adam\(count_rows=\{'none': \.\.\.\}\)"):
        tg.Adam(count_rows=["none"]).build([table])
    warm = keras.optimizers.schedules.CosineDecay(0.0, 10, warmup_target=1.0, warmup_steps=2)
    with pytest.raises(ValueError, match="CosineDecay does not take the counts of several rows"):
        tg.Adam(count_rows={"table": warm}).build([table])
    with pytest.raises(ValueError, match=r"one of tf_graft's own"):
        tg.wrap(keras.optimizers.Adam(), **COUNTED)
    with pytest.raises(ValueError, match="AGN counts the updates of whole variables"):
        tg.AGN(tg.Adam(**COUNTED))
    muon = tg.Muon(**COUNTED)
    with pytest.raises(ValueError, match="Muon has state or steps of several rows"):
        muon.build([tf.Variable(weights(), name="table")])


FBGEMM = {"reference": 6.0, "power": 0.5, "half_life": 2.0, "threshold": 1.2}


def by_frequency(steps=STEPS, reference=6.0, power=0.5, half_life=2.0, threshold=1.2):
    """FBGEMM's row-wise Adagrad with counts, for each row by hand."""
    w, a = weights().astype("float64"), np.zeros(ROWS)
    count, last = np.zeros(ROWS), np.zeros(ROWS)
    for step in range(steps):
        g = tf.convert_to_tensor(gradient(step, "float64")).numpy()
        for row in set(IDS[step]):
            faded = 1.0 if half_life is None else 0.5 ** ((step + 1 - last[row]) / half_life)
            count[row], last[row] = 1 + faded * count[row], step + 1
            ratio = (reference / (count[row] + 1)) ** power
            multiplier = np.clip(ratio, 1, 10) if count[row] > threshold else 1.0
            a[row] += np.mean(g[row] ** 2)
            w[row] -= 0.1 * multiplier * g[row] / np.sqrt(a[row])
    return w


@pytest.mark.parametrize("name", samples.with_slow(NAMES, QUICK))
def test_every_optimizer_takes_rates_by_row(name):
    """Whether it is a number or one for each row, a multiplier gives the same steps."""
    tables = {}
    for label, factor in {"none": 1.0, "half": 0.5}.items():
        for each in (factor, tg.RowFrequency(1.0, lowest=factor, highest=factor)):
            optimizer = tg.get({"name": name, "count_rows": {"table": each}})
            tables.setdefault(label, []).append(counted(optimizer, steps=range(3)).numpy())
    for by_number, by_row in tables.values():
        np.testing.assert_allclose(by_row, by_number, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("half_life", [2.0, None])
def test_rates_by_frequency(execution, half_life):
    given = FBGEMM | {"half_life": half_life}
    optimizer = tg.RowWiseAdagrad(
        0.1, epsilon=1e-12, count_rows={"table": {"name": "row_frequency", **given}}
    )
    table = counted(optimizer, wrap=EXECUTIONS[execution])
    np.testing.assert_allclose(table, by_frequency(**given), rtol=1e-5)
    again = tg.deserialize(tg.serialize(optimizer))
    assert again.count_rows == {"table": tg.RowFrequency(**given)}


def test_frequencies_on_replicas_begin_anew():
    optimizer, table, step = row_steps(
        lambda: tg.RowWiseAdagrad(
            0.1, epsilon=1e-12, count_rows={"table": tg.RowFrequency(**FBGEMM)}
        ),
        weights(),
    )
    for number in range(STEPS):
        both = [values(number)[:2], np.pad(values(number)[2:], [[0, 1], [0, 0]])]
        step(both, [IDS[number][:2], [IDS[number][2]] * 2])
    np.testing.assert_allclose(table.numpy(), by_frequency(**FBGEMM), rtol=1e-5)
    before = {v.path.rpartition("/")[2]: v.numpy() for v in optimizer.variables}
    optimizer.reset_rows(table, [1])
    after = {v.path.rpartition("/")[2]: v.numpy() for v in optimizer.variables}
    for role in ("row_frequency", "row_last_update", "row_updates"):
        assert before[role][1] > 0 == after[role][1]
        np.testing.assert_array_equal(np.delete(before[role], 1), np.delete(after[role], 1))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"reference": 0.0}, r"RowFrequency\(reference=0.0\): reference must be .* above 0"),
        ({"reference": 1.0, "half_life": -1}, "half_life must be"),
        ({"reference": 1.0, "power": float("nan")}, "power must be"),
        ({"reference": 1.0, "lowest": 2.0, "highest": 1.0}, "highest must be"),
    ],
)
def test_frequencies_that_make_no_sense_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        tg.RowFrequency(**given)
    with pytest.raises(ValueError, match=message):
        tg.Adam(count_rows={"a": {"name": "row_frequency", **given}})
    with pytest.raises(TypeError, match="this is the class"):
        tg.Adam(count_rows={"a": tg.RowFrequency})
