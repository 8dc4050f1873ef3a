"""G01, G02: the update is the paper's, and Keras' own where that is right."""

import keras
import numpy as np
import pytest

import tf_graft
from support.samples import (
    BY_NAME,
    DECAYING_THEMSELVES,
    OPTIONS,
    RATE,
    each,
    each_in_turn,
    each_option,
    gradients,
    having,
    spread,
    variables,
    weights,
)

STEPS = 4
# In float64 too the rate is kept in float32: Keras makes that variable, in its `floatx`.
STORED_RATE = float(np.float32(RATE))

# (what the optimizer is given, the same as a function of the updates made so far)
RATES = {
    "constant": (lambda: RATE, lambda count: STORED_RATE),
    "schedule": (
        # exact in float32
        lambda: keras.optimizers.schedules.PiecewiseConstantDecay([0, 2], [0.25, 0.125, 0.0625]),
        lambda count: 0.25 if count <= 0 else 0.125 if count <= 2 else 0.0625,
    ),
    "callable": (lambda: lambda: RATE, lambda count: STORED_RATE),
}


def assert_follows_oracle(optimizer, oracle, dtype, rtol, steps=STEPS):
    """The weights after each step are the oracle's.

    What is allowed for each step is one rounding of the weight and `rtol` of the largest step so
    far, both as float32 would make them, or both 2^29 times finer in float64.
    """
    fine = np.finfo(dtype).eps / np.finfo("float32").eps
    model = variables(oracle.w, dtype)
    largest = dict.fromkeys(model, 0.0)
    for number, g in enumerate(gradients(steps, dtype=dtype), 1):
        before = dict(oracle.w)
        optimizer.apply([g[path] for path in model], list(model.values()))
        oracle.apply(g)
        assert int(optimizer.iterations.numpy()) == oracle.count
        for path, variable in model.items():
            expected = oracle.w[path]
            largest[path] = max(largest[path], np.abs(expected - before[path]).max())
            allowed = np.finfo(dtype).eps * np.abs(expected) + fine * rtol * largest[path]
            error = np.abs(variable.numpy().astype("float64") - expected)
            assert np.all(error <= number * allowed), (
                f"step {number}, '{path}': {error.max():.2e} off, {(number * allowed).min():.2e} "
                "allowed"
            )
    if oracle.options.get("use_ema"):
        optimizer.finalize_variable_values(list(model.values()))
        oracle.finalize()
        for path, variable in model.items():
            allowed = STEPS * (fine * rtol * largest[path] + np.finfo(dtype).eps * 3)
            assert np.abs(variable.numpy() - oracle.w[path]).max() <= allowed, (
                f"average of '{path}'"
            )


def float32_weights(dtype="float32"):
    return {path: w.astype(dtype) for path, w in weights().items()}


@each(having("oracle"))
@pytest.mark.parametrize("option", ["plain", "together"])
def test_follows_the_papers_equations(sample, option):
    assert_follows_equations(sample, option)


SOME = spread([s.name for s in having("oracle")], [*OPTIONS], every=5)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        *((name, option) for name in ("adagrad", "adam") for option in OPTIONS),
        *(
            pytest.param(name, option, marks=pytest.mark.slow)
            for name, options in SOME.items()
            for option in options
            if name not in ("adagrad", "adam") and option not in ("plain", "together")
        ),
    ],
)
def test_follows_the_papers_equations_with(name, option):
    assert_follows_equations(BY_NAME[name], option)


def assert_follows_equations(sample, option):
    oracle = sample.make_oracle(float32_weights(), STORED_RATE, **OPTIONS[option])
    assert_follows_oracle(sample.make(**OPTIONS[option]), oracle, "float64", sample.rtol)


@each_in_turn("option", ["plain", "together"], having("oracle"))  # each option: above
def test_follows_the_papers_equations_in_float32(sample, option):
    oracle = sample.make_oracle(float32_weights(), STORED_RATE, **OPTIONS[option])
    assert_follows_oracle(sample.make(**OPTIONS[option]), oracle, "float32", sample.rtol)


@each_in_turn("option", ["schedule", "callable", "schedule and accumulation"], having("oracle"))
def test_follows_a_changing_rate(sample, option):
    kind, *more = option.split(" and ")
    given, known = RATES[kind]
    options = OPTIONS[more[0]] if more else {}
    oracle = sample.make_oracle(float32_weights(), known, **options)
    assert_follows_oracle(sample.make(given(), **options), oracle, "float64", sample.rtol)


DECAY_MODES = {
    "cautious": "cautious_decay",
    "corrected": {"name": "corrected_decay", "max_learning_rate": 0.25},
}
WITH_MODES = [s for s in having("oracle") if s.cls.__name__ not in DECAYING_THEMSELVES]
QUICK_MODES = ("sgd_momentum", "momentum", "adam", "lion", "muon", "hyperball", "cautious")
QUICK_MODES += ("larc_clip", "multi", "graft_sgd_adam", "wrapped_lion")


@each(WITH_MODES, quick=QUICK_MODES)
@pytest.mark.parametrize("mode", DECAY_MODES)
def test_follows_the_papers_equations_of_weight_decay(sample, mode):
    given, known = RATES["schedule"]
    options = {"weight_decay": 0.2, "weight_decay_mode": DECAY_MODES[mode]}
    oracle = sample.make_oracle(float32_weights(), known, **options)
    assert_follows_oracle(sample.make(given(), **options), oracle, "float64", sample.rtol)


@pytest.mark.parametrize("mode", DECAY_MODES)
@pytest.mark.parametrize("name", ["graft_sgd_adam", "multi"])
def test_follows_the_papers_equations_of_weight_decay_inside(name, mode):
    sample, options = BY_NAME[name], {"weight_decay": 0.2, "weight_decay_mode": DECAY_MODES[mode]}
    oracle = sample.make_oracle(float32_weights(), STORED_RATE, inside=options)
    assert_follows_oracle(sample.make(inside=options), oracle, "float64", sample.rtol)


HYPERPARAMETERS = {
    "sgd": {"momentum": 1.0},
    "sgd_nesterov": {"momentum": 0.3},
    "adagrad": {"initial_accumulator_value": 0.0, "epsilon": 0.01},
    "adadelta": {"rho": 0.3, "epsilon": 0.1},
    "rmsprop": {"rho": 0.3, "epsilon": 0.1},
    "rmsprop_momentum": {"rho": 0.0, "momentum": 1.0},
    "rmsprop_centered_momentum": {"rho": 0.5, "epsilon": 0.01},
    "adam": {"beta_1": 0.3, "beta_2": 0.6, "epsilon": 0.1},
    "adam_amsgrad": {"beta_1": 0.0, "beta_2": 0.3},
    "adamw": {"weight_decay": 0.0, "beta_1": 0.5},
    "lars": {"momentum": 0.3, "eeta": 1.0, "epsilon": 0.5, "nesterov": True},
    "lars_popular_nesterov": {"nesterov": False, "exclude_from_layer_adaptation": ["kernel"]},
    "lars_sum_of_norms": {"momentum": 0.5, "epsilon": 0.1, "weight_decay_rate": 0.5},
    "lamb": {"beta_1": 0.3, "beta_2": 0.6, "epsilon": 0.1, "exclude_from_layer_adaptation": ["b"]},
    "larc_clip": {"eta": 0.02, "min_update": 0.3, "epsilon": 0.5},
    "larc_scale": {"eta": 0.01, "min_update": 0.02},
}


@pytest.mark.parametrize("name", HYPERPARAMETERS)
def test_follows_other_hyperparameters(name):
    sample, given = BY_NAME[name], HYPERPARAMETERS[name]
    oracle = sample.make_oracle(float32_weights(), STORED_RATE, **given)
    assert_follows_oracle(sample.make(**given), oracle, "float64", sample.rtol)


def test_betas_of_zero():
    """`beta^t` is taken through a logarithm, which zero does not have."""
    given = {"beta_1": 0.0, "beta_2": 0.0}
    oracle = BY_NAME["adam"].make_oracle(float32_weights(), STORED_RATE, **given)
    # `v + (1 - beta_2) (g^2 - v)` then cancels down to a g^2 that may be much smaller than v.
    assert_follows_oracle(tf_graft.Adam(RATE, **given), oracle, "float32", 1e-4)


@each(having("oracle"))
def test_exclusions_by_variable_and_by_name(sample):
    """Keras' own method says the same as the argument."""
    for given in ({"var_names": ["bias$"]}, {"var_list": [variables(weights())["bias"]]}):
        optimizer = sample.make(weight_decay=0.2)
        optimizer.exclude_from_weight_decay(**given)
        oracle = sample.make_oracle(
            float32_weights(), STORED_RATE, **OPTIONS["weight_decay_excluded"]
        )
        assert_follows_oracle(optimizer, oracle, "float32", sample.rtol)


# Keras, on one device and for dense gradients.


def stock_run(sample, option, dtype="float32", steps=STEPS):
    given = dict(OPTIONS[option])
    patterns = given.pop("exclude_from_weight_decay", None)
    optimizer = sample.make_stock(**given)
    if patterns:
        optimizer.exclude_from_weight_decay(var_names=["bias"])
    return run(optimizer, dtype, steps)


def run(optimizer, dtype="float32", steps=STEPS):
    """The weights after every step, then after `finalize_variable_values`."""
    model = variables(weights(), dtype)
    history = []
    for g in gradients(steps):
        optimizer.apply([g[path] for path in model], list(model.values()))
        history.append({path: v.numpy() for path, v in model.items()})
    optimizer.finalize_variable_values(list(model.values()))
    history.append({path: v.numpy() for path, v in model.items()})
    return history


@each(having("stock"))
def test_equals_keras(sample):
    assert_equals_keras(sample, "plain")


# Wrapped: `test_wrap.py`. Keras decays first, which a step that looks at the weights notices.
@each([sample for sample in having("stock") if sample.oracle and sample.rowwise])
def test_equals_keras_with_decay(sample):
    assert_equals_keras(sample, "weight_decay")


@pytest.mark.parametrize("name", ["sgd_momentum", "adam"])
# "together": under accumulation Keras averages on every micro-step
@each_option("plain", "weight_decay", "multipliers", "together")
def test_equals_keras_with(name, option):
    assert_equals_keras(BY_NAME[name], option)


def assert_equals_keras(sample, option):
    ours = run(sample.make(**OPTIONS[option]))
    stock = stock_run(sample, option)
    moved = max(np.abs(ours[-1][path] - w).max() for path, w in weights().items())
    assert moved > 1e-5
    for mine, theirs in zip(ours, stock, strict=True):
        for path, value in mine.items():
            # an ulp of the weight per step on either side
            rounding = 2 * STEPS * np.finfo("float32").eps * max(1, np.abs(value).max())
            np.testing.assert_allclose(
                value, theirs[path], rtol=0, atol=rounding + sample.stock_rtol * RATE
            )


@pytest.mark.parametrize("name", ["adam", "adam_amsgrad", "adamw"])
def test_is_nearer_to_the_truth_than_keras(name):
    """Keras' `1 - beta_2^t` loses digits in float32. With weights at zero nothing hides it."""
    sample = BY_NAME[name]
    zeros = {path: 0 * w for path, w in weights().items()}
    oracle = sample.make_oracle(zeros, STORED_RATE)
    oracle.apply(gradients(1)[0])
    errors = []
    for optimizer in (sample.make(), sample.make_stock()):
        model = variables(zeros)
        optimizer.apply(list(gradients(1)[0].values()), list(model.values()))
        errors.append(max(np.abs(v.numpy() - oracle.w[p]).max() for p, v in model.items()))
    ours, theirs = errors
    assert ours < 3e-7 * RATE  # a few roundings
    assert theirs > 10 * ours


# The checks notice what they are for.


class _Broken(tf_graft.SGD):
    kernel = None

    def __init__(self, learning_rate, scale=1.0, **common):
        super().__init__(learning_rate, **common)
        self.scale = scale

    def step(self, g, w, s, lr, t):
        return -self.scale * lr * g, {}


class _IgnoresRate(_Broken):
    def step(self, g, w, s, lr, t):
        return -RATE * g, {}


def _forgets(*names):
    """SGD without the arguments named."""
    return lambda **o: tf_graft.SGD(RATE, **{k: v for k, v in o.items() if k not in names})


@pytest.mark.parametrize(
    ("make", "rate", "option", "dtype"),
    [
        (lambda **o: _Broken(RATE, 1 + 1e-5, **o), "constant", "plain", "float32"),
        (lambda **o: _Broken(RATE, 1 + 1e-13, **o), "constant", "plain", "float64"),
        (lambda **o: _IgnoresRate(RATES["schedule"][0](), **o), "schedule", "plain", "float32"),
        (_forgets("global_clipnorm"), "constant", "global_clipnorm", "float32"),
        (_forgets("clipnorm"), "constant", "clipnorm", "float32"),
        (_forgets("clipvalue"), "constant", "clipvalue", "float32"),
        (_forgets("loss_scale_factor"), "constant", "loss_scale", "float32"),
        (_forgets("exclude_from_weight_decay"), "constant", "weight_decay_excluded", "float32"),
        (_forgets("use_ema"), "constant", "ema", "float32"),
        (_forgets("ema_overwrite_frequency"), "constant", "ema_overwrite", "float32"),
        (_forgets("ema_momentum"), "constant", "ema", "float32"),
        (_forgets("gradient_accumulation_steps"), "constant", "accumulation", "float32"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_notices_a_broken_optimizer(make, rate, option, dtype):
    sample = BY_NAME["sgd"]
    oracle = sample.make_oracle(float32_weights(), RATES[rate][1], **OPTIONS[option])
    with pytest.raises(AssertionError):
        assert_follows_oracle(make(**OPTIONS[option]), oracle, dtype, sample.rtol)
