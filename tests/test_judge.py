"""G15, G18, G19: gradients that are not finite, that are missing, and that are zero."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft
from support.samples import (
    BY_NAME,
    OPTIONS,
    RATE,
    assert_same_state,
    each,
    each_in_turn,
    each_option,
    gradients,
    of_each_class,
    slices,
    state_of,
    variables,
    weights,
)

BAD = {"nan": np.nan, "inf": np.inf, "minus inf": -np.inf}
SHAPES = {"kernel": (4, 3), "table": (5, 2), "bias": ()}


def spoiled(value, where, sparse):
    """Finite gradients but for one entry, in one of three variables."""
    grads = dict(gradients(1, SHAPES)[0])
    ids = [1, 1, 3, 0, 2]
    grads[where] = grads[where].copy()
    grads[where][(-1,) * grads[where].ndim] = value
    if sparse:
        grads["table"] = slices(ids, grads["table"])
    return list(grads.values())


def built(optimizer):
    """The model before its first step."""
    model = list(variables(weights(SHAPES)).values())
    optimizer.build(model)
    return model


def started(optimizer):
    """The model after one good step, so that every slot holds something."""
    model = built(optimizer)
    optimizer.apply(spoiled(1.0, "bias", False), model)
    return model


def assert_skips(optimizer, value, where="kernel", sparse=False, function=False):
    """Only `skipped_steps` changes, whichever micro-step it was; and the next good step goes on."""
    model = started(optimizer)
    good, bad = spoiled(1.0, where, sparse), spoiled(value, where, sparse)

    def apply(grads):
        optimizer.apply(grads, model)

    apply = tf.function(apply) if function else apply
    steps = optimizer.gradient_accumulation_steps or 1
    for _ in range(steps - 1):
        apply(good)
    for at in range(steps):
        before = state_of(optimizer, *model)
        for micro_step in range(steps):
            apply(bad if micro_step == at else good)
        after = state_of(optimizer, *model)
        assert after.pop("skipped_steps") == before.pop("skipped_steps") + 1
        if steps > 1:
            assert after.pop("micro_steps") == before.pop("micro_steps") + steps
        assert_same_state(after, before)
    for _ in range(steps):
        apply(good)
    moved = [v.numpy() for v in model]
    assert all(np.isfinite(w).all() for w in moved)
    assert any((w != before[f"model {i}"]).any() for i, w in enumerate(moved))


@each_in_turn("value", list(BAD))
def test_skips(sample, value):
    assert_skips(sample.make(), BAD[value])


@each_option("plain")
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "rows"])
def test_skips_with(option, sparse):
    for where in SHAPES:
        assert_skips(BY_NAME["adam"].make(**OPTIONS[option]), np.nan, where, sparse)


@each(of_each_class(), quick=("sgd", "adagrad", "adam"))
def test_skips_in_a_function(sample):
    assert_skips(sample.make(), np.inf, "table", sparse=True, function=True)


def test_skips_compiled_by_xla():
    optimizer, w = tf_graft.Adam(RATE), tf.Variable([1.0, 2.0])
    optimizer.build([w])

    @tf.function(jit_compile=True)
    def apply(g):
        optimizer.apply([g], [w])

    before = state_of(optimizer, w)
    apply(tf.constant([1.0, np.nan]))
    after = state_of(optimizer, w)
    assert after.pop("skipped_steps") == before.pop("skipped_steps") + 1
    assert_same_state(after, before)
    apply(tf.constant([1.0, 1.0]))
    assert int(optimizer.iterations.numpy()) == 1


@each_in_turn("sparse", [False, True], of_each_class())
def test_raises_and_changes_nothing(sample, sparse):
    assert_raises(sample, sparse, function=False)


@each_in_turn("sparse", [True, False], of_each_class(), quick=("adagrad", "adam"))
def test_raises_and_changes_nothing_in_a_function(sample, sparse):
    assert_raises(sample, sparse, function=True)


def assert_raises(sample, sparse, function):
    optimizer = sample.make(nonfinite="raise")
    model = started(optimizer)
    before = state_of(optimizer, *model)

    def apply():
        optimizer.apply(spoiled(np.nan, "table", sparse), model)

    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"gradient is not finite, or too .*; nothing was"
    ):
        (tf.function(apply) if function else apply)()
    assert_same_state(state_of(optimizer, *model), before)


@each()
def test_applies_as_told(sample):
    """As Keras would; mostly the entry is spoiled, and the others are not."""
    optimizer = sample.make(nonfinite="apply")
    model = started(optimizer)
    optimizer.apply(spoiled(np.nan, "kernel", False), model)
    spoiled_entries = np.isnan(model[0].numpy())
    rows, columns = spoiled_entries.shape
    if sample.spoils in ("entry", "row", "column"):
        assert spoiled_entries[-1, -1]
        count = {"entry": 1, "row": columns, "column": rows}[sample.spoils]
        assert spoiled_entries.sum() == count
    else:
        assert spoiled_entries.all() if sample.spoils == "all" else not spoiled_entries.any()
    assert int(optimizer.iterations.numpy()) == 2
    assert int(optimizer.skipped_steps.numpy()) == 0


def test_squares_can_be_added_up_for_ever():
    """A sum of the largest squares stops growing before it overflows."""
    square = np.float32(2.0**51) ** 2
    total = square * np.float32(2.0**24)
    assert total + square == total
    assert np.isfinite(total * np.float32(2))


def test_a_loss_scale_is_judged_after_it_is_taken_out():
    w = tf.Variable([0.0])
    optimizer = tf_graft.SGD(1.0, loss_scale_factor=1e10)
    optimizer.apply([tf.constant([1e22])], [w])
    np.testing.assert_allclose(w.numpy(), [-1e12], rtol=1e-6)


@pytest.mark.parametrize("clip", ["clipvalue", "clipnorm", "global_clipnorm"])
@pytest.mark.parametrize(("size", "moves"), [(8e37, True), (3e38, False)])
def test_a_sum_of_gradients_that_will_be_clipped_does_not_overflow(size, moves, clip):
    """Each micro-step is judged, and its gradients have room for the sum of all."""
    w, options = tf.Variable([1.0]), {clip: 0.5, "gradient_accumulation_steps": 2}
    optimizer = tf_graft.SGD(1.0, **options)
    for _ in range(2):
        optimizer.apply([tf.constant([size])], [w])
    assert w.numpy() == [0.5 if moves else 1.0]
    assert int(optimizer.skipped_steps.numpy()) == (not moves)
    if not moves:
        with pytest.raises(tf.errors.InvalidArgumentError, match="nothing was changed"):
            tf_graft.SGD(1.0, **options, nonfinite="raise").apply([tf.constant([size])], [w])


@pytest.mark.parametrize("rate", [np.nan, np.inf, -0.1])
@pytest.mark.parametrize("function", [False, True])
def test_a_rate_that_makes_no_sense_is_skipped_and_counted(rate, function):
    """In a `fit`, of a callable whose value nobody could check before."""
    present = tf.Variable(0.1)
    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(tf_graft.Adam(lambda: present.read_value()), "mse", run_eagerly=not function)
    x, y = np.ones((4, 2), "float32"), np.zeros((4, 1), "float32")
    model.fit(x, y, verbose=0)
    before = model.get_weights()
    present.assign(rate)
    model.fit(x, y, verbose=0)
    optimizer = model.optimizer
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)
    assert (int(optimizer.skipped_steps.numpy()), int(optimizer.iterations.numpy())) == (1, 1)
    present.assign(0.1)
    model.fit(x, y, verbose=0)
    assert (model.get_weights()[0] != before[0]).all()


def test_a_rate_that_makes_no_sense_is_raised():
    optimizer, w = tf_graft.SGD(lambda: tf.constant(np.nan), nonfinite="raise"), tf.Variable([0.0])
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"^SGD\.apply: a learning rate, or another value in time, is",
    ):
        optimizer.apply([tf.constant([1.0])], [w])
    np.testing.assert_array_equal(w.numpy(), 0.0)


def test_half_precision_overflow_is_seen():
    """float16 gradients become infinite where float32 ones do not."""
    w = tf.Variable(tf.ones([2], tf.float16))
    optimizer = tf_graft.SGD(0.5)
    optimizer.apply([tf.cast(tf.constant([1e6, 1.0]), tf.float16)], [w])
    assert int(optimizer.skipped_steps.numpy()) == 1
    np.testing.assert_array_equal(w.numpy(), 1.0)


# Many skips in a row are no secret.

SKIPS = r"^{}: 10 or more updates in a row were skipped, .*: {}"
UNKNOWN = "gradients were not finite, or too large, .*run_eagerly=True"


def counting(optimizer, wrap=tf.function):
    """A function that makes updates of one sign: +1 for those that are made, -1 for skipped ones.

    Only the second variable's gradient is bad.
    """
    model = [tf.Variable([1.0], name="first"), tf.Variable([1.0], name="second")]
    optimizer.build(model)
    apply = wrap(lambda g: optimizer.apply([tf.ones([1]), g], model))

    def updates(*counts):
        for count in counts:
            for _ in range(abs(count)):
                apply(tf.constant([1.0 if count > 0 else np.nan]))

    return updates


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: tf_graft.Adam(),
        lambda: tf_graft.Adam(clipnorm=1.0, loss_scale_factor=4),
        lambda: tf_graft.lookahead(tf_graft.Adam(), 2),
    ],
    ids=["plain", "clipped and scaled", "lookahead"],
)
def test_ten_skips_in_a_row_warn_eagerly(make):
    """At the tenth, not at the ninth, once until there is an update."""
    optimizer = make()
    updates = counting(optimizer, wrap=lambda step: step)
    message = SKIPS.format(type(optimizer).__name__, "the gradient of 'second' is not finite, or")
    for before in (0, 12, 1):
        updates(before, -9, 3, -9)
        with pytest.warns(UserWarning, match=message):
            updates(-1)
        updates(-11)
        optimizer.finalize_variable_values([])


@pytest.mark.parametrize(
    ("rate", "gradients", "steps", "reason"),
    [
        (lambda: tf.constant(np.nan), [1.0, 1.0], None, "a learning rate is negative or not"),
        (0.1, [2.0**51, 2.0**51], None, "the gradients are not finite, or too large"),
        (0.1, [np.nan, 1.0], 2, "the gradients are not finite, or too large"),
    ],
    ids=["rate", "joint norm", "accumulated"],
)
def test_ten_skips_in_a_row_warn_of_what_is_in_no_gradient(rate, gradients, steps, reason):
    optimizer = tf_graft.SGD(rate, gradient_accumulation_steps=steps)
    model = [tf.Variable(1.0), tf.Variable(2.0)]
    for _ in range(10 * (steps or 1) - 1):
        optimizer.apply([tf.constant(g) for g in gradients], model)
    with pytest.warns(UserWarning, match=SKIPS.format("SGD", reason)):
        optimizer.apply([tf.constant(g) for g in gradients], model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("jit_compile", "make"),
    [
        (True, lambda: tf_graft.Adam()),
        (False, lambda: tf_graft.Adam(use_ema=True)),
        (False, lambda: tf_graft.ScheduleFreeSGD()),
        (False, lambda: tf_graft.AGN(tf_graft.Adam())),
    ],
    ids=["xla", "ema", "two weights", "center"],
)
def test_a_fit_whose_steps_are_all_skipped_warns(jit_compile, make):
    optimizer = make()
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    x, y = np.full((10, 2), np.nan, "float32"), np.ones((10, 1), "float32")
    with pytest.warns(UserWarning, match=SKIPS.format(type(optimizer).__name__, UNKNOWN)):
        model.fit(x, y, batch_size=1, verbose=0)
    assert (int(optimizer.skipped_steps.numpy()), int(optimizer.iterations.numpy())) == (10, 0)


def test_compiled_skips_warn_when_ten_must_have_been_in_a_row():
    """Two updates between them, and 30 of the skipped ones in three runs."""
    optimizer = tf_graft.SGD(0.1)
    updates = counting(optimizer)
    updates(-9)
    optimizer.warn_of_skips()
    updates(1, -19, 1, -1)
    optimizer.warn_of_skips()
    updates(-9, 1, -9, 1, -11)
    optimizer.warn_of_skips()
    updates(-9, 1, -9, 1, -12)
    with pytest.warns(UserWarning, match=SKIPS.format("SGD", UNKNOWN)):
        optimizer.warn_of_skips()
    updates(-20)
    optimizer.warn_of_skips()


def test_skips_of_a_state_that_is_loaded_again_are_forgotten():
    optimizer = tf_graft.SGD(0.1)
    updates = counting(optimizer)
    start = [np.array(v) for v in optimizer.variables]
    updates(5, -9)
    optimizer.warn_of_skips()
    optimizer.set_weights(start)
    updates(-9)
    optimizer.warn_of_skips()
    updates(-10)
    with pytest.warns(UserWarning, match=SKIPS.format("SGD", UNKNOWN)):
        optimizer.warn_of_skips()


# G18


@each_in_turn("option", ["plain", "together"], of_each_class())
def test_without_a_gradient_variable_and_slots_are_left_alone(sample, option):
    optimizer = sample.make(**OPTIONS[option])
    model = started(optimizer)
    for _ in range(1, OPTIONS[option].get("gradient_accumulation_steps", 1)):
        optimizer.apply(spoiled(1.0, "bias", False), model)  # so that no sum waits for the next
    before = state_of(optimizer, *model)
    message = rf"{sample.cls.__name__}.apply: no gradient for table; left alone"
    for _ in range(3):
        kernel, _, bias = spoiled(1.0, "bias", False)
        with pytest.warns(UserWarning, match=message):
            optimizer.apply([kernel, None, bias], model)
    after = state_of(optimizer, *model)
    overwritten = "ema_overwrite_frequency" in OPTIONS[option]  # the average is the weights' own
    for name in before:
        of_table = name.startswith("table/") and "average" not in name
        if of_table or (name == "model 1" and not overwritten):
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    assert (after["model 0"] != before["model 0"]).all()


def test_all_gradients_missing_is_an_error():
    w = tf.Variable([1.0], name="w")
    optimizer = tf_graft.SGD(RATE)
    optimizer.build([w])
    with pytest.raises(ValueError, match=r"^SGD\.apply: no variable has a gradient\.$"):
        optimizer.apply([None], [w])
    optimizer.apply([], [])  # nothing to do is no error
    assert int(optimizer.iterations.numpy()) == 0


# G19


def is_idle(make, **options):
    """Whether a zero gradient, the first or a later one, changes neither slots nor weights."""
    for start in (built, started):
        optimizer = make(**options)
        model = start(optimizer)
        before = state_of(optimizer, *model)
        optimizer.apply([np.zeros(s, "float32") for s in SHAPES.values()], model)
        after = state_of(optimizer, *model)
        assert after.pop("iteration") == before.pop("iteration") + 1
        if any(after[name].tobytes() != value.tobytes() for name, value in before.items()):
            return False
    return True


@each()
def test_a_zero_gradient_is_a_no_op_exactly_where_declared(sample):
    assert is_idle(sample.make, weight_decay=0.0) == sample.idle
    assert sample.make().idle == sample.idle
    assert sample.make().rowwise == sample.rowwise


# The checks notice what they are for.


class CountsFirst(tf_graft.SGD):
    def apply(self, grads, trainable_variables=None):
        super().apply(grads, trainable_variables)
        self.iterations.assign_add(1)


class ClaimsToBeIdle(tf_graft.Adam):
    idle = True


def test_notices_a_count_and_a_step():
    with pytest.raises(AssertionError, match="'iteration' differs"):
        assert_skips(CountsFirst(RATE), np.nan)
    with pytest.raises(AssertionError):
        assert_skips(tf_graft.SGD(RATE, nonfinite="apply"), np.nan)


def test_notices_a_false_claim():
    assert not is_idle(ClaimsToBeIdle)


def test_warnings_are_errors_here():
    """What the other tests rely on: a warning that nobody expects would fail them."""
    with pytest.raises(UserWarning, match="no gradient for"):
        tf_graft.SGD(RATE).apply([None, 1.0], [tf.Variable([1.0]), tf.Variable(1.0)])
