"""Rows that get the state of the start: of every optimizer, in every place, with every option."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import samples
from support.replicas import mirrored, row_steps

ROWS, WIDTH = 6, 4
RESET = [1, 4]
OTHERS = [0, 2, 3, 5]
BY_ROWS = samples.listed(matrix=False, wrapper=False)


def gradient(seed, ids=(1, 4, 1, 0, 5)):
    values = np.random.default_rng(seed).normal(size=[len(ids), WIDTH])
    return tf.IndexedSlices(tf.constant(values, tf.float32), list(ids), [ROWS, WIDTH])


def table_of(seed=7, dtype="float32"):
    start = np.random.default_rng(seed).normal(size=[ROWS, WIDTH])
    return tf.Variable(tf.cast(start, dtype), name="table")


def trained(optimizer, table, seeds):
    for seed in seeds:
        optimizer.apply([gradient(seed)], [table])
    return optimizer


def state(optimizer):
    return {variable.path.partition("/")[2]: variable.numpy() for variable in optimizer.variables}


def assert_reset(optimizer, table, before, fresh):
    """Rows of each slot are those of an optimizer that was just built; all else stays."""
    changed = 0
    for name, after in state(optimizer).items():
        if after.shape[:1] == (ROWS,):
            np.testing.assert_array_equal(after[OTHERS], before[name][OTHERS], name)
            if name.endswith("/average"):
                np.testing.assert_array_equal(after[RESET], table.numpy()[RESET])
            elif not name.endswith("/average_step"):
                np.testing.assert_array_equal(after[RESET], fresh[name][RESET], name)
            changed += np.any(after[RESET] != before[name][RESET])
        else:
            np.testing.assert_array_equal(after, before[name], name)
    assert changed


@pytest.mark.parametrize(
    "name", samples.with_slow(BY_ROWS, ["adam", "prodigy", "adafactor", "row_wise_adagrad"])
)
def test_rows_begin_anew(name):
    table = table_of()
    optimizer = trained(tg.get(name), table, range(3))
    before, fresh = state(optimizer), tg.get(name)
    optimizer.reset_rows(table, RESET, tf.ones([2, WIDTH]))
    fresh.build([tf.Variable(table, name="table")])
    if any(value.shape[:1] == (ROWS,) for value in before.values()):
        assert_reset(optimizer, table, before, state(fresh))
    trained(optimizer, table, [4])
    assert np.isfinite(table).all()


@pytest.mark.parametrize(
    "options",
    [
        {"use_ema": True},
        {"gradient_accumulation_steps": 2},
        {"state_dtype": "bfloat16"},
        {"state_dtype": "bfloat16+8", "use_ema": True},
    ],
    ids=lambda options: "_".join(options),
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_rows_begin_anew_with_every_option(options, dtype):
    if dtype == "float64" and "state_dtype" in options:
        options = {}  # which rounds slots of float32 alone
    table = table_of(dtype=dtype)
    optimizer = trained(tg.Adam(**options), table, range(3))
    before, fresh = state(optimizer), tg.Adam(**options)
    optimizer.reset_rows(table, RESET, tf.ones([2, WIDTH], dtype))
    fresh.build([tf.Variable(table, name="table")])
    fresh = state(fresh) | {"table/master": np.ones([ROWS, WIDTH])}  # it begins at 0, unlike them
    assert_reset(optimizer, table, before, fresh)


def test_rows_train_on_as_in_another_optimizer():
    """Those of SGD's momentum, which knows no number of updates."""
    table, other = table_of(), table_of(8)
    optimizer = trained(tg.SGD(0.1, momentum=0.9), table, range(3))
    optimizer.reset_rows(table, RESET, tf.gather(other, RESET))
    trained(optimizer, table, range(5, 8))
    trained(tg.SGD(0.1, momentum=0.9), other, range(5, 8))
    np.testing.assert_array_equal(table.numpy()[RESET], other.numpy()[RESET])
    assert not np.array_equal(table.numpy()[OTHERS], other.numpy()[OTHERS])


def test_an_average_begins_with_the_present_weights():
    table = table_of()
    optimizer = trained(tg.SGD(0.1, use_ema=True, ema_momentum=0.5), table, range(3))
    optimizer.reset_rows(table, RESET, tf.fill([2, WIDTH], 3.0))
    trained(optimizer, table, [5])
    row = table.numpy()[RESET]
    optimizer.finalize_variable_values([table])
    np.testing.assert_allclose(table.numpy()[RESET], 0.5 * 3.0 + 0.5 * row, rtol=1e-6)


def test_what_was_accumulated_for_the_rows_is_dropped():
    table = table_of()
    start = table.numpy()
    optimizer = trained(tg.SGD(0.1, gradient_accumulation_steps=2), table, [0])
    optimizer.reset_rows(table, RESET)
    optimizer.apply([gradient(1, [0])], [table])
    np.testing.assert_array_equal(table.numpy()[RESET], start[RESET])
    assert np.all(table.numpy()[[0, 5]] != start[[0, 5]])


@pytest.mark.parametrize("evaluating", [False, True])
def test_two_weights_of_a_row_are_one(evaluating):
    table = table_of()
    optimizer = trained(tg.ScheduleFreeSGD(0.1), table, range(3))
    if evaluating:
        optimizer.use_evaluation_weights()
    optimizer.reset_rows(table, RESET, tf.ones([2, WIDTH]))
    for use in (optimizer.use_training_weights, optimizer.use_evaluation_weights):
        use()
        np.testing.assert_array_equal(table.numpy()[RESET], 1)


def test_the_center_of_agn_has_the_rows_too():
    table = table_of()
    optimizer = tg.AGN(tg.Adam(0.1), None, 2, tg.SGD(1.0, momentum=0.9))
    trained(optimizer, table, range(3))
    before, center = state(optimizer), optimizer.centers()[0]
    optimizer.reset_rows(table, RESET, tf.ones([2, WIDTH]))
    np.testing.assert_array_equal(center.numpy()[RESET], 1)
    np.testing.assert_array_equal(center.numpy()[OTHERS], before["table/center"][OTHERS])
    after = state(optimizer)
    name = "table/center_optimizer/momentum"
    assert np.any(before[name][RESET])
    assert not np.any(after[name][RESET])
    np.testing.assert_array_equal(after[name][OTHERS], before[name][OTHERS])


@pytest.mark.parametrize(
    "make",
    [
        lambda: tg.MultiOptimizer({"table": tg.Adam()}),
        lambda: tg.AdaGraft(tg.Adam(), tg.SGD(momentum=0.9)),
        lambda: tg.MixedPrecision(tg.Cautious(tg.Adam())),
        lambda: tg.wrap(keras.optimizers.Adam()),
    ],
    ids=["multi_optimizer", "adagraft", "two_wrappers", "wrapped"],
)
def test_optimizers_inside_of_others(make):
    table = table_of()
    optimizer = trained(make(), table, range(3))
    before, fresh = state(optimizer), make()
    fresh.build([tf.Variable(table, name="table")])
    optimizer.reset_rows(table, RESET)
    assert_reset(optimizer, table, before, state(fresh))


def test_copies_of_replicas():
    optimizer, table, step = row_steps(lambda: tg.Adam(use_ema=True), table_of())
    both = [gradient(seed) for seed in range(2)]
    step([g.values for g in both], [g.indices for g in both])
    optimizer.reset_rows(table, RESET, tf.ones([2, WIDTH]))
    for copy in mirrored().experimental_local_results(table):
        np.testing.assert_array_equal(copy.numpy()[RESET], 1)
    slots = [v for v in optimizer.variables if v.path.endswith(("momentum", "velocity"))]
    for slot in slots:
        first, second = (x.numpy() for x in mirrored().experimental_local_results(slot.value))
        np.testing.assert_array_equal(first, second)
        assert not np.any(first[RESET])
        assert np.any(first[OTHERS])


def test_a_table_in_fit_between_epochs():
    """As a callback does that gives an evicted row to another id."""
    model = keras.Sequential([keras.Input([2], dtype="int32"), keras.layers.Embedding(ROWS, 4)])
    model.compile(tg.Adam(0.1), "mse")
    layer = model.layers[0]

    class Evict(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.optimizer.reset_rows(layer.embeddings, RESET, tf.zeros([2, 4]))

    x, y = np.array([[1, 4], [0, 1]]), np.ones([2, 2, 4])
    model.fit(x, y, epochs=3, verbose=0, callbacks=[Evict()])
    momentum = model.optimizer.variables[-2].numpy()
    assert not np.any(momentum[RESET])
    assert np.any(momentum[0])


@pytest.mark.parametrize("rows", [3, [], [[2]], np.array([0, 0]), tf.constant([1])])
def test_rows_in_every_form(rows):
    table = table_of()
    optimizer = trained(tg.Adam(), table, range(2))
    optimizer.reset_rows(table, rows)
    momentum = optimizer.variables[-2].numpy()
    assert not np.any(momentum[np.reshape(rows, [-1]).astype(int)])


def test_each_row_gets_its_own_weights():
    """Also of a bfloat16 table, whose master follows; of a repeated row the first ones count."""
    for dtype in ("float32", "bfloat16", "float64"):
        table = table_of(dtype=dtype)
        before = table.numpy()
        optimizer = trained(tg.Adam(0.0), table, range(2))
        weights = np.arange(12.0).reshape([3, WIDTH])
        optimizer.reset_rows(table, [4, 1, 4], weights)
        np.testing.assert_array_equal(table.numpy()[[4, 1]], weights[:2])
        np.testing.assert_array_equal(table.numpy()[OTHERS], before[OTHERS])
        for variable in optimizer.variables:
            if variable.path.endswith("master"):
                np.testing.assert_array_equal(variable.numpy()[[4, 1]], weights[:2])


def test_other_weights_are_refused():
    table = table_of()
    optimizer = trained(tg.Adam(), table, range(2))
    before = state(optimizer)
    for weights in ("a", [[1], [2, 3]], [[None] * WIDTH], [[True] * WIDTH], [[1j] * WIDTH]):
        with pytest.raises(TypeError, match=r"Adam\.reset_rows: weights must be numbers, not "):
            optimizer.reset_rows(table, [1], weights)
    for weights in (1.0, np.ones([WIDTH]), np.ones([1, WIDTH + 1])):
        with pytest.raises(ValueError, match=r"have shape .*; they must have \(1, 4\)"):
            optimizer.reset_rows(table, [1], weights)
    for bad in (np.nan, -np.inf, 1e39):
        with pytest.raises(ValueError, match=r"weights must be finite in float32, .*, not "):
            optimizer.reset_rows(table, [1, 2], [[0.0] * WIDTH, [1.0, bad, 2.0, 3.0]])
    np.testing.assert_equal(state(optimizer), before)
    np.testing.assert_array_equal(np.isfinite(table), True)


@pytest.mark.parametrize("rows", [0.5, "a", None, [True], [[1], [2, 3]], [float("nan")]])
def test_other_rows_are_refused(rows):
    table = table_of()
    optimizer = trained(tg.Adam(), table, range(2))
    before = state(optimizer)
    with pytest.raises(TypeError, match=r"Adam\.reset_rows: rows must be integers, not "):
        optimizer.reset_rows(table, rows)
    np.testing.assert_equal(state(optimizer), before)


def test_rows_that_are_not_there_are_refused():
    table, scalar = table_of(), tf.Variable(1.0, name="scalar")
    optimizer = tg.Adam()
    with pytest.raises(ValueError, match=r"Adam\.reset_rows: the optimizer is not built yet"):
        optimizer.reset_rows(table, 0)
    optimizer.build([table, scalar])
    for rows, said in ({-1: "no row -1 in", 6: "no row 6 in"}).items():
        with pytest.raises(ValueError, match=said):
            optimizer.reset_rows(table, [0, rows])
    with pytest.raises(ValueError, match=r"no row 0 in \[0, 0\)"):
        optimizer.reset_rows(scalar, 0)
    with pytest.raises(ValueError, match="not one of the 2 variables"):
        optimizer.reset_rows(tf.Variable([1.0], name="other"), 0)
    with pytest.raises(ValueError, match=r"not in a tf\.function"):
        tf.function(lambda: optimizer.reset_rows(table, 0))()
