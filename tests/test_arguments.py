"""Numbers that vanish or overflow in float32, rates that are none, attributes: at use."""

import inspect
import re
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft
from support.samples import assert_same_state, state_of
from trust import tables
from trust.arguments import unattacked

NAN = float("nan")


def compiled(optimizer):
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def fit(model):
    model.fit(np.ones([4, 2], "float32"), np.ones([4, 1], "float32"), epochs=1, verbose=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"learning_rate": 1e39},
            "Adam(learning_rate=1e+39): learning_rate must be finite and at least 0, and is inf in "
            "float32.",
        ),
        (
            {"epsilon": 1e-300},
            "Adam(epsilon=1e-300): epsilon must be finite and above 0, and is 0 in float32.",
        ),
        (
            {"beta_2": 0.9999999999},
            "Adam(beta_2=0.9999999999): beta_2 must lie in [0, 1), and is 1 in float32.",
        ),
        (
            {"weight_decay": 1e300},
            "Adam(weight_decay=1e+300): weight_decay must be finite and at least 0, and is inf in "
            "float32.",
        ),
        (
            {"learning_rate": 1e-300},
            "Adam(learning_rate=1e-300): learning_rate must not be so small: it is 0 in float32.",
        ),
        (
            {"ema_overwrite_frequency": 1e29},
            "Adam(ema_overwrite_frequency=1e+29): ema_overwrite_frequency must be at most 2^53.",
        ),
        (
            {"clipnorm": 10**5000},
            "Adam(clipnorm=<int of more digits than Python shows>): clipnorm must be finite and "
            "above 0.",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_none_in_float32_is_refused(given, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        tf_graft.Adam(**given)


@pytest.mark.parametrize("cls", [tf_graft.SGD, tf_graft.LARS])
def test_nesterov_momentum_without_a_momentum_warns(cls):
    message = r"\(nesterov=True\): without a momentum it does nothing\.$"
    with pytest.warns(UserWarning, match=f"^{cls.__name__}{message}") as seen:
        cls(nesterov=True, momentum=0.0)
    assert seen[0].filename == __file__
    cls(nesterov=True, momentum=tf_graft.schedules.PolyDecay(0.9, 4))


def test_that_warning_points_to_where_an_optimizer_of_another_class_is_made():
    class Own(tf_graft.SGD):
        def __init__(self, learning_rate=0.1, **common):
            super().__init__(learning_rate, 0.0, nesterov=True, **common)

    line = inspect.currentframe().f_lineno + 2
    with pytest.warns(UserWarning, match="^Own") as seen:
        Own()
    assert (seen[0].filename, seen[0].lineno) == (__file__, line)


@pytest.mark.parametrize("value", [0.1, 2.0**-126, 3.4e38, 0.99999994, 2**53])
def test_what_float32_holds_is_accepted(value):
    optimizer = tf_graft.SGD(value, ema_overwrite_frequency=2**53)
    assert float(optimizer.learning_rate) == np.float32(value)
    assert optimizer.get_config()["learning_rate"] == np.float32(value)


def test_a_bound_that_float32_rounds_is_within_its_bounds():
    """0.1 is a little more in float32, and 0.3 a little more, and both stay where they are."""
    for rate in (0.1, 0.3, 0.7):
        assert tf_graft.schedules.PolyDecay(rate, 4, min_lr=rate).min_lr == rate


# Rates.


@pytest.mark.slow
@pytest.mark.parametrize("rate", [NAN, -1.0, tf.constant(NAN), tf.constant(-1.0), [0.1], "0.1"])
def test_a_callback_that_sets_no_rate_ends_fit_and_nothing_moves(rate):
    class Sets(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate = rate

    model = compiled(tf_graft.Adam(0.25))
    fit(model)
    before = state_of(model.optimizer, *model.variables)
    with pytest.raises((ValueError, TypeError), match=r"^Adam.*learning_rate"):
        model.fit(np.ones([4, 2]), np.ones([4, 1]), callbacks=[Sets()], verbose=0)
    assert_same_state(state_of(model.optimizer, *model.variables), before)


@pytest.mark.parametrize("value", [None, "0.1", True, [0.1, 0.2]], ids=str)
@pytest.mark.parametrize(
    "make", [tf_graft.Adam, lambda rate: tf_graft.AdaGraft(tf_graft.SGD(rate), "adam")]
)
def test_a_callable_that_returns_no_number_is_refused_by_fit(make, value):
    model = compiled(make(lambda: value))
    before = [variable.numpy() for variable in model.variables]
    with pytest.raises((TypeError, ValueError), match=r"\.learning_rate: the value now "):
        fit(model)
    for variable, held in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), held)


def test_a_callable_is_asked_once_a_step():
    asked = []
    optimizer = tf_graft.SGD(lambda: asked.append(1) or 0.5)
    w = tf.Variable([1.0])
    for step in range(3):
        assert len(asked) == step
        optimizer.apply([tf.constant([0.5])], [w])
    assert w.numpy().tolist() == [0.25]


def test_a_schedule_that_begins_with_no_rate_is_refused():
    schedule = keras.optimizers.schedules.ExponentialDecay(NAN, 10, 0.5)
    message = r"^Adam\(learning_rate=ExponentialDecay\(\.\.\.\)\): the value at step 0 is nan;"
    with pytest.raises(ValueError, match=message):
        tf_graft.Adam(schedule)
    optimizer = tf_graft.Adam(0.25)
    with pytest.raises(ValueError, match=message):
        optimizer.learning_rate = schedule
    assert float(optimizer.learning_rate) == 0.25


def test_a_rate_is_set_to_a_tensor_also_where_a_function_is_traced():
    optimizer, w = tf_graft.SGD(0.5), tf.Variable([1.0])

    @tf.function
    def step(rate):
        optimizer.learning_rate = rate
        optimizer.apply([tf.constant([1.0])], [w])

    optimizer.build([w])
    step(tf.constant(0.25))
    assert w.numpy().tolist() == [0.75]
    optimizer.learning_rate = tf.Variable(0.125)
    assert float(optimizer.learning_rate) == 0.125


@pytest.mark.parametrize("make", [tf_graft.SGD, lambda rate: tf_graft.LARC(tf_graft.SGD(rate))])
def test_a_schedule_that_compiled_steps_do_not_see_is_warned_of(make):
    optimizer, w = make(0.5), tf.Variable([1.0])
    step = tf.function(lambda: optimizer.apply([tf.constant([0.0])], [w]))
    optimizer.learning_rate = constant = keras.optimizers.schedules.ExponentialDecay(0.25, 10, 0.5)
    step()  # no warning yet
    with pytest.warns(UserWarning, match=r"^SGD\.learning_rate: steps that were compiled before"):
        optimizer.learning_rate = constant


def test_a_number_does_not_take_the_place_of_a_callable():
    optimizer = tf_graft.SGD(lambda: 0.5)
    with pytest.raises(TypeError, match=r"^SGD\.learning_rate: it cannot be set to 0\.25"):
        optimizer.learning_rate = 0.25


# Attributes.


def test_attributes_are_checked_as_arguments_are_and_take_effect():
    optimizer, w = tf_graft.SGD(0.5, momentum=0.5), tf.Variable([4.0])
    with pytest.raises(ValueError, match=r"^SGD\(momentum=2\): momentum must lie in \[0, 1\]\.$"):
        optimizer.momentum = 2
    optimizer.weight_decay = 0.25
    optimizer.apply([tf.constant([0.0])], [w])
    assert w.numpy().tolist() == [3.5]
    assert optimizer.get_config()["weight_decay"] == 0.25


def test_what_decides_on_the_state_is_fixed():
    optimizer = tf_graft.Adam(0.5)
    with pytest.raises(
        ValueError, match=r"^Adam\.amsgrad = True: amsgrad decides which slots there are"
    ):
        optimizer.amsgrad = True
    optimizer.use_ema = True  # no state has been made
    w = tf.Variable([1.0])
    optimizer.apply([tf.constant([1.0])], [w])
    optimizer.finalize_variable_values([w])
    with pytest.raises(ValueError, match=r"^Adam\.gradient_accumulation_steps = 2: "):
        optimizer.gradient_accumulation_steps = 2
    assert optimizer.gradient_accumulation_steps is None


def test_a_schedules_attributes_are_checked_beside_its_others():
    schedule = tf_graft.schedules.PolyDecay(0.5, 4)
    with pytest.raises(ValueError, match=r"^PolyDecay\(min_lr=0\.75\): min_lr must lie"):
        schedule.min_lr = 0.75
    schedule.min_lr = 0.25
    assert float(schedule(100)) == 0.25


@pytest.mark.parametrize("built", [False, True])
def test_exclusions_from_weight_decay_are_an_attribute_too(built):
    """Keras has a method of the argument's name, which took its place without a word."""
    optimizer = tf_graft.AdamW(0.5, weight_decay=0.5)
    kernel, bias = tf.Variable([1.0], name="kernel"), tf.Variable([1.0], name="bias")
    if built:
        optimizer.build([kernel, bias])
        with pytest.raises(ValueError, match=r"^AdamW\.exclude_from_weight_decay = \['bias'\]"):
            optimizer.exclude_from_weight_decay = ["bias"]
        return
    with pytest.raises(TypeError, match=r"^AdamW\(exclude_from_weight_decay='bias'\): "):
        optimizer.exclude_from_weight_decay = "bias"
    optimizer.exclude_from_weight_decay = ["bias"]
    optimizer.exclude_from_weight_decay(var_names=["gain"])
    assert optimizer.decay_exclusions == ["bias", "gain"]
    optimizer.decay_exclusions = ["bias"]
    optimizer.apply([tf.zeros(1)] * 2, [kernel, bias])
    assert (float(kernel[0]), float(bias[0])) == (0.75, 1.0)


MISSPELT = {
    "lr": ("learning_rate", tf_graft.Adam),
    "weight_deacy": ("weight_decay", tf_graft.Adam),
    "clip_norm": ("clipnorm", tf_graft.Adam),
    "Beta1": ("beta_1", tf_graft.Adam),
    "momentun": ("momentum", tf_graft.SGD),
    "eta_": ("eta", lambda: tf_graft.LARC(tf_graft.SGD())),
    "nonfinit": ("nonfinite", lambda: tf_graft.wrap(keras.optimizers.Ftrl())),
    "decay_setps": ("decay_steps", lambda: tf_graft.schedules.PolyDecay(0.5, 4)),
    "step_windw": ("step_window", tf_graft.scaling.BackoffScaler),
}


@pytest.mark.parametrize("name", MISSPELT)
def test_a_misspelt_attribute_is_refused(name):
    meant, make = MISSPELT[name]
    thing = make()
    with pytest.raises(AttributeError, match=rf"\.{name}: .* did you mean {meant}\?$"):
        setattr(thing, name, 0.5)
    assert not hasattr(thing, name)
    setattr(thing, meant, getattr(thing, meant))


def test_attributes_of_ones_own_are_left_alone():
    class Own(tf_graft.SGD):
        weight_decays = None  # which a class names is meant so

        def __init__(self, learning_rate=0.5, **common):
            super().__init__(learning_rate, **common)
            self.momentums = []  # and so is what its constructor sets

    optimizer = Own()
    optimizer.weight_decays = optimizer.momentums = [0.5]
    optimizer.beta_3 = optimizer.history = optimizer._lr = 0.5
    assert (optimizer.weight_decays, optimizer.momentums) == ([0.5], [0.5])


# Arguments of calls.


def test_float_rows_are_refused_and_row_0_stays():
    """NumPy's 0.9 is no row, and was row 0."""
    table = tf.Variable(tf.ones([3, 1]), name="table")
    gradient = tf.IndexedSlices(np.ones([1, 1], "float32"), np.array([0.9]))
    with pytest.raises(TypeError, match=r"'table' has indices of dtype float64, not integers\.$"):
        tf_graft.SGD(1.0).apply([gradient], [table])
    assert table.numpy().tolist() == [[1.0]] * 3


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint32", "uint64", "int32", "int64"])
def test_rows_of_any_integer_dtype_are_rows(dtype):
    table = tf.Variable(tf.ones([300, 1]))
    gradient = tf.IndexedSlices(tf.ones([2, 1]), np.array([1, 100]).astype(dtype))
    tf_graft.SGD(1.0).apply([gradient], [table])
    assert np.flatnonzero(table.numpy() == 0).tolist() == [1, 100]


def test_a_non_variable_is_refused_by_name():
    message = r"^SGD\.apply: variable 1 is 'kernel', of type str; it must be a tf\.Variable or"
    with pytest.raises(TypeError, match=message):
        tf_graft.SGD().apply([tf.ones([1])] * 2, [tf.Variable([1.0]), "kernel"])


# The battery.


def test_every_argument_has_its_nonsense():
    assert unattacked() == set()
    assert {cls.__name__ for cls in tables.OPTIMIZERS} >= {
        name
        for name in tf_graft.__all__
        if isinstance(getattr(tf_graft, name), type)
        and issubclass(getattr(tf_graft, name), tf_graft.Optimizer)
        and name != "Optimizer"
    }


LONG = "x" * 200_000
RATES = {"format": "tf_graft layerwise rates 1", "kind": "global"}


@pytest.mark.parametrize(
    "call",
    [
        lambda: tf_graft.get(LONG),
        lambda: tf_graft.get({"name": LONG}),
        lambda: tf_graft.get({LONG: 1}),
        lambda: tf_graft.get({"class_name": LONG, "config": {}}),
        lambda: tf_graft.get({"class_name": "sgd", "config": {LONG: 1}}),
        lambda: tf_graft.get({"name": "ftrl", LONG: 1}),
        lambda: tf_graft.deserialize({"class_name": LONG, "config": {}, "registered_name": LONG}),
        lambda: tf_graft.deserialize({"class_name": LONG, "config": {}}),
        lambda: tf_graft.deserialize([LONG]),
        lambda: tf_graft.serialize(LONG),
        lambda: tf_graft.SGD(**{LONG: 1}),
        lambda: tf_graft.SGD(name=f"{LONG}?"),
        lambda: tf_graft.SGD(momentum=LONG),
        lambda: tf_graft.SGD(exclude_from_weight_decay=[f"({LONG}"]),
        lambda: tf_graft.SGD(exclude_from_weight_decay=[f"(?P<{LONG}>"]),
        lambda: tf_graft.schedules.get(LONG),
        lambda: tf_graft.schedules.get({"name": "exp_decay", LONG: 1}),
        lambda: tf_graft.scaling.get(LONG),
        lambda: tf_graft.scaling.AutomaticLossScaler(LONG),
        lambda: tf_graft.scaling.AutomaticLossScaler("backoff", {LONG: 1}),
        lambda: tf_graft.optimize_loss(lambda: 0.0, [], LONG, 0.1),
        lambda: tf_graft.scaling.get({"name": "backoff", LONG: 1}),
        lambda: tf_graft.MixedPrecision("sgd", LONG),
        lambda: tf_graft.LayerwiseRates("sgd", LONG),
        lambda: tf_graft.LayerwiseRates("sgd", {**RATES, LONG: 1}),
        lambda: tf_graft.report.MeasuredRates("constant", {LONG: -1}),
    ],
)
def test_messages_cut_what_is_long(call):
    started = time.process_time()
    with pytest.raises((TypeError, ValueError)) as refusal:
        call()
    assert time.process_time() - started < 5.0
    assert len(str(refusal.value)) < 1_000  # the names of all optimizers are 500


def test_deep_nesting_is_refused():
    config = "sgd"
    for _ in range(300):
        config = {"name": "larc", "optimizer": config}
    for call in (tf_graft.get, tf_graft.wrap, tf_graft.LARC):
        with pytest.raises(ValueError, match="optimizers can be nested 16 deep"):
            call(config)
    serialized = tf_graft.serialize(tf_graft.SGD())
    for _ in range(300):
        serialized = {"class_name": "LARC", "config": {"optimizer": serialized}}
    with pytest.raises(ValueError, match="deserialize: optimizers can be nested 16 deep"):
        tf_graft.deserialize(serialized)


def test_the_deepest_nesting_can_be_made_and_read_back():
    optimizer = tf_graft.SGD()
    for _ in range(15):
        optimizer = tf_graft.LARC(optimizer)
    again = tf_graft.deserialize(tf_graft.serialize(optimizer))
    assert again.rule.signature == optimizer.rule.signature
    with pytest.raises(ValueError, match=r"LARC\(optimizer=LARC\(...\)\): optimizers can be nest"):
        tf_graft.LARC(optimizer)


def test_each_level_of_nesting_is_asked_once_for_its_config():
    asked = []

    class Counted(tf_graft.SGD):
        def get_config(self):
            asked.append(self)
            return super().get_config()

    tf_graft.LARC(tf_graft.LARC(tf_graft.LARC(Counted()))).get_config()
    assert len(asked) == 1


def test_what_is_no_optimizer_is_not_serialized():
    with pytest.raises(TypeError, match=r"serialize\(5\): give an optimizer\."):
        tf_graft.serialize(5)


@pytest.mark.parametrize("given", ["x", -1, object(), {"name": "backoff", "scale_min": -1.0}])
def test_mixed_precision_names_its_argument(given):
    with pytest.raises((TypeError, ValueError), match=r"^MixedPrecision\(loss_scale="):
        tf_graft.MixedPrecision("sgd", given)


@pytest.mark.parametrize("rate", ["poly_decay", {"name": "fixed_lr", "learning_rate": 0.1}])
def test_a_schedule_by_name_is_made_by_schedules(rate):
    """`get` takes the arguments of the class, whose learning rate is a number or a schedule."""
    for make in (tf_graft.Adam, lambda rate: tf_graft.get({"name": "adam", "learning_rate": rate})):
        with pytest.raises(TypeError, match=r"schedule; tf_graft\.schedules\.get makes a schedule"):
            make(rate)


# Means and norms.

FORGETFUL = {
    **{
        name: {"beta_2": 0.0}
        for name in (
            *("adabelief", "adam", "ademamix", "lamb", "mars", "nadam", "nadamw", "prodigy"),
            *("radam", "schedule_free_adamw"),
        )
    },
    **{name: {"rho": 0.0} for name in ("adadelta", "rmsprop")},
    "adan": {"beta_1": 0.0, "beta_2": 0.0, "beta_3": 0.0},
}


@pytest.mark.parametrize("wrap", [lambda step: step, tf.function], ids=["eager", "function"])
@pytest.mark.parametrize(("name", "given"), FORGETFUL.items(), ids=FORGETFUL)
def test_a_mean_square_that_forgets_at_once_does_not_round_the_new_one_away(name, given, wrap):
    def moved(dtype):
        w = tf.Variable(np.full([2, 2], 0.5, dtype))
        optimizer = tf_graft.get({"name": name} | given)
        optimizer.build([w])
        step = wrap(lambda g: optimizer.apply([g], [w]))
        step(tf.fill([2, 2], tf.constant(4096.0, dtype)))
        before = w.numpy()
        step(tf.fill([2, 2], tf.constant(2.0**-6, dtype)))  # its square is 2^-36 of the other's
        return w.numpy() - before

    expected = moved("float64")
    np.testing.assert_allclose(moved("float32"), expected, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("make", [tf_graft.Adafactor, lambda: tf_graft.Hyperball(tf_graft.SGD())])
@pytest.mark.parametrize("size", [1e18, 1e30])
def test_weights_whose_squares_overflow_stay_finite(make, size):
    w = tf.Variable(size * np.array([[1.0, -2.0], [3.0, 0.5]], "float32"), name="kernel")
    optimizer = make()
    for _ in range(2):
        optimizer.apply([tf.constant([[1.0, 0.0], [-1.0, 1e-3]])], [w])
    assert all(np.isfinite(value).all() for value in state_of(optimizer, w).values())
    np.testing.assert_allclose(w, size * np.array([[1.0, -2.0], [3.0, 0.5]]), rtol=0.05)
