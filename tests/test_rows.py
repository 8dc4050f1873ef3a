"""G20 to G23: row-sparse gradients act like the dense ones they stand for."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_graft
from support import oracles
from support.samples import (
    BY_NAME,
    OPTIONS,
    RATE,
    SAMPLES,
    assert_same_state,
    each,
    each_in_turn,
    each_option,
    gradients,
    having,
    of_each_class,
    slices,
    state_of,
    variables,
    weights,
)

ROWS, WIDTH = 7, 3
SHAPES = {"table": (ROWS, WIDTH), "bias": (WIDTH,)}
IDLE = [sample for sample in having("idle") if sample.rowwise]
LAZY = [sample for sample in SAMPLES if not sample.whole]

# ids of each step: repeated rows, an untouched row (6), a row that is idle until late (5), no ids
SOME_ROWS = [[1, 1, 2], [0, 3, 0, 0], [], [4, 1], [5, 5, 3], [0]]
ALL_ROWS = [[0, 1, 2, 3, 4, 5, 6, *extra] for extra in ([1, 1], [], [6, 0, 6], [2])]


def sparse_steps(ids, shape=SHAPES["table"], dtype="float32", seed=3):
    """(ids, values) for each step."""
    random = np.random.default_rng(seed)
    return [(i, random.normal(size=(len(i), *shape[1:])).astype(dtype)) for i in ids]


def dense_of(ids, values, shape):
    """The dense gradient, repeated rows summed."""
    total = np.zeros(shape, values.dtype)
    np.add.at(total, np.asarray(ids, int), values)
    return total


def compare(ours, reference, steps, shapes=SHAPES, dtype="float32", form=lambda step: "rows"):
    """The run `ours` on slices equals the run `reference` on the dense gradients, in all variables.

    `form` says for each step whether `ours` gets "rows" or the "dense" gradient, too. Repeated rows
    are summed in another order and kernels round otherwise than `step`: a rounding of the weight
    and two of the state for each step, the largest state by far being below 10 rates.
    """
    start = weights(shapes, dtype)
    models = [list(variables(start).values()) for _ in range(2)]
    shape = next(iter(shapes.values()))
    rest = gradients(len(steps), dict(list(shapes.items())[1:]), dtype)
    eps = np.finfo(dtype).eps
    for number, ((ids, values), others) in enumerate(zip(steps, rest, strict=True), 1):
        dense = dense_of(ids, values, shape)
        given = slices(ids, values) if form(number - 1) == "rows" else dense
        ours.apply([given, *others.values()], models[0])
        reference.apply([dense, *others.values()], models[1])
        allowed = number * eps * 4
        mine, theirs = state_of(ours, *models[0]), state_of(reference, *models[1])
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            if name.endswith(("average", "average_step", "accumulated_rows")):
                continue  # brought up to date when touched: `finalize` below compares them
            scale = np.maximum(1, np.abs(value)) if value.size else value
            np.testing.assert_array_less(
                np.abs(mine[name].astype("float64") - value), allowed * scale + 1e-30, err_msg=name
            )
    for optimizer, model in zip((ours, reference), models, strict=True):
        optimizer.finalize_variable_values(model)
    for mine, theirs in zip(*models, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=0, atol=8 * allowed)
    return models[0]


# G20, G23


@each(IDLE)
# lazily, only touched rows decay
@each_option("weight_decay", "weight_decay_excluded", "multipliers", "together")
def test_idle_optimizers_equal_dense(sample, option):
    options = OPTIONS[option]
    compare(sample.make(**options), sample.make(**options), sparse_steps(SOME_ROWS))


@each(IDLE)
@pytest.mark.parametrize("option", ["plain", "ema_overwrite", "accumulation"])
def test_idle_optimizers_do_not_densify(sample, option):
    """`sparse="exact"` is exact row by row already."""
    options = OPTIONS[option]
    states = []
    for sparse in ("lazy", "exact"):
        optimizer = sample.make(sparse=sparse, **options)
        model = list(variables(weights(SHAPES)).values())
        for ids, values in sparse_steps(SOME_ROWS):
            optimizer.apply([slices(ids, values), np.ones(WIDTH, "float32")], model)
        states.append(state_of(optimizer, *model))
    assert_same_state(*states)


@each_in_turn("option", ["plain", "together"], quick=("adagrad", "sgd_nesterov", "adam"))
def test_all_rows_touched_equal_dense(sample, option):
    options = OPTIONS[option]
    compare(sample.make(**options), sample.make(**options), sparse_steps(ALL_ROWS))


@each_option("plain", "together")
def test_all_rows_touched_equal_dense_with(option):
    sample, options = BY_NAME["adam"], OPTIONS[option]
    compare(sample.make(**options), sample.make(**options), sparse_steps(ALL_ROWS))


@each_in_turn("option", ["plain", "weight_decay", "together"], quick=("adagrad", "sgd_nesterov"))
def test_exact_equals_dense(sample, option):
    options = OPTIONS[option]
    compare(sample.make(sparse="exact", **options), sample.make(**options), sparse_steps(SOME_ROWS))


@pytest.mark.parametrize("name", ["sgd", "adam"])
@each_option("plain", "weight_decay", "together")
def test_exact_equals_dense_with(name, option):
    sample, options = BY_NAME[name], OPTIONS[option]
    compare(sample.make(sparse="exact", **options), sample.make(**options), sparse_steps(SOME_ROWS))


# grafts: `test_graft.py`; the oracle of `multi` is for variables that have paths
@each([s for s in having("oracle") if s.rowwise and s.oracle is not oracles.multi])
def test_lazy_is_the_equations_row_by_row(sample):
    """Each row is a variable of its own that takes part in the steps that touch it."""
    optimizer = sample.make(weight_decay=0.2)
    start = weights(SHAPES)["table"]
    table = variables({"table": start})["table"]
    hyperparameters = {k: v for k, v in sample.own().items() if k != "weight_decay"}
    exact, slots = start.astype("float64"), [{} for _ in range(ROWS)]
    for t, (ids, values) in enumerate(sparse_steps(SOME_ROWS), 1):
        optimizer.apply([slices(ids, values)], [table])
        dense = dense_of(ids, values.astype("float64"), exact.shape)
        for row in set(ids):
            only, decay = slice(row, row + 1), 0.2
            if sample.oracle in oracles.DECAYS_WITHIN:
                hyperparameters["decay"], decay = 0.2, 0.0
            w = exact[only].copy()
            step = sample.oracle(dense[only], w, slots[row], RATE, t, **hyperparameters)
            exact[only] = w + step - RATE * decay * w
        np.testing.assert_allclose(table.numpy(), exact, rtol=0, atol=t * (3e-7 + sample.rtol / 5))
    np.testing.assert_array_equal(table.numpy()[6], start[6])


@each(having("whole"))
@pytest.mark.parametrize("sparse", ["lazy", "exact"])
def test_where_rows_do_not_serve_the_gradient_acts_dense(sample, sparse):
    compare(sample.make(sparse=sparse), sample.make(), sparse_steps(SOME_ROWS))


WHOLE = ("_norm", "_noise", "column")  # how roles end that all rows share


@each(LAZY)
def test_untouched_rows_keep_their_state(sample):
    options = {"use_ema": True, "gradient_accumulation_steps": 2, "weight_decay": 0.2}
    optimizer = sample.make(**options)
    table = variables(weights({"table": (ROWS, WIDTH)}))["table"]
    optimizer.build([table])
    before = state_of(optimizer, table)
    for ids, values in sparse_steps([[1, 2], [4, 1], [2], [2, 2]]):
        optimizer.apply([slices(ids, values)], [table])
    after = state_of(optimizer, table)
    of_rows = [name for name, value in after.items() if value.shape[:1] == (ROWS,)]
    scalars = [role for role in sample.roles(2) if role.endswith(WHOLE)]
    assert len(of_rows) >= 5 + len(sample.roles(2)) - len(scalars)
    for name in of_rows:
        np.testing.assert_array_equal(after[name][[0, 3, 5, 6]], before[name][[0, 3, 5, 6]], name)
    assert (after["model 0"][[1, 2, 4]] != before["model 0"][[1, 2, 4]]).all()


@pytest.mark.parametrize("name", ["sgd", "adagrad"])
def test_late_rows_have_the_average_of_a_dense_run(name):
    """Row 5 is touched first at step 12, row 6 never; then overwritten, and finalized."""
    sample = BY_NAME[name]
    ids = [[0, 1, 1], *[[i % 3] for i in range(10)], [5, 5], [3], [5]]
    for frequency in (None, 13):
        options = {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": frequency}
        compare(sample.make(**options), sample.make(**options), sparse_steps(ids))


@pytest.mark.parametrize("option", ["plain", "ema", "ema_overwrite", "accumulation", "clipnorm"])
@pytest.mark.parametrize("name", ["adagrad", "adam"])
def test_dense_and_sparse_gradients_take_turns(name, option):
    sample, options = BY_NAME[name], OPTIONS[option]
    for first in (0, 1):
        compare(
            sample.make(sparse="exact", **options),
            sample.make(**options),
            sparse_steps(SOME_ROWS),
            form=lambda step, first=first: ("rows", "dense")[(step + first) % 2],
        )


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 2, 3), (1, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tables_of_other_ranks(shape, dtype):
    ids = [[i % shape[0] for i in step] for step in SOME_ROWS]
    for option in ("plain", "ema_overwrite", "accumulation"):
        compare(
            tf_graft.Adagrad(RATE, **OPTIONS[option]),
            tf_graft.Adagrad(RATE, **OPTIONS[option]),
            sparse_steps(ids, shape, dtype),
            {"table": shape},
            dtype,
        )


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize("dense_shape", [None, [ROWS, WIDTH], [ROWS + 2, WIDTH]], ids=str)
def test_dtype_of_indices_and_dense_shape_do_not_matter(dtype, dense_shape):
    """The variable's shape counts, not the one that the slices bring."""
    results = []
    for gradient in (
        tf.IndexedSlices(
            tf.ones([3, WIDTH]),
            tf.constant([1, 1, 2], dtype),
            None if dense_shape is None else tf.constant(dense_shape, dtype),
        ),
        dense_of([1, 1, 2], np.ones([3, WIDTH], "float32"), (ROWS, WIDTH)),
    ):
        table = variables(weights(SHAPES))["table"]
        tf_graft.SGD(0.5).apply([gradient], [table])
        results.append(table.numpy())
    np.testing.assert_array_equal(*results)


@pytest.mark.slow
@settings(max_examples=6)
@given(
    ids=st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=5),
    dense=st.sets(st.integers(0, 4)),
    choice=st.sampled_from([("sgd", "lazy"), ("adagrad", "lazy"), ("adam", "exact")]),
    clip=st.sampled_from([{}, {"clipnorm": 0.7}, {"clipvalue": 0.4}, {"global_clipnorm": 0.7}]),
    period=st.sampled_from([None, 2, 3]),
    average=st.sampled_from([{}, OPTIONS["ema"], OPTIONS["ema_overwrite"]]),
)
def test_any_rows_in_any_order_equal_dense(ids, dense, choice, clip, period, average):
    name, sparse = choice
    options = {**clip, **average, "gradient_accumulation_steps": period}
    sample = BY_NAME[name]
    compare(
        sample.make(sparse=sparse, **options),
        sample.make(**options),
        sparse_steps(ids, (5, 2)),
        {"table": (5, 2)},
        form=lambda step: "dense" if step in dense else "rows",
    )


# G21


@each_in_turn("option", ["plain", "clipnorm", "together"], LAZY)
def test_empty_slices_change_nothing_but_the_count(sample, option):
    optimizer = sample.make(**OPTIONS[option])
    table = variables(weights(SHAPES))["table"]
    optimizer.build([table])
    before = state_of(optimizer, table)
    for _ in range(2):
        optimizer.apply([slices([], np.zeros([0, WIDTH], "float32"))], [table])
    after = state_of(optimizer, table)
    period = OPTIONS[option].get("gradient_accumulation_steps", 1)
    assert after.pop("iteration") == before.pop("iteration") + 2 // period
    if period > 1:
        assert after.pop("micro_steps") == before.pop("micro_steps") + 2
    # averages are synchronized when they are read; shared state goes with the count
    for name in [name for name in after if "average" in name or name in sample.shared]:
        after.pop(name), before.pop(name)
    assert_same_state(after, before)


# G22


def assert_refuses_rows(optimizer, ids, function=False):
    """An InvalidArgumentError, and no variable has changed: of the table, the others, the state."""
    model = list(variables(weights(SHAPES)).values())
    optimizer.build(model)

    def apply():
        values = tf.ones([len(ids), WIDTH])
        optimizer.apply([tf.IndexedSlices(values, tf.constant(ids)), tf.ones([WIDTH])], model)

    before = state_of(optimizer, *model)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"table\\?' has a row outside"):
        (tf.function(apply) if function else apply)()
    assert_same_state(state_of(optimizer, *model), before)


@each_in_turn("ids", [[1, ROWS], [-1], [1, 2, 1 << 40]], of_each_class())
def test_rows_that_do_not_exist_are_refused(sample, ids):
    assert_refuses_rows(sample.make(), ids)


@each(of_each_class(), quick=("sgd", "adadelta", "adam"))
def test_rows_that_do_not_exist_are_refused_in_a_function(sample):
    assert_refuses_rows(sample.make(), [1, ROWS, -1], function=True)


def test_rows_that_do_not_exist_are_refused_with_all_options():
    for function in (False, True):
        assert_refuses_rows(tf_graft.Adam(RATE, **OPTIONS["together"]), [1, ROWS, -1], function)


@pytest.mark.parametrize(
    ("nonfinite", "sparse", "function"),
    [
        ("skip", "lazy", False),
        ("skip", "exact", True),
        ("raise", "lazy", True),
        ("raise", "exact", False),
        ("apply", "lazy", True),
        ("apply", "exact", False),
    ],
)
def test_rows_that_do_not_exist_are_refused_under(nonfinite, sparse, function):
    optimizer = tf_graft.Adam(RATE, nonfinite=nonfinite, sparse=sparse)
    assert_refuses_rows(optimizer, [ROWS], function)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_compiled_by_xla_rows_that_do_not_exist_are_dropped(name):
    """There are no assertions in XLA; what is promised is that no other row is touched."""

    def after(ids):
        optimizer, table = BY_NAME[name].make(), variables(weights(SHAPES))["table"]
        optimizer.build([table])

        @tf.function(jit_compile=True)
        def apply(ids):
            values = tf.cast(ids[:, None], tf.float32) * tf.ones([1, WIDTH])
            optimizer.apply([tf.IndexedSlices(values, ids)], [table])

        apply(tf.constant(ids))
        return table.numpy()

    np.testing.assert_allclose(after([1, ROWS, 2, -1]), after([1, 2]), rtol=1e-6)


# The checks notice what they are for.


class _ForgetsRepeats(tf_graft.SGD):
    """Takes the last of repeated rows, as a plain scatter would."""

    def apply(self, grads, trainable_variables=None):
        def last(g):
            if not isinstance(g, tf.IndexedSlices):
                return g
            ids = g.indices.numpy().tolist()
            kept = [i for i, row in enumerate(ids) if row not in ids[i + 1 :]]
            return tf.IndexedSlices(tf.gather(g.values, kept), tf.gather(g.indices, kept))

        super().apply([last(g) for g in grads], trainable_variables)


class _WritesBeforeChecking(tf_graft.SGD):
    def apply(self, grads, trainable_variables=None):
        self.iterations.assign_add(1)
        super().apply(grads, trainable_variables)


def test_notices_forgotten_repeats():
    with pytest.raises(AssertionError):
        compare(_ForgetsRepeats(RATE), tf_graft.SGD(RATE), sparse_steps(SOME_ROWS))


def test_notices_laziness():
    sample = BY_NAME["adam"]
    with pytest.raises(AssertionError):
        compare(sample.make(sparse="lazy"), sample.make(), sparse_steps(SOME_ROWS))


def test_notices_averages_of_another_momentum():
    options = {"use_ema": True, "ema_momentum": 0.9}
    with pytest.raises(AssertionError):
        compare(
            tf_graft.SGD(RATE, **{**options, "ema_momentum": 0.9001}),
            tf_graft.SGD(RATE, **options),
            sparse_steps(SOME_ROWS),
        )


def test_notices_what_is_written_before_the_check():
    with pytest.raises(AssertionError, match="'iteration' differs"):
        assert_refuses_rows(_WritesBeforeChecking(RATE), [ROWS])
