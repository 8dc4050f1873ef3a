"""What users see and type: names and reprs, `get`, `minimize`, gradients as they come, norms."""

import functools
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import samples
from tf_graft.compose.of_keras import Wrapped
from tf_graft.core.arguments import signatures
from tf_graft.core.state.algorithm import Algorithm
from tf_graft.core.tensors import numerics

INF, NAN = np.inf, np.nan

# Names.

FOR_USERS = {
    *("compute_gradients", "decay_exclusions", "loss_scale", "minimize"),
    *("reset_rows", "synchronized_averages", "table", "warn_of_skips"),
}
TWO_WEIGHTS = {
    *("evaluating", "evaluation_weights", "use_evaluation_weights", "use_training_weights"),
}
SCHEDULE_FREE = TWO_WEIGHTS | {"direction", "warmed"}
WRAPPERS = {
    *("adopt", "children", "column", "leader", "passes_on", "point_within", "rates_within"),
    *("roles", "serves", "step_rate", "take", "with_decay"),
}
AROUND = WRAPPERS | {"inner", "outer", "reshapes"}
RESHAPING = AROUND | {"reshaped"}
OF_NORMS = RESHAPING | {"acts_on", "exclusions", "of_matrix"}
OF_MATRICES = WRAPPERS | {"axes_by_path", "direction", "divided_from", "moments", "slots_of"}
ORTHOGONAL = {"factor", "orthogonal", "orthogonal_step"}
OF_PRECONDITIONED = OF_MATRICES | {
    *("blocks", "eigenvectors", "limit", "moment", "sides_of", "turns_of"),
}
OF_CLASSES = {
    "AdaGraft": WRAPPERS | {"norms"},
    "Adafactor": {"axes"},
    "AdaptiveGradientClipping": AROUND,
    "Cautious": RESHAPING,
    "EMANesterov": AROUND | TWO_WEIGHTS,
    "GradientCentralization": AROUND,
    "Hyperball": OF_NORMS,
    "KLSOAP": OF_PRECONDITIONED,
    "KLShampoo": OF_PRECONDITIONED | {"failed_roots", "sides"},
    "LARC": AROUND | {"adapts", "ratio"},
    "LayerwiseRates": WRAPPERS,
    "MixedPrecision": AROUND,
    "MultiOptimizer": WRAPPERS | {"groups"},
    "Muon": OF_MATRICES | ORTHOGONAL,
    "NorMuon": OF_MATRICES | ORTHOGONAL,
    "RadialBrake": OF_NORMS,
    "SOAP": OF_PRECONDITIONED,
    "SOAPMuon": OF_PRECONDITIONED | ORTHOGONAL,
    "ScheduleFreeAdamW": SCHEDULE_FREE,
    "ScheduleFreeRAdam": SCHEDULE_FREE,
    "ScheduleFreeSGD": SCHEDULE_FREE | {"beta_1"},
    "Shampoo": OF_PRECONDITIONED | {"failed_roots"},
    "Wrapped": {"of_keras", "slots_in_keras"},
}
FOR_AUTHORS = {name for name in dir(Algorithm) if name[0] != "_"}


@pytest.mark.parametrize(
    "cls", {sample.cls.__name__: sample.cls for sample in samples.SAMPLES}.values()
)
def test_a_class_has_no_more_names_than_these(cls):
    """Beside Keras' names and the arguments. Every other name could hide one of a user's."""
    arguments = {*signatures.own_arguments(cls), *samples.COMMON_NAMES}
    given = {name for name in dir(cls) if name[0] != "_"}
    expected = FOR_USERS | FOR_AUTHORS | OF_CLASSES.get(cls.__name__, set())
    assert given - {*dir(keras.optimizers.Optimizer)} - arguments == expected


def test_an_optimizer_holds_its_parts():
    optimizer = tg.SGD()
    of_keras = {*dir(keras.optimizers.SGD())}
    held = {name for name in {*dir(optimizer)} - {*dir(tg.SGD)} - of_keras if name[0] != "_"}
    assert held == {"engine", "rule", "saved", "state", "micro_steps", "skipped_steps"}


def test_the_page_has_all_that_can_be_overridden():
    page = (pathlib.Path(__file__).parents[1] / "docs/write_an_optimizer.md").read_text()
    own, wrapper = page.split("## All that you can override")[1].split("## A new wrapper")
    assert {*re.findall(r"^\| `(\w+)", own, re.MULTILINE)} == FOR_AUTHORS
    of_wrapper = {
        *re.findall(
            r"`(\w+)(?:\([\w, ]*\))?`", "".join(re.findall(r"^\|.*?(?= \|)", wrapper, re.MULTILINE))
        )
    }
    assert of_wrapper == RESHAPING - {"adopt", "children", "take"}


def test_names_of_a_class_of_your_own_are_shown():
    class Mine(tg.SGD):
        answer = 42

        def helper(self):
            return 1

    mine = Mine()
    mine.history = []
    assert {"answer", "helper", "history", "apply", "momentum"} <= {*dir(mine)}


# What it says it is.

LION = keras.optimizers.Lion
FTRL = keras.optimizers.Ftrl
EXPONENTIAL = keras.optimizers.schedules.ExponentialDecay
REPRS = {
    "Adam(learning_rate=0.001, clipnorm=1.0)": lambda: tg.Adam(clipnorm=1),
    "LARS(learning_rate=0.3, momentum=0.8, exclude_from_weight_decay=['bias'])": lambda: tg.LARS(
        np.float32(0.3), momentum=0.8, exclude_from_weight_decay=["bias"]
    ),
    "SGD(learning_rate=ExponentialDecay(initial_learning_rate=0.1, decay_steps=10, "
    "decay_rate=0.9), name='mine')": lambda: tg.SGD(EXPONENTIAL(0.1, 10, 0.9), name="mine"),
    "SGD(learning_rate=rate)": lambda: tg.SGD(rate),
    "MixedPrecision(optimizer=LARC(optimizer=Adam(learning_rate=Warmup(schedule=FixedLR("
    "learning_rate=0.5), steps=4)), eta=0.1), loss_scale=BackoffScaler(step_window=9))": (
        lambda: tg.MixedPrecision(
            tg.LARC(tg.Adam(tg.schedules.Warmup(0.5, 4)), eta=0.1),
            tg.scaling.BackoffScaler(step_window=9),
        )
    ),
    "wrap(optimizer=keras.optimizers.Lion(learning_rate=0.25, beta_1=0.8), clipnorm=2.0, "
    "nonfinite='raise')": (
        lambda: tg.wrap(LION(0.25, beta_1=0.8, clipnorm=2.0), nonfinite="raise")
    ),
    "AdaGraft(magnitude_optimizer=SGD(learning_rate=0.5), direction_optimizer=Adam("
    "learning_rate=0.001), learning_rate=1.0)": lambda: tg.AdaGraft(tg.SGD(0.5), "adam"),
}


def rate():
    return 0.5


@pytest.mark.parametrize("expected", REPRS)
def test_repr_says_what_it_is(expected):
    assert repr(REPRS[expected]()) == expected


def test_repr_is_of_now_and_can_be_evaluated():
    optimizer = tg.LARC(tg.SGD(0.5), global_clipnorm=2.0)
    optimizer.learning_rate = 0.25
    said = []
    tf.function(lambda: said.append(repr(optimizer)))()
    again = eval(said[0], vars(tg))
    assert repr(again) == said[0] == repr(optimizer)
    assert again.get_config() == optimizer.get_config()


def test_repr_of_ones_own_that_keeps_its_arguments_elsewhere():
    class Plain(tg.Optimizer):
        def __init__(self, learning_rate, factor, **options):
            super().__init__(learning_rate, **options)
            self.kept = factor

    assert repr(Plain(0.5, 3, clipvalue=1)) == "Plain(learning_rate=0.5, clipvalue=1.0)"


# By name.


@pytest.mark.parametrize(
    "identifier",
    [
        *("adam", "Adam", "tf_graft>Adam", {"name": "adam"}, {"class_name": "Adam"}),
        {"class_name": "adam", "config": {"learning_rate": 0.001}},
    ],
    ids=str,
)
def test_get_ours(identifier):
    assert repr(tg.get(identifier)) == "Adam(learning_rate=0.001)"


@pytest.mark.parametrize(
    "identifier",
    [
        *(
            "ftrl",
            {"name": "Ftrl", "learning_rate": 0.001},
            {"class_name": "ftrl", "config": {}},
        ),
        keras.optimizers.serialize(FTRL()),
        tg.serialize(tg.wrap(FTRL())),
    ],
    ids=str,
)
@pytest.mark.usefixtures("keras_alone_has_ftrl")
def test_get_what_only_keras_has_ready_to_use(identifier):
    optimizer = tg.get(identifier)
    assert isinstance(optimizer, Wrapped)
    table = tf.Variable(tf.zeros([3, 1]))
    optimizer.apply([tf.IndexedSlices([[1.0], [-3.0], [NAN]], [0, 0, 1])], [table])
    assert int(optimizer.skipped_steps) == 1
    optimizer.apply([tf.IndexedSlices([[1.0], [-3.0]], [0, 0])], [table])
    moved = 0.001 * 2 / np.sqrt(0.1 + 2**2)
    np.testing.assert_allclose(table.numpy(), [[moved], [0.0], [0.0]], rtol=1e-6)


def test_get_what_users_registered():
    @keras.saving.register_keras_serializable(package="mine")
    class Plain(tg.Optimizer):
        def step(self, g, w, s, lr, t):
            return -lr * g, {}

    assert type(tg.get("mine>Plain")) is Plain
    own = tg.SGD()
    assert tg.get(own) is own
    stock = keras.optimizers.SGD()
    assert tg.get(stock) is stock


@pytest.mark.parametrize(
    ("identifier", "said"),
    [
        ("tf_graft>Adem", "did you mean 'adam'"),
        ("adma", "did you mean 'adam'"),
        ("ftrk", "did you mean 'ftrl'"),
        ("optimizer", "there is no such optimizer"),
        ("mine>Nothing", "there is no such optimizer"),
    ],
)
def test_get_nothing(identifier, said):
    with pytest.raises(ValueError, match=rf"get\('{identifier}'\): .*{said}"):
        tg.get(identifier)


def test_get_refuses_arguments_outside_the_config():
    with pytest.raises(ValueError, match=r"'learning_rate' stands next to 'class_name'.*'config'"):
        tg.get({"class_name": "Adam", "learning_rate": 0.5})


def test_adamw_without_decay_is_refused_as_keras_does():
    for cls in (keras.optimizers.AdamW, tg.AdamW):
        with pytest.raises(ValueError, match="weight_decay=None"):
            cls(weight_decay=None)


def test_a_schedule_in_place_of_a_number_is_one_variable_less():
    optimizer = tg.Adam()
    before = [v.path for v in optimizer.variables]
    optimizer.learning_rate = EXPONENTIAL(0.1, 10, 0.9)
    after = [v.path for v in optimizer.variables]
    assert set(before) - set(after) == {"adam/learning_rate"}


# The loss in, the step out.


def scaled(**options):
    return tg.MixedPrecision(tg.SGD(0.25), 1024.0, **options)


@pytest.mark.parametrize(
    ("make", "scale"),
    [(lambda: tg.SGD(0.25), 1), (scaled, 1024), (lambda: tg.SGD(0.25, loss_scale_factor=8.0), 8)],
    ids=["plain", "mixed", "factor"],
)
@pytest.mark.parametrize("variable", [tf.Variable, keras.Variable])
def test_minimize(make, scale, variable):
    """w - 0.25 * 2 w is w / 2: by a function, a tensor with its tape, in a `tf.function`."""
    w, optimizer = variable([2.0, -4.0]), make()
    optimizer.build([w])

    def loss():
        return tf.reduce_sum(tf.convert_to_tensor(w) ** 2)

    assert int(optimizer.minimize(loss, [w])) == 1
    with tf.GradientTape() as tape:
        value = loss()
    optimizer.minimize(value, [w], tape)
    with tf.GradientTape() as tape:  # while it still records
        pairs = optimizer.compute_gradients(loss(), [w], tape)
    ((gradient, of),) = pairs
    assert of is w
    np.testing.assert_allclose(gradient, scale * np.array([1.0, -2.0]))
    optimizer.apply_gradients(pairs)
    assert int(tf.function(lambda: optimizer.minimize(loss, lambda: [w]))()) == 4
    np.testing.assert_allclose(w.numpy(), [0.125, -0.25])


def test_minimize_rows_frozen_variables_and_a_tape_of_ones_own():
    table, frozen = tf.Variable(tf.ones([4, 2])), tf.Variable(3.0, trainable=False)

    def loss():
        return tf.reduce_sum(tf.gather(table, [1, 1])) * frozen

    optimizer = scaled()
    tape = tf.GradientTape(watch_accessed_variables=False)
    pairs = optimizer.compute_gradients(loss, (v for v in (table, frozen)), tape)
    assert isinstance(pairs[0][0], tf.IndexedSlices)
    optimizer.apply_gradients(pairs)
    np.testing.assert_allclose(table.numpy()[:, 0], [1.0, -0.5, 1.0, 1.0])
    assert float(frozen) == 2.0


def test_minimize_keeps_small_float16_gradients():
    """1e-9 is below float16; times the scale it is not."""
    w = tf.Variable(1.0, dtype=tf.float16)
    optimizer = tg.MixedPrecision(tg.SGD(1e8), 2.0**14)
    optimizer.minimize(lambda: tf.cast(w * tf.constant(1e-4, tf.float16), tf.float32) * 1e-5, [w])
    assert float(w) == pytest.approx(0.9, abs=2e-3)


@pytest.mark.slow
def test_minimize_makes_a_model_and_skips_what_overflows():
    model = keras.Sequential([keras.layers.Embedding(5, 2), keras.layers.Dense(1)])
    optimizer = tg.MixedPrecision("adam", "backoff")

    @tf.function
    def step(factor):
        def loss():
            return factor * tf.reduce_mean(model(tf.constant([[1], [1]])) ** 2)

        optimizer.minimize(loss, lambda: model.trainable_variables)

    step(tf.constant(INF))
    before, scale = model.get_weights(), float(optimizer.loss_scale())
    step(tf.constant(1.0))
    assert int(optimizer.skipped_steps) == 1
    assert int(optimizer.iterations) == 1
    assert scale == 2.0**13
    moved = [np.abs(a - b).max() for a, b in zip(model.get_weights(), before, strict=True)]
    np.testing.assert_allclose(moved, 0.001, rtol=0.01)


def test_minimize_refuses_a_loss_without_its_tape():
    w = tf.Variable(1.0)
    with pytest.raises(ValueError, match=r"SGD\.compute_gradients: the loss is a tensor; give the"):
        tg.SGD().minimize(w * w, [w])
    with pytest.raises(
        TypeError, match=r"SGD\.compute_gradients: var_list is a single variable; p"
    ):
        tg.SGD().minimize(lambda: w * w, w)


# Gradients as they come.

ROWS = {
    "tuple": ([[1.0], [2.0], [4.0]], (0, 2, 2)),
    "list": ([[1.0], [2.0], [4.0]], [0, 2, 2]),
    "numpy": (np.array([[1.0], [2.0], [4.0]]), np.array([0, 2, 2], np.uint8)),
    "tensor": (tf.constant([[1.0], [2.0], [4.0]]), tf.constant([0, 2, 2])),
}


@pytest.mark.parametrize("rows", ROWS)
def test_rows_as_a_list(rows):
    given = tf.IndexedSlices(*ROWS[rows], dense_shape=(3, 1))
    for use in ("apply", "function", "update_step", "clip"):
        table, optimizer = tf.Variable(tf.zeros([3, 1])), tg.SGD(0.5)
        optimizer.build([table])
        if use == "apply":
            optimizer.apply([given], [table])
        elif use == "function":
            tf.function(lambda o=optimizer, w=table: o.apply([given], [w]))()
        elif use == "update_step":
            optimizer.update_step(given, table, 0.5)
        else:
            (clipped,), _ = tg.clip_by_global_norm([given], 100.0)
            optimizer.apply([clipped], [table])
        np.testing.assert_array_equal(table.numpy(), [[-0.5], [0.0], [-3.0]], use)
    optimizer.apply([tf.IndexedSlices(tf.zeros([0, 1]), [])], [table])
    np.testing.assert_array_equal(table.numpy(), [[-0.5], [0.0], [-3.0]])


@pytest.mark.parametrize(
    ("values", "indices", "error", "said"),
    [
        ([[1.0]], [0.5], TypeError, "has indices of dtype float32, not integers"),
        ([[1.0], [2.0]], [0], ValueError, r"values of shape \(2, 1\) for indices of shape \(1,\)"),
        ([[1]], [0], TypeError, "must be floating point"),
    ],
)
def test_rows_that_are_none(values, indices, error, said):
    table = tf.Variable(tf.zeros([3, 1]))
    with pytest.raises(error, match=rf"SGD\.apply: .*{said}"):
        tg.SGD().apply([tf.IndexedSlices(values, indices)], [table])


# Norms.

TENSORS = {  # what is given, the norm of all, the largest magnitude of all
    "infinite": ([[1.0, INF], [2.0]], INF, INF),
    "minus infinity": ([[1.0, -INF]], INF, INF),
    "nan": ([[1.0, NAN]], NAN, None),
    "both": ([[1.0, NAN], [INF]], NAN, None),
    "large": ([[3e30], [-4e30]], 5e30, 4e30),
    "empty": ([[]], 0.0, 0.0),
    "empty and not": ([[], [3.0, -4.0]], 5.0, 4.0),
    "empty and infinite": ([[], [INF]], INF, INF),
}
of_xla = functools.partial(tf.function, jit_compile=True)


@pytest.mark.parametrize("wrap", [lambda run: run, tf.function, of_xla], ids=["", "graph", "xla"])
def test_norms_of_what_is_infinite_or_empty(wrap):
    def measured():
        for values, _, _ in TENSORS.values():
            tensors = [tf.constant(x, tf.float32) for x in values]
            peaks = tf.reduce_max([numerics.peak(x) for x in tensors])
            yield numerics.norm(tensors), numerics.length(tensors[-1]), peaks

    found = wrap(lambda: [*measured()])()
    for kind, (total, last, largest) in zip(TENSORS, found, strict=True):
        values, norm, peak = TENSORS[kind]
        np.testing.assert_allclose(total, norm, rtol=1e-6, err_msg=kind)
        alone = kind != "large" and len(values) == 1
        assert not alone or np.array_equal(last, total, equal_nan=True), kind
        assert peak is None or largest == peak, kind


@pytest.mark.parametrize("bad", [INF, NAN])
def test_the_metric_of_a_gradient_that_is_not_finite(bad):
    w = tf.Variable([1.0, 2.0], name="w")
    step = tg.optimize_loss(
        lambda x: tf.reduce_sum(w * x),
        *([w], "SGD", None, 0.1),
        summaries=["global_gradient_norm", "gradient_norm"],
    )
    _, metrics = step(tf.constant([bad, 1.0]))
    np.testing.assert_equal(
        {name: float(x) for name, x in metrics.items()},
        dict.fromkeys(["global_gradient_norm", "gradient_norm/w"], bad),
    )


# A model that `fit` makes.


def fitted(optimizer, built):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])
    if built:
        model.build([None, 2])
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(np.ones([4, 2]), np.ones([4, 1]), batch_size=1, verbose=0)
    return model.get_weights()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["agn", "schedule_free"])
def test_state_that_starts_as_the_weights_of_a_model_made_in_fit(name):
    """While `fit` traces its first step such weights have no value yet."""
    if name == "schedule_free" and name not in samples.BUILT_IN:
        pytest.skip("this Keras has no ScheduleFreeAdamW")

    def make():
        if name == "agn":
            return tg.AGN(tg.SGD(0.1, momentum=0.5), communication_period=2)
        return tg.AdaGraft(tg.SGD(0.1), samples.BUILT_IN[name](0.1))

    for ours, expected in zip(fitted(make(), False), fitted(make(), True), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6)
