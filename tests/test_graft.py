"""AdaGraft: G03 and G04 for every pair, lingvo's recordings, children, and all around them."""

import copy
import itertools
import json
import pathlib
import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft
from support import oracles, samples, saving
from support.samples import assert_same_state, gradients, slices, state_of, variables, weights
from tf_graft.compose.of_keras import wrap
from tf_graft.core.state.point import Point, under
from tf_graft.grafting.adagraft import NORMS

RATE = 0.125
SHAPES = {"kernel": (4, 3), "bias": (3,), "scale": (), "filters": (2, 2, 3, 2)}
NATIVE = {
    sample.name: sample.make
    for sample in samples.SAMPLES
    if sample.cls.__module__.startswith("tf_graft.optimizers")
    and not sample.name.startswith("schedule_free")  # they can only be the outermost optimizer
}
BUILT_IN = {name: lambda *a, make=make: wrap(make(*a)) for name, make in samples.BUILT_IN.items()}
EVERY = {**NATIVE, **{f"keras_{name}": make for name, make in BUILT_IN.items()}}


def sgd(rate=0.5, **more):
    return tf_graft.SGD(rate, **more)


def adam(rate=0.25, **more):
    return tf_graft.Adam(rate, **more)


# G03, G04: every pair, as pure functions of one trajectory.


class Run:
    """An optimizer's own proposals along fixed weights and gradients, and its state before each."""

    def __init__(self, optimizer, shapes=SHAPES, steps=2):
        self.optimizer, self.shapes = optimizer, shapes
        model = variables(weights(shapes))
        optimizer.build(list(model.values()))
        state = {k: tf.constant(v) for k, v in state_of(optimizer).items()}
        self.shared = {role: state[role] for role in optimizer.shared_slots()}
        slots = {
            path: {r: state[f"{path}/{r}"] for r in optimizer.slots_for(path)} for path in model
        }
        self.states, self.steps, self.after = [], [], []
        self.rates = {role: tf.constant(RATE) for role in optimizer.rule.rates()}
        for number in range(steps):
            self.shared = self.shared | optimizer.advance(self.shared, self.rates, t_of(number))
            self.states.append({path: s | self.shared for path, s in slots.items()})
            points = points_of(shapes, number, self.states[-1], self.rates)
            proposed = list(optimizer.rule.proposals(points))
            self.steps.append(dict(zip(shapes, (d.numpy() for d, _ in proposed), strict=True)))
            self.after.append(dict(zip(shapes, (new for _, new in proposed), strict=True)))
            slots = {path: s | self.after[-1][path] for path, s in slots.items()}


def t_of(number):
    return tf.constant(number + 1.0)


def points_of(shapes, number, states, rates):
    w, g = weights(shapes, seed=number), gradients(number + 1, shapes)[number]
    return [
        Point(path, tf.constant(g[path]), tf.constant(w[path]), states[path], rates, t_of(number))
        for path in shapes
    ]


def grafted(magnitude, direction, number, **options):
    """The graft's proposals for what two runs saw at that step."""
    graft = tf_graft.AdaGraft("sgd", "sgd", **options)
    built = {"magnitude": magnitude.optimizer, "direction": direction.optimizer}
    vars(graft).update({f"{role}_optimizer": x for role, x in built.items()})  # set, it is refused
    children = {"magnitude": magnitude, "direction": direction}
    states, rates = {}, {"learning_rate": tf.constant(0.5)}
    for path in magnitude.shapes:
        states[path] = {}
        for role, child in children.items():
            states[path] |= under(role, child.states[number][path])
    for role, child in children.items():
        rates |= under(role, child.rates)
    points = points_of(magnitude.shapes, number, states, rates)
    return dict(zip(magnitude.shapes, graft.rule.proposals(points), strict=True))


def length(steps):
    return np.sqrt(sum((d.astype("float64") ** 2).sum() for d in steps))


def assert_is_the_graft(magnitude, direction, number, **options):
    """The magnitude's norm, the direction's unit vector, and both children's state."""
    proposed = grafted(magnitude, direction, number, **options)
    m, d = magnitude.steps[number], direction.steps[number]
    groups = [list(m)] if options.get("use_global_norm") else [[path] for path in m]
    for group in groups:
        expected = length(m[path] for path in group)
        unit = length(d[path] for path in group)
        np.testing.assert_allclose(
            length(proposed[p][0].numpy() for p in group), 0.5 * expected, 2e-6
        )
        for path in group:
            along = proposed[path][0].numpy() / (0.5 * expected)
            np.testing.assert_allclose(along, d[path] / unit, rtol=2e-6, atol=1e-9, err_msg=path)
    for path, (_, new) in proposed.items():
        after = under("magnitude", magnitude.after[number][path])
        after |= under("direction", direction.after[number][path])
        assert new.keys() == after.keys()
        for role, value in after.items():
            np.testing.assert_array_equal(new[role], value, err_msg=role)


def assert_pairs_are_grafts(runs, numbers):
    for a, b, number in itertools.product(runs, runs, numbers):
        assert_is_the_graft(runs[a], runs[b], number)
        assert_is_the_graft(runs[a], runs[b], number, use_global_norm=True)


def assert_all_pairs_are_grafts(runs):
    """With the norm of all variables or of each, in turn."""
    for (i, a), (j, b) in itertools.product(enumerate(runs), enumerate(runs)):
        norm = {"use_global_norm": True} if (i + j) % 2 else {}
        assert_is_the_graft(runs[a], runs[b], 1, **norm)


@pytest.mark.slow
def test_some_pairs():
    names = ("adam", "rmsprop_momentum", "keras_nadam", "keras_lamb")
    assert_pairs_are_grafts({name: Run(EVERY[name](RATE)) for name in names}, (0, 1))


@pytest.mark.rare
def test_all_ordered_pairs_of_keras_built_ins():
    assert len(BUILT_IN) >= 16
    assert_all_pairs_are_grafts({name: Run(make(RATE)) for name, make in BUILT_IN.items()})


@pytest.mark.rare
def test_all_ordered_pairs_of_our_own():
    assert len(NATIVE) >= 11
    assert_all_pairs_are_grafts({name: Run(make(RATE)) for name, make in NATIVE.items()})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "option"),
    [
        pytest.param(
            *(name, {"use_global_norm": number % 6 == 3}),
            marks=[pytest.mark.slow] * (name not in ("adamw", "keras_nadam")),
        )
        for number, name in enumerate(EVERY)
        if number % 3 == 0 or name in ("adamw", "keras_nadam")
    ],
    ids=str,
)
def test_grafted_on_itself_it_is_itself(name, option):
    """G03, through `apply` in a function; the steps of each pair: `test_all_ordered_pairs`."""
    graft = tf_graft.AdaGraft(EVERY[name](RATE), EVERY[name](RATE), **option)
    assert_same_steps(graft, EVERY[name](RATE))


def assert_same_steps(graft, alone, steps=4, rounding=2e-6):
    models = [list(variables(weights(SHAPES)).values()) for _ in range(2)]
    for optimizer, model in zip((graft, alone), models, strict=True):
        optimizer.build(model)
    apply = tf.function(lambda g: [o.apply(g) for o in (graft, alone)] and None)
    for number, g in enumerate(gradients(steps, SHAPES), 1):
        apply([tf.constant(value) for value in g.values()])
        for mine, theirs in zip(*models, strict=True):
            np.testing.assert_allclose(
                mine.numpy(), theirs.numpy(), rtol=0, atol=number * rounding * 3, err_msg=mine.path
            )


# What lingvo's did: `goldens/adagraft.json`.

CASES = json.loads((pathlib.Path(__file__).parent / "goldens" / "adagraft.json").read_text())[
    "cases"
]
REPRODUCED = [
    "float64_core",
    "global_norm",
    "identity",
    "lingvo_unit_test",
    "lr_zero",
    "none_gradient",
    "sgd_mag_adam_dir",
    "tiny_norm_float32",
    "tiny_norm_float64",
    "zero_direction_norm",
]
# Where the recording shows a bug; each has a test of its own below.
BETTERED = [
    "float64_python_lr",
    "global_norm_diagnostic__graph_mode_bug",
    "global_norm_first_zero__graph_mode_bug",
    "global_norm_last_zero",
    "nan_gradient",
    "steps_below_ulp",
]
ROLES = {"m": "momentum", "v": "velocity", "momentum": "momentum"}


def child_of(config):
    """TensorFlow 1's optimizers in our terms: at a constant rate the momentum is the same."""
    rate = config["learning_rate"]
    if config["class"] == "Adam":
        return tf_graft.Adam(rate, config["beta1"], config["beta2"], epsilon=1e-8)
    return tf_graft.SGD(rate, momentum=config.get("momentum", 0.0))


def oracle_of(config):
    rate = float(np.float32(config["learning_rate"]))
    if config["class"] == "Adam":
        betas = {"beta_1": config["beta1"], "beta_2": config["beta2"]}
        return oracles.Child(oracles.adam, rate, epsilon=1e-8, **betas)
    return oracles.Child(oracles.sgd, rate, momentum=config.get("momentum", 0.0))


def options_of(case):
    children = ("magnitude_optimizer", "direction_optimizer")
    return {name: value for name, value in case["config"].items() if name not in children}


def graft_of(case, **more):
    children = {
        name: child_of(case["config"][name])
        for name in ("magnitude_optimizer", "direction_optimizer")
    }
    return tf_graft.AdaGraft(**children, **options_of(case) | more)


def replay(case, graft, function=False):
    """The weights after each recorded step."""
    dtype = case["dtype"]
    model = variables({path: np.array(w, dtype) for path, w in case["initial"].items()})
    graft.build(list(model.values()))

    def apply(*grads):
        graft.apply(list(grads), list(model.values()))

    apply = tf.function(apply) if function else apply
    history = []
    for grads in case["gradients"]:
        with warnings.catch_warnings():
            if any(g is None for g in grads):
                warnings.simplefilter("ignore")
            apply(*(None if g is None else tf.constant(np.array(g, dtype)) for g in grads))
        history.append({path: v.numpy() for path, v in model.items()})
    return history


def oracle_history(case):
    """What is right: the float64 oracle along the recorded gradients."""
    hyper = {
        role: oracle_of(case["config"][f"{role}_optimizer"]) for role in ("magnitude", "direction")
    }
    hyper["use_global_norm"] = case["config"].get("use_global_norm", False)
    rate = float(np.float32(case["config"]["learning_rate"]))
    oracle = oracles.Oracle(oracles.adagraft, case["initial"], rate, hyper)
    history = []
    for grads in case["gradients"]:
        oracle.apply(dict(zip(case["initial"], grads, strict=True)))
        history.append(dict(oracle.w))
    return history


def assert_history(actual, expected, dtype="float32"):
    # in float64 the rates are still kept in float32
    rtol, atol = (1e-7, 1e-60) if dtype == "float64" else (2e-6, 2e-6)
    for ours, theirs in zip(actual, expected, strict=True):
        for path, value in theirs.items():
            value = np.array(value, "float64")
            np.testing.assert_allclose(ours[path], value, rtol=rtol, atol=atol, err_msg=path)


def test_every_recording_has_its_place():
    assert sorted(CASES) == sorted(REPRODUCED + BETTERED)


@pytest.mark.parametrize("name", REPRODUCED)
@pytest.mark.parametrize("function", [False, True], ids=["eager", "function"])
def test_reproduces(name, function):
    case = CASES[name]
    graft = graft_of(case)
    assert_history(replay(case, graft, function), case["variables"], case["dtype"])
    state = state_of(graft)
    for slot, recorded in case["slots"].items():
        role, _, old = slot.partition("/")
        for path, value in recorded.items():
            actual = state[f"{path}/{role}/{ROLES[old]}"]
            if case["config"][f"{role}_optimizer"]["class"] == "Momentum":
                # ours has the rate inside, and the sign
                actual = -actual / case["config"][f"{role}_optimizer"]["learning_rate"]
            np.testing.assert_allclose(actual, value, rtol=2e-6, atol=1e-7, err_msg=slot)


def test_the_comparison_notices_a_wrong_rate():
    case = CASES["sgd_mag_adam_dir"]
    with pytest.raises(AssertionError):
        assert_history(replay(case, graft_of(case, learning_rate=0.9001)), case["variables"])


def test_float64_with_a_python_rate():
    """Was an InvalidArgumentError."""
    case = CASES["float64_python_lr"]
    assert case["error"] == "InvalidArgumentError"
    assert_history(replay(case, graft_of(case)), oracle_history(case), "float64")


@pytest.mark.parametrize("function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize(
    "name",
    [
        "global_norm_diagnostic__graph_mode_bug",
        "global_norm_first_zero__graph_mode_bug",
        "global_norm_last_zero",
    ],
)
def test_the_global_norm_moves_what_it_should(name, function):
    """In a graph nothing ever moved; nor did anything where the last direction was zero."""
    case = CASES[name]
    history = replay(case, graft_of(case), function)
    assert_history(history, oracle_history(case))
    still = case["variables"][0]["v1"]
    assert still == case["initial"]["v1"]
    assert (history[0]["v1"] != np.array(still, "float32")).all()


def test_a_nan_changes_nothing_and_training_goes_on():
    """Was left in both children's slots, and froze the variable for good."""
    case = CASES["nan_gradient"]
    graft = graft_of(case)
    history = replay(case, graft)
    bad = [i for i, gs in enumerate(case["gradients"]) if not np.isfinite(flat(gs)).all()]
    good = [i for i in range(len(history)) if i not in bad]
    clean = case | {"gradients": [case["gradients"][i] for i in good]}
    assert_history([history[i] for i in good], oracle_history(clean))
    assert int(graft.skipped_steps.numpy()) == len(bad) == 1
    assert len(good) >= 2
    assert good[-1] > bad[0]


def test_a_nan_applied_as_told_stops_its_own_variable():
    """As it was recorded, but that the children's slots are asked to keep it."""
    case = CASES["nan_gradient"]
    assert_history(replay(case, graft_of(case, nonfinite="apply")), case["variables"])


def flat(gradients_of_step):
    return np.concatenate([np.array(g, "float64").ravel() for g in gradients_of_step])


def test_steps_below_an_ulp_are_measured_as_they_are():
    """Was the difference of stored weights, so that 1e-4 on 1e4 had no length."""
    case = CASES["steps_below_ulp"]
    graft = graft_of(case, diagnostic=True)
    history = replay(case, graft)
    assert_history(history, oracle_history(case))
    state = state_of(graft)
    g = np.array([step[0] for step in case["gradients"]])
    momentum = np.zeros_like(g[0])
    for step in g:
        momentum = 0.9 * momentum + step
    np.testing.assert_allclose(state["v0/magnitude_norm"], np.linalg.norm(g[-1]), rtol=1e-6)
    np.testing.assert_allclose(state["v0/direction_norm"], np.linalg.norm(momentum), rtol=1e-6)
    recorded = np.array([step["v0"][2] for step in case["variables"]])
    assert np.abs(recorded - [step["v0"][2] for step in history]).max() > 1e-6


@pytest.mark.parametrize("use_global_norm", [False, True])
@pytest.mark.parametrize("bad", [0.0, np.inf], ids=["zero", "infinite"])
def test_a_direction_without_a_length_stops_its_variable(bad, use_global_norm):
    """Zero, or too long for its norm; the others go on unless the norm is of all."""
    graft = tf_graft.AdaGraft(
        tf_graft.SGD(1.0), tf_graft.SGD(1.0), use_global_norm=use_global_norm, nonfinite="apply"
    )
    model = [tf.Variable([1.0, 2.0]), tf.Variable([3.0])]
    graft.apply([tf.constant([bad, bad]), tf.constant([1.0])], model)
    np.testing.assert_array_equal(model[0], [1.0, 2.0])
    all_stop = use_global_norm and bad
    np.testing.assert_allclose(model[1], [3.0] if all_stop else [2.0])


def test_a_magnitude_of_zero_does_not_move():
    w = tf.Variable([1.0, 2.0])
    tf_graft.AdaGraft(sgd(0.0), sgd()).apply([tf.constant([1.0, 1.0])], [w])
    np.testing.assert_array_equal(w, [1.0, 2.0])


# Row-sparse gradients (lingvo's never trained).


def test_rows_are_grafted_by_the_norms_of_the_touched_rows():
    """Against the equations: each row with slots of its own, the norm over those of the step."""
    ids = [[1, 1, 2], [0, 3, 0, 0], [4, 1], [5, 5, 3], [0]]
    start = weights({"table": (7, 3)})["table"]
    table = variables({"table": start})["table"]
    graft = tf_graft.AdaGraft(sgd(0.5, momentum=0.9), adam(0.25), 0.5)
    exact = start.astype("float64")
    rows = [({}, {}) for _ in exact]
    random = np.random.default_rng(3)
    for t, touched in enumerate(ids, 1):
        values = random.normal(size=(len(touched), 3)).astype("float32")
        graft.apply([slices(touched, values)], [table])
        dense = np.zeros_like(exact)
        np.add.at(dense, touched, values)
        distinct = sorted(set(touched))
        m = np.stack(
            [oracles.sgd(dense[i], exact[i], rows[i][0], 0.5, t, momentum=0.9) for i in distinct]
        )
        d = np.stack([oracles.adam(dense[i], exact[i], rows[i][1], 0.25, t) for i in distinct])
        exact[distinct] += 0.5 * np.linalg.norm(m) / np.linalg.norm(d) * d
        np.testing.assert_allclose(table.numpy(), exact, rtol=0, atol=t * 1e-6)
    np.testing.assert_array_equal(table.numpy()[6], start[6])


def test_global_norms_span_rows_and_dense_variables_and_precisions():
    graft = tf_graft.AdaGraft(sgd(1.0), sgd(3.0), use_global_norm=True)
    table, half, double = (
        tf.Variable(tf.zeros([3, 2])),
        tf.Variable(tf.zeros([2], tf.bfloat16)),
        tf.Variable(tf.zeros([1], tf.float64)),
    )
    grads = [
        slices([1, 1], np.ones([2, 2], "float32")),
        tf.constant([2.0, 4.0], tf.bfloat16),
        tf.constant([-8.0], tf.float64),
    ]
    graft.apply(grads, [table, half, double])
    np.testing.assert_allclose(table.numpy(), [[0, 0], [-2, -2], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(tf.cast(half, "float32"), [-2, -4], rtol=1e-2)
    np.testing.assert_allclose(double.numpy(), [8], rtol=1e-6)


# Children.


def test_the_same_child_twice_is_refused():
    child = tf_graft.SGD(0.1)
    for twice in ((child, child), (stock := keras.optimizers.SGD(0.1), stock)):
        with pytest.raises(ValueError, match=r"^AdaGraft\(magnitude_optimizer=\.\.\.\): the same"):
            tf_graft.AdaGraft(*twice)


PIPELINE = {
    "clipnorm": 1.0,
    "clipvalue": 1.0,
    "global_clipnorm": 1.0,
    "use_ema": True,
    "loss_scale_factor": 2.0,
    "gradient_accumulation_steps": 2,
    "jit_compile": False,
    "sparse": "exact",
    "nonfinite": "apply",
}


@pytest.mark.parametrize("name", PIPELINE)
def test_a_child_that_would_do_what_is_done_for_all_is_refused(name):
    value = PIPELINE[name]
    message = f"AdaGraft(direction_optimizer=SGD({name}={value!r})): {name} is one for all"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}.*; give it to AdaGraft"):
        tf_graft.AdaGraft("adam", tf_graft.SGD(0.1, **{name: value}))
    in_keras = {"clipnorm", "clipvalue", "global_clipnorm", "use_ema"} & {name}
    for option in in_keras:
        message = f"AdaGraft(magnitude_optimizer=SGD({option}={value!r})): {option} is one"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            tf_graft.AdaGraft(keras.optimizers.SGD(0.1, **{option: value}), "adam")


@pytest.mark.parametrize(
    ("child", "error", "message"),
    [
        ("adem", ValueError, r"there is no such optimizer"),
        (None, TypeError, r"get\(None\): give an optimizer, a name"),
        ({"name": "sgd", "momentum": 3}, ValueError, r"SGD\(momentum=3\)"),
    ],
)
def test_what_is_no_optimizer_is_refused(child, error, message):
    with pytest.raises(error, match=message):
        tf_graft.AdaGraft("adam", child)


def test_a_child_that_has_been_built_is_refused():
    """Its state would be left behind without a word."""
    for built in (tf_graft.Adam(0.1), keras.optimizers.Adam(0.1)):
        built.build([tf.Variable([1.0])])
        with pytest.raises(ValueError, match="is already built"):
            tf_graft.AdaGraft(built, "sgd")


def test_children_by_name_config_and_object():
    for child in ("ftrl", {"name": "ftrl"}, tf_graft.Ftrl()):
        graft = tf_graft.AdaGraft(child, "sgd")
        assert type(graft.magnitude_optimizer) is tf_graft.Ftrl
        assert type(graft.direction_optimizer) is tf_graft.SGD
    stock = keras.optimizers.Ftrl()
    for child in (keras.optimizers.serialize(stock), stock, wrap(keras.optimizers.Ftrl())):
        graft = tf_graft.AdaGraft(child, "sgd")
        assert type(graft.magnitude_optimizer.optimizer) is keras.optimizers.Ftrl


def one_step(graft, w):
    graft.build([w])
    return tf.function(lambda gradient: graft.apply([gradient], [w]))


def test_rates_are_reachable_and_settable_in_what_has_been_traced():
    graft, w = tf_graft.AdaGraft(sgd(0.5), adam(0.25), learning_rate=2.0), tf.Variable([0.0])
    step = one_step(graft, w)

    def moved():
        before = w.numpy()
        step(tf.constant([1.0]))
        return float((before - w.numpy())[0])

    assert float(graft.learning_rate.numpy()) == 2.0
    assert float(graft.magnitude_optimizer.learning_rate.numpy()) == 0.5
    assert moved() == pytest.approx(1.0)
    graft.learning_rate = 1.0
    assert moved() == pytest.approx(0.5)
    graft.magnitude_optimizer.learning_rate = 0.125
    assert moved() == pytest.approx(0.125)
    graft.magnitude_optimizer.learning_rate.assign(0.25)
    assert moved() == pytest.approx(0.25)
    graft.direction_optimizer.learning_rate = 123.0  # cancels out
    assert moved() == pytest.approx(0.25)
    for rate in (-1.0, "fast", None):
        with pytest.raises((ValueError, TypeError), match=r"^SGD\(learning_rate="):
            graft.magnitude_optimizer.learning_rate = rate


@pytest.mark.parametrize("between", [None, np.nan], ids=["micro-steps", "skipped steps"])
@pytest.mark.parametrize("stock", [False, True], ids=["ours", "keras"])
def test_schedules_of_children_are_of_the_grafts_count(stock, between):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [1.0, 0.5, 0.25])
    magnitude = (keras.optimizers.SGD if stock else tf_graft.SGD)(schedule)
    graft = tf_graft.AdaGraft(magnitude, sgd(), gradient_accumulation_steps=None if between else 2)
    w, seen = tf.Variable([0.0]), []
    step = one_step(graft, w)
    for _ in range(3):
        for gradient in (between or 1.0, 1.0):
            seen.append(float(tf.convert_to_tensor(graft.magnitude_optimizer.learning_rate)))
            step(tf.constant([gradient]))
    assert seen == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    assert int(graft.iterations.numpy()) == 3
    assert float(w[0]) == pytest.approx(-1.75)


def test_a_rate_that_is_a_schedule_cannot_be_set():
    schedule = tf_graft.schedules.PolyDecay(1.0, decay_steps=4, power=1.0)
    graft = tf_graft.AdaGraft("adam", "sgd", learning_rate=schedule)
    with pytest.raises(TypeError, match="cannot be set to"):
        graft.learning_rate = 1.0


def test_the_norms_are_kept_where_asked():
    graft, w = tf_graft.AdaGraft(sgd(0.5), adam(0.25), diagnostic=True), tf.Variable([0.0, 0.0])
    graft.apply([tf.constant([3.0, 4.0])], [w])
    (norms,) = graft.norms().values()
    assert norms.variable is w
    assert float(norms.magnitude.numpy()) == pytest.approx(2.5)
    assert float(norms.direction.numpy()) == pytest.approx(0.25 * np.sqrt(2), rel=1e-5)
    with pytest.raises(ValueError, match="diagnostic=True"):
        tf_graft.AdaGraft("sgd", "adam").norms()
    with pytest.raises(ValueError, match="built first"):
        tf_graft.AdaGraft("sgd", "adam", diagnostic=True).norms()
    assert not [v for v in tf_graft.AdaGraft("sgd", "adam").variables if v.name in NORMS]


# Configs.


def everything():
    """A graft of which every part differs from its default."""
    schedule = tf_graft.schedules.Warmup(keras.optimizers.schedules.CosineDecay(0.1, 100), steps=5)
    inner = tf_graft.AdaGraft(
        keras.optimizers.Nadam(0.01, beta_1=0.8), tf_graft.Adagrad(schedule), name="inner"
    )
    outer = tf_graft.SGD(0.25, momentum=0.5, exclude_from_weight_decay=["bias"], weight_decay=0.1)
    return tf_graft.AdaGraft(
        inner,
        outer,
        learning_rate=schedule,
        use_global_norm=True,
        diagnostic=True,
        global_clipnorm=1.0,
        name="outer",
    )


@pytest.mark.slow
def test_config_holds_children_schedules_and_options():
    graft = everything()
    config = graft.get_config()
    kept = copy.deepcopy(config)
    twin = tf_graft.AdaGraft.from_config(config)
    assert config == kept
    assert twin.get_config() == config
    again = tf_graft.deserialize(json.loads(json.dumps(tf_graft.serialize(graft))))
    assert again.get_config() == config
    inner = again.magnitude_optimizer
    assert inner.magnitude_optimizer.optimizer.beta_1 == 0.8
    assert isinstance(inner.direction_optimizer.learning_rate, tf.Tensor)
    assert again.direction_optimizer.momentum == 0.5
    assert_same_steps(again, everything(), rounding=0)


def test_a_child_rate_set_later_is_in_the_config():
    graft = tf_graft.AdaGraft(sgd(0.5), adam(0.25))
    graft.magnitude_optimizer.learning_rate = 0.125
    twin = tf_graft.deserialize(tf_graft.serialize(graft))
    assert float(twin.magnitude_optimizer.learning_rate.numpy()) == 0.125


# Saving: `test_saving.py` has the ways.


@pytest.mark.slow
@saving.each_way
def test_resumes_bit_for_bit_with_rates_set_meanwhile(way, tmp_path):
    def make():
        inner = tf_graft.AdaGraft(sgd(momentum=0.5, name="a"), adam(), name="inner")
        return tf_graft.AdaGraft(inner, keras.optimizers.Nadam(0.1), 0.5, name="optimizer")

    model = saving.compiled(make())
    saving.train(model, 0, 2)
    model.optimizer.learning_rate = 0.25
    model.optimizer.magnitude_optimizer.magnitude_optimizer.learning_rate = 0.375
    saving.train(model, 2, 3)
    load = way(model, tmp_path)
    resumed = load(saving.compiled(make()))
    assert_same_state(saving.everything(resumed), saving.everything(model))
    inner = resumed.optimizer.magnitude_optimizer.magnitude_optimizer
    assert float(inner.learning_rate.numpy()) == 0.375
    for turn in (model, resumed):
        saving.train(turn, 3, 6)
    assert_same_state(saving.everything(resumed), saving.everything(model))


SWAPPED = {
    "swapped": lambda: tf_graft.AdaGraft(adam(), sgd(momentum=0.9), name="optimizer"),
    "another": lambda: tf_graft.AdaGraft("rmsprop", adam(), name="optimizer"),
    "in keras": lambda: tf_graft.AdaGraft(
        keras.optimizers.SGD(0.5, momentum=0.9), adam(), name="optimizer"
    ),
    "not grafted": lambda: tf_graft.Adam(0.25, name="optimizer"),
    "diagnostic": lambda: tf_graft.AdaGraft(
        sgd(momentum=0.9), adam(), diagnostic=True, name="optimizer"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "way"),
    list(zip(SWAPPED, itertools.cycle([saving.weights_file, saving.checkpoint]), strict=False)),
)
def test_the_state_of_other_children_is_refused(other, way, tmp_path):
    saved = saving.trained(tf_graft.AdaGraft(sgd(momentum=0.9), adam(), name="optimizer"))
    load = way(saved, tmp_path)
    target = saving.trained(SWAPPED[other]())
    before = state_of(target.optimizer)
    with pytest.raises(ValueError, match=r"othing was loaded"):
        load(target)
    assert_same_state(state_of(target.optimizer), before)


# Keras around it.


def fitted(optimizer, callbacks=(), epochs=2, **compiled):
    random = np.random.default_rng(0)
    x = random.normal(size=(24, 3)).astype("float32")
    y = x @ np.array([[1.0], [-2.0], [0.5]], "float32")
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input([3]), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
    )
    model.compile(optimizer=optimizer, loss="mse", **compiled)
    history = model.fit(
        x,
        y,
        batch_size=4,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
        validation_data=(x, y),
    )
    return model, history.history


@pytest.mark.slow
def test_fit_reduces_the_grafts_rate_on_a_plateau():
    never_better = keras.callbacks.ReduceLROnPlateau(
        monitor="loss", factor=0.5, patience=1, min_delta=1e9
    )
    model, history = fitted(
        tf_graft.AdaGraft(sgd(0.02), adam(), 1.0), [never_better], epochs=4, steps_per_execution=3
    )
    np.testing.assert_allclose(history["learning_rate"], [1.0, 1.0, 0.5, 0.25])
    assert history["loss"][-1] < history["loss"][0]
    assert float(model.optimizer.magnitude_optimizer.learning_rate.numpy()) == np.float32(0.02)
    assert int(model.optimizer.iterations.numpy()) == 24


@pytest.mark.slow
def test_fit_under_a_learning_rate_scheduler_and_swapped_averages():
    graft = tf_graft.AdaGraft(
        adam(0.01), keras.optimizers.Adamax(), 1.0, use_ema=True, ema_momentum=0.5
    )
    rates = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (1 + epoch))
    model, history = fitted(graft, [rates, keras.callbacks.SwapEMAWeights()])
    np.testing.assert_allclose(history["learning_rate"], [1.0, 0.5])
    assert history["loss"][-1] < history["loss"][0]
    averages = [v.numpy() for v in graft.synchronized_averages()]
    for variable, average in zip(model.trainable_variables, averages, strict=True):
        np.testing.assert_array_equal(variable.numpy(), average)


@pytest.mark.slow
def test_fit_in_mixed_precision_and_compiled():
    plain, _ = fitted(tf_graft.AdaGraft(adam(0.01), sgd()))
    compiled, _ = fitted(tf_graft.AdaGraft(adam(0.01), sgd()), jit_compile=True)
    for a, b in zip(plain.trainable_variables, compiled.trainable_variables, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model, history = fitted(tf_graft.AdaGraft(adam(0.01), sgd()))
    finally:
        keras.config.set_dtype_policy(before)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert history["loss"][-1] < history["loss"][0]


# The checks notice what they are for.


class _ForgetsTheLength(tf_graft.AdaGraft):
    def propose(self, points):
        for d, slots in super().propose(points):
            yield d * 1.0001, slots


class _ForgetsState(tf_graft.AdaGraft):
    def propose(self, points):
        for d, slots in super().propose(points):
            yield d, {role: s for role, s in slots.items() if not role.startswith("direction")}


@pytest.mark.parametrize("broken", [_ForgetsTheLength, _ForgetsState])
def test_notices_a_broken_graft(broken, monkeypatch):
    run = Run(tf_graft.Adam(RATE))
    assert_is_the_graft(run, run, 0)
    monkeypatch.setattr(tf_graft, "AdaGraft", broken)
    with pytest.raises(AssertionError):
        assert_is_the_graft(run, run, 0)
