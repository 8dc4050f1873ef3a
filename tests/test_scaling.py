"""Loss scalers: OpenSeq2Seq's recorded scales, float64 oracles, properties, refusals."""

import json
import math
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_graft import scaling
from tf_graft.scaling import (
    AutomaticLossScaler,
    BackoffScaler,
    FixedScaler,
    LogMaxScaler,
    LossScaler,
)

GOLDENS = json.loads((Path(__file__).parent / "goldens" / "loss_scaler.json").read_text())["cases"]
BY_NAME = {case["case"]: case for case in GOLDENS}
# Those that show what is meant; each of the others shows a fault and has a test of its own below.
INTENDED = (
    "backoff_defaults_few_steps",
    "backoff_factor4_not_power",
    "backoff_floor",
    "backoff_initial_window",
    "logmax_defaults_clip",
    "logmax_fast_betas",
)
EXECUTIONS = {"eager": None, "function": False, "xla": True}
# OpenSeq2Seq takes 1 - beta^t in float32, where it loses half its digits at the first steps.
LOGMAX_RTOL = 1e-4

SCALERS = {
    "fixed": FixedScaler(128.0),
    "backoff": BackoffScaler(scale_min=0.7, step_factor=3.0, step_window=3),
    "backoff_hysteresis": BackoffScaler(step_window=5, hysteresis=2),
    "logmax": LogMaxScaler(),
    "logmax_fast": LogMaxScaler(0.1, 2.0**24, 14.5, beta1=0.5, beta2=0.0, overflow_std_dev=0.5),
}
each_scaler = pytest.mark.parametrize("scaler", SCALERS.values(), ids=SCALERS)
each_execution = pytest.mark.parametrize("jit_compile", EXECUTIONS.values(), ids=EXECUTIONS)


def start(scaler):
    return {role: tf.constant(slot.fill, slot.dtype) for role, slot in scaler.slots().items()}


def run(scaler, amax, jit_compile=None):
    """The scale before any update and after each, and the last state; inf and NaN overflow."""
    update = scaler.update
    if jit_compile is not None:
        update = tf.function(update, jit_compile=jit_compile)
    s = start(scaler)
    scales = [scaler.scale(s).numpy()]
    for value in np.asarray(amax, np.float32):
        s = update(s, tf.constant(bool(np.isfinite(value))), tf.constant(value))
        scales.append(scaler.scale(s).numpy())
    return np.array(scales), s


def walk(scaler, amax, jit_compile=False):
    """The same, for many updates in one loop."""

    @tf.function(jit_compile=jit_compile)
    def loop(amax):
        count = tf.size(amax)
        scales = tf.TensorArray(tf.float32, count)

        def body(i, s, scales):
            s = scaler.update(s, tf.math.is_finite(amax[i]), amax[i])
            return i + 1, s, scales.write(i, scaler.scale(s))

        _, s, scales = tf.while_loop(
            lambda i, *_: i < count, body, (0, start(scaler), scales), maximum_iterations=count
        )
        return scales.stack(), s

    scales, s = loop(tf.constant(amax, tf.float32))
    return scales.numpy(), s


# In float64, written from the equations. Subnormal numbers are zeros to the hardware.


def backoff_oracle(
    amax, scale_min=1.0, scale_max=2.0**14, step_factor=2.0, step_window=2000, hysteresis=0
):
    scale, good, patience = scale_max, 0, hysteresis
    for value in amax:
        if math.isfinite(value):
            good += 1
            if good == step_window:
                scale, good, patience = min(scale * step_factor, scale_max), 0, hysteresis
        elif patience > 0:
            good, patience = 0, patience - 1
        else:
            scale, good = max(scale / step_factor, scale_min), 0
        yield scale


def logmax_oracle(
    amax,
    scale_min=1.0,
    scale_max=2.0**14,
    log_max=16.0,
    beta1=0.99,
    beta2=0.999,
    overflow_std_dev=3.09,
):
    scale, t, fast, slow, square = min(max(1.0, scale_min), scale_max), 0, 0.0, 0.0, 0.0
    for value in np.asarray(amax, np.float64):
        if value >= np.finfo(np.float32).tiny or not math.isfinite(value):
            x = math.log2(value) if math.isfinite(value) else log_max
            t += 1
            fast = beta1 * fast + (1 - beta1) * x
            slow = beta2 * slow + (1 - beta2) * x
            square = beta2 * square + (1 - beta2) * x * x
            mean, second = slow / (1 - beta2**t), square / (1 - beta2**t)
            sigma = math.sqrt(max(second - mean * mean, 0.0))
            exponent = log_max - (fast / (1 - beta1**t) + overflow_std_dev * sigma)
            bounded = min(max(exponent, math.log2(scale_min)), math.log2(scale_max))
            scale = 2.0**bounded
        yield scale


ORACLES = {BackoffScaler: backoff_oracle, LogMaxScaler: logmax_oracle}


def expected(scaler, amax):
    return np.array(list(ORACLES[type(scaler)](amax, **scaler.get_config())))


def magnitudes(count, seed=0, overflows=0.1, spread=4.0):
    """Largest magnitudes of `count` gradients, some of them overflowing."""
    random = np.random.default_rng(seed)
    amax = np.exp2(random.normal(1.0, spread, count)).astype(np.float32)
    return np.where(random.random(count) < overflows, np.float32(np.inf), amax)


def wild(count, seed=0):
    """Overflows, NaN, zeros, subnormal, tiny, ordinary and huge magnitudes, in random order."""
    random = np.random.default_rng(seed)
    kinds = [np.inf, np.nan, 0.0, 1e-45, 1e-40, 1.17e-38, 1.2e-38, 1e-30, 1.0, 65504.0, 3.4e38]
    kinds = np.array(kinds, np.float32)
    # In runs, so that the scale reaches its ends too.
    return np.repeat(random.choice(kinds, count), random.integers(1, 9, count))[:count]


# What OpenSeq2Seq computed.


@each_execution
@pytest.mark.parametrize("name", INTENDED)
def test_scales_are_the_recorded_ones(name, jit_compile):
    case = BY_NAME[name]
    scaler = AutomaticLossScaler(case["algorithm"], case["params"])
    scales, s = run(scaler, np.array(case["amax"], float), jit_compile)
    assert scales[0] == case["start"]
    rtol = LOGMAX_RTOL if isinstance(scaler, LogMaxScaler) else 0.0
    np.testing.assert_allclose(scales[1:], case["scale"], rtol=rtol)
    for role in ("iteration", "last_overflow_iteration"):
        if role in case:
            assert int(s[role]) == case[role][-1]


@pytest.mark.parametrize("case", GOLDENS, ids=BY_NAME)
def test_scales_follow_the_oracle_on_what_was_recorded(case):
    scaler = AutomaticLossScaler(case["algorithm"], case["params"])
    amax = np.array(case["amax"], float)
    np.testing.assert_allclose(run(scaler, amax)[0][1:], expected(scaler, amax), rtol=1e-5)


def test_backoff_notes_the_iteration_of_an_overflow_before_it_is_counted():
    # There the counter was read sometimes before and sometimes after its increment.
    scaler = BackoffScaler()
    s = start(scaler)
    for k, finite in enumerate([True, True, False, True, False, False, True]):
        s = scaler.update(s, tf.constant(finite), tf.constant(1.0))
        assert int(s["iteration"]) == k + 1
        assert int(s["last_overflow_iteration"]) == (-1, -1, 2, 2, 4, 5, 5)[k]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "overflow"), [("logmax_overflow", 5), ("logmax_first_step_overflow", 0)]
)
def test_logmax_an_overflow_enters_as_log_max(name, overflow):
    # There it entered as 2^log_max, and the scale stayed at its minimum for some 12,000 steps.
    case = BY_NAME[name]
    assert case["amax"][overflow] == "Infinity"
    assert set(case["scale"][overflow:]) == {1.0}
    scaler = LogMaxScaler(**case["params"])
    amax = np.array(case["amax"], float)
    scales, _ = run(scaler, amax)
    as_log_max = np.where(np.isinf(amax), 2.0**scaler.log_max, amax)
    np.testing.assert_array_equal(scales, run(scaler, as_log_max)[0])
    np.testing.assert_allclose(scales[1 : overflow + 1], case["scale"][:overflow], rtol=LOGMAX_RTOL)
    recovered = walk(scaler, np.concatenate([amax, np.ones(5_000)]))[0][-1]
    assert recovered > 2.0**13  # of the 2^16 at which 1 reaches 2^log_max


def test_logmax_recovers_from_one_overflow_within_a_few_steps():
    # There it took 68 until the scale left its minimum.
    scaler = LogMaxScaler(scale_max=2.0**24, beta1=0.5, beta2=0.8, overflow_std_dev=1.0)
    scales, _ = run(scaler, [1.0] * 20 + [np.inf] + [1.0] * 40)
    assert scales[20] == pytest.approx(2.0**16)
    assert scales[21] < 2.0**6
    assert scales[-1] > 2.0**15.9


def test_logmax_log_max_is_the_target():
    # There the target was 16 whatever log_max said.
    case = BY_NAME["logmax_log_max_param"]
    assert case["params"]["log_max"] == 4.0
    before = case["amax"].index("Infinity")
    amax = np.array(case["amax"][:before], float)
    params = case["params"] | {"scale_min": 2.0**-20}
    low = run(LogMaxScaler(**params), amax)[0][1:]
    high = run(LogMaxScaler(**(params | {"log_max": 16.0})), amax)[0][1:]
    np.testing.assert_allclose(high, case["scale"][:before], rtol=LOGMAX_RTOL)
    np.testing.assert_allclose(low, high / 2.0**12, rtol=1e-5)
    np.testing.assert_array_equal(run(LogMaxScaler(**case["params"]), amax)[0][1:], low.clip(1.0))


@each_execution
def test_logmax_a_zero_gradient_changes_nothing(jit_compile):
    # There log2(0) made the scale NaN for good. An empty gradient has no magnitude at all.
    case = BY_NAME["logmax_zero_amax"]
    assert case["scale"][-1] == "NaN"
    scaler = LogMaxScaler(**case["params"])
    update = scaler.update
    if jit_compile is not None:
        update = tf.function(update, jit_compile=jit_compile)
    s, true = start(scaler), tf.constant(True)
    for value in (None, *case["amax"][:3]):
        if value is not None:
            s = update(s, true, tf.constant(value))
        for zero in (0.0, -0.0, 1e-45, 1e-40, 1.17e-38, -np.inf):
            same = update(s, true, tf.constant(zero, tf.float32))
            assert {k: v.numpy() for k, v in same.items()} == {k: v.numpy() for k, v in s.items()}


def test_logmax_ends_where_it_would_without_the_zero_gradients():
    case = BY_NAME["logmax_zero_amax"]
    amax = np.array(case["amax"], float)
    scaler = LogMaxScaler(**case["params"])
    assert run(scaler, amax)[0][-1] == run(scaler, amax[amax != 0])[0][-1]


# Against the oracles.


@each_execution
@pytest.mark.parametrize("name", [name for name in SCALERS if name != "fixed"])
def test_scales_follow_the_oracle(name, jit_compile):
    scaler, overflows = SCALERS[name], 0.3 if "backoff" in name else 0.02
    amax = magnitudes(120, overflows=overflows, spread=2.0)
    scales, _ = run(scaler, amax, jit_compile)
    assert len(set(scales)) > 5
    np.testing.assert_allclose(scales[1:], expected(scaler, amax), rtol=1e-5)


@pytest.mark.parametrize(
    ("scaler", "end"),
    [
        (BackoffScaler(scale_min=3.0, scale_max=1e4, step_factor=2.5, step_window=5), 1e4),
        (BackoffScaler(step_window=7, hysteresis=2), 2.0**14),
        (BackoffScaler(2.0**-126, 2.0**126, 1e30, step_window=1), 2.0**126),
        (LogMaxScaler(), 2.0**14),
        (LogMaxScaler(2.0**-126, 2.0**126, -50.0, 0.0, 0.9, 3.0), 2.0**50),
        (LogMaxScaler(2.0**-126, 2.0**126, 128.0, 0.5, 0.9, 2.0**126), None),
        (LogMaxScaler(0.3, 0.7, 128.0, beta1=0.9, beta2=0.5), 0.7),
    ],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'scale_max', value)}",
)
def test_ten_thousand_steps_stay_finite_and_in_bounds_and_recover(scaler, end):
    quiet, compiled = np.full(5_000, 2.0**-100, np.float32), isinstance(scaler, LogMaxScaler)
    scales, s = walk(scaler, np.concatenate([wild(10_000), quiet]), compiled)
    assert scales.min() >= np.float32(scaler.scale_min)
    assert scales.max() <= np.float32(scaler.scale_max)  # NaN fails both
    assert all(np.isfinite(value.numpy()) for value in s.values())
    if end is not None:  # where sigma is multiplied by 2^126, its last digit decides
        assert scales[:10_000].min() < 0.5 * end
        assert scales[-1] == pytest.approx(end, rel=1e-4)


@pytest.mark.parametrize(("name", "overflows"), [("backoff_hysteresis", 0.3), ("logmax", 0.01)])
def test_ten_thousand_steps_follow_the_oracle(name, overflows):
    # Spread less than above: LogMax is to be between its bounds for a part of the walk.
    scaler = SCALERS[name]
    amax = magnitudes(10_000, overflows=overflows, spread=1.0)
    amax[::7] = 0.0
    scales, _ = walk(scaler, amax)
    assert np.mean((scales > scaler.scale_min) & (scales < scaler.scale_max)) > 0.5
    np.testing.assert_allclose(scales, expected(scaler, amax), rtol=1e-4)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    amax=st.lists(
        st.floats(0, width=32, allow_subnormal=True) | st.just(math.inf), min_size=1, max_size=12
    ),
    scale_min=st.floats(2.0**-20, 1.0),
    scale_max=st.floats(1.0, 2.0**20),
    log_max=st.floats(-20, 128),
    beta=st.floats(0, 1, exclude_max=True),
    deviations=st.floats(0, 100),
)
def test_logmax_stays_finite_and_in_bounds(amax, scale_min, scale_max, log_max, beta, deviations):
    scaler = LogMaxScaler(scale_min, scale_max, log_max, beta, beta, deviations)
    scales, s = run(scaler, amax)
    assert scales.min() >= np.float32(scale_min)
    assert scales.max() <= np.float32(scale_max)
    assert all(np.isfinite(value.numpy()) for value in s.values())


@pytest.mark.slow
@settings(max_examples=40)
@given(
    finite=st.lists(st.booleans(), min_size=1, max_size=20),
    step_window=st.integers(1, 4),
    hysteresis=st.integers(0, 3),
)
def test_backoff_follows_the_oracle(finite, step_window, hysteresis):
    scaler = BackoffScaler(scale_max=2.0**4, step_window=step_window, hysteresis=hysteresis)
    amax = [1.0 if good else math.inf for good in finite]
    np.testing.assert_array_equal(run(scaler, amax)[0][1:], expected(scaler, amax))


def test_backoff_tolerates_as_many_overflows_as_hysteresis_says():
    bad, good = math.inf, 1.0
    scaler = BackoffScaler(scale_max=64.0, step_window=3, hysteresis=2)
    # Two are tolerated, whatever lies between; from then on each shrinks.
    scales, _ = run(scaler, [bad, good, good, bad, good, bad, bad])
    assert scales.tolist() == [64, 64, 64, 64, 64, 64, 32, 16]
    # A whole window without one makes for two again; a tolerated one starts the window anew.
    again = [bad, bad, bad, good, good, good, bad, good, good, bad, bad]
    scales, _ = run(scaler, again)
    assert scales[1:].tolist() == [64, 64, 32, 32, 32, 64, 64, 64, 64, 64, 32]


def test_backoff_does_not_look_at_amax():
    scaler = BackoffScaler(scale_max=64.0, step_window=2)
    assert not scaler.needs_amax
    for amax in (0.0, 1e-45, np.inf, -np.inf, np.nan):
        s = scaler.update(start(scaler), tf.constant(True), tf.constant(amax, tf.float32))
        assert float(s["scale"]) == 64.0
        s = scaler.update(s, tf.constant(False), tf.constant(amax, tf.float32))
        assert float(s["scale"]) == 32.0


@pytest.mark.parametrize("amax", [0.0, 1.0, np.inf, -np.inf, np.nan])
def test_logmax_does_not_look_at_amax_after_an_overflow(amax):
    scaler = LogMaxScaler(beta1=0.0, overflow_std_dev=0.0)
    assert scaler.needs_amax
    s = scaler.update(start(scaler), tf.constant(True), tf.constant(2.0**6))
    assert float(scaler.scale(s)) == pytest.approx(2.0**10)
    s = scaler.update(s, tf.constant(False), tf.constant(amax, tf.float32))
    assert float(scaler.scale(s)) == 1.0


@pytest.mark.parametrize("amax", [np.inf, np.nan])
def test_logmax_a_magnitude_that_is_not_finite_is_an_overflow(amax):
    # Finite gradients may overflow when they are unscaled, by a scale below 1.
    scaler = LogMaxScaler()
    one = scaler.update(start(scaler), tf.constant(True), tf.constant(amax, tf.float32))
    other = scaler.update(start(scaler), tf.constant(False), tf.constant(1.0))
    assert {k: v.numpy() for k, v in one.items()} == {k: v.numpy() for k, v in other.items()}


@pytest.mark.slow
def test_logmax_loses_no_digits_of_a_small_deviation():
    # The difference of the means, as the equations have it, is here all rounding in float32.
    scaler = LogMaxScaler(scale_max=2.0**100, overflow_std_dev=50.0)
    amax = np.exp2(np.random.default_rng(0).normal(-60.0, 1e-3, 200)).astype(np.float32)
    np.testing.assert_allclose(run(scaler, amax)[0][1:], expected(scaler, amax), rtol=1e-4)


def test_logmax_starts_within_its_bounds():
    assert LogMaxScaler().slots()["scale"].fill == 1.0
    assert LogMaxScaler(scale_min=8.0).slots()["scale"].fill == 8.0
    assert LogMaxScaler(scale_min=0.1, scale_max=0.5).slots()["scale"].fill == 0.5


# Everywhere the same, and pure.


@each_scaler
def test_executions_agree(scaler):
    amax = magnitudes(40, seed=1)
    amax[5], amax[6] = 0.0, np.nan
    eager, s = run(scaler, amax)
    function, in_function = run(scaler, amax, jit_compile=False)
    xla, in_xla = run(scaler, amax, jit_compile=True)
    np.testing.assert_array_equal(function, eager)
    # XLA rounds logarithms and quotients otherwise.
    np.testing.assert_allclose(xla, eager, rtol=5e-6)
    assert s.keys() == in_function.keys() == in_xla.keys()
    for role, value in s.items():
        np.testing.assert_array_equal(in_function[role], value)
        np.testing.assert_allclose(in_xla[role], value, rtol=5e-6)


def test_backoff_divides_in_a_function_as_it_does_eagerly():
    # A plain division by a constant becomes a product with its reciprocal there.
    scaler = BackoffScaler(scale_min=1e-3, step_factor=3.0)
    update, false, zero = tf.function(scaler.update), tf.constant(False), tf.constant(0.0)
    for scale in np.random.default_rng(0).uniform(1.0, 2.0, 40).astype(np.float32):
        s = start(scaler) | {"scale": tf.constant(scale)}
        assert update(s, false, zero)["scale"] == scaler.update(s, false, zero)["scale"]
        assert scaler.update(s, false, zero)["scale"] == scale / np.float32(3)


@each_scaler
@pytest.mark.parametrize("jit_compile", [False, True], ids=["function", "xla"])
def test_one_trace_serves_all_updates(scaler, jit_compile):
    traces = []

    @tf.function(jit_compile=jit_compile)
    def update(s, finite, amax):
        traces.append(1)
        return scaler.update(s, finite, amax)

    s = start(scaler)
    for value in (1.0, np.inf, 0.0, 3.0):
        s = update(s, tf.constant(bool(np.isfinite(value))), tf.constant(value, tf.float32))
    assert len(traces) == 1


@each_scaler
def test_state_keeps_its_roles_and_types(scaler):
    s = start(scaler)
    before = {role: value.numpy() for role, value in s.items()}
    new = scaler.update(s, tf.constant(True), tf.constant(2.0))
    assert new.keys() == s.keys() == scaler.slots().keys()
    for role, slot in scaler.slots().items():
        assert slot.shape == "scalar"
        assert (new[role].dtype, new[role].shape) == (slot.dtype, ())
    assert {role: value.numpy() for role, value in s.items()} == before
    scale = scaler.scale(new)
    assert (scale.dtype, scale.shape) == (tf.float32, ())
    assert "scale" not in new or scale is new["scale"]


def test_a_scaler_of_ones_own():
    class Halving(LossScaler):
        def slots(self):
            return BackoffScaler().slots()

    assert Halving().slots()["scale"].fill == 2.0**14
    assert not Halving.needs_amax
    with pytest.raises(NotImplementedError, match=r"Halving must define update\(s, finite, amax\)"):
        Halving().update({}, tf.constant(True), tf.constant(1.0))


# Made, kept, found.

CHANGED = {
    FixedScaler: {"loss_scale": 3.5},
    BackoffScaler: {
        **{"scale_min": 0.5, "scale_max": 9.0, "step_factor": 3.0, "step_window": 7},
        "hysteresis": 4,
    },
    LogMaxScaler: {
        **{"scale_min": 0.5, "scale_max": 9.0, "log_max": 8.0, "beta1": 0.5, "beta2": 0.25},
        "overflow_std_dev": 1.5,
    },
}
DEFAULTS = {
    FixedScaler: {"loss_scale": 1.0},
    BackoffScaler: {
        **{"scale_min": 1.0, "scale_max": 2.0**14, "step_factor": 2.0, "step_window": 2000},
        "hysteresis": 0,
    },
    LogMaxScaler: {
        **{"scale_min": 1.0, "scale_max": 2.0**14, "log_max": 16.0, "beta1": 0.99},
        **{"beta2": 0.999, "overflow_std_dev": 3.09},
    },
}


@pytest.mark.parametrize("cls", CHANGED, ids=lambda cls: cls.__name__)
def test_config_round_trip(cls):
    assert cls().get_config() == DEFAULTS[cls]
    config = cls(**CHANGED[cls]).get_config()
    assert config == CHANGED[cls]
    assert cls.from_config(config).get_config() == config
    saved = json.loads(json.dumps(keras.saving.serialize_keras_object(cls(**CHANGED[cls]))))
    assert saved["registered_name"] == f"tf_graft>{cls.__name__}"
    for loaded in (keras.saving.deserialize_keras_object(saved), scaling.get(saved)):
        assert type(loaded) is cls
        assert loaded.get_config() == config


@pytest.mark.parametrize("number", [np.float32(4), np.int64(4), 4, np.array(4.0)])
def test_numbers_are_taken_as_numbers(number):
    plain = {"scale_min": 4.0, "scale_max": 4.0, "step_factor": 4.0, "step_window": 4}
    scaler = BackoffScaler(number, number, number, number, number)
    assert scaler.get_config() == plain | {"hysteresis": 4}
    assert all(type(value) in (float, int) for value in scaler.get_config().values())
    json.dumps(scaler.get_config())


REFUSALS = [
    (cls, name, value, message)
    for cls in CHANGED
    for name in CHANGED[cls]
    for value, message in [
        *[(value, "must be a number") for value in ("2", None, True, [2.0])],
        *[(value, "must (be|lie)") for value in (math.nan, math.inf, -math.inf, -0.5)],
        *[(value, "must be finite and above 0|lie in") for value in (0, 1e-39, 1e38)]
        * (name in ("loss_scale", "scale_min", "scale_max")),
    ]
    if not (name == "log_max" and value == -0.5)
] + [
    (BackoffScaler, "step_factor", 1, "finite and above 1"),
    (BackoffScaler, "step_window", 0, "at least 1"),
    (BackoffScaler, "step_window", 1.5, "a whole number"),
    (BackoffScaler, "hysteresis", 0.5, "a whole number"),
    (BackoffScaler, "scale_min", 2.0**15, "must not be above scale_max"),
    (BackoffScaler, "scale_max", 0.5, "scale_min must not be above"),
    (LogMaxScaler, "scale_max", 0.5, "scale_min must not be above"),
    (LogMaxScaler, "beta1", 1, r"lie in \[0, 1\)"),
    (LogMaxScaler, "beta2", 1, r"lie in \[0, 1\)"),
    (LogMaxScaler, "log_max", 129, r"lie in \[-126, 128\]"),
    (LogMaxScaler, "overflow_std_dev", 1e38, "lie in"),
]


@pytest.mark.parametrize("scaler", CHANGED)
def test_arguments_are_checked(scaler):
    for cls, name, value, message in REFUSALS:
        if cls is scaler:
            error = TypeError if message == "must be a number" else ValueError
            with pytest.raises(error, match=rf"^{cls.__name__}\(.*{name}=.*: .*{message}"):
                cls(**{name: value})


@pytest.mark.parametrize(
    ("identifier", "cls", "arguments"),
    [
        (None, FixedScaler, {"loss_scale": 1.0}),
        (128, FixedScaler, {"loss_scale": 128.0}),
        (0.5, FixedScaler, {"loss_scale": 0.5}),
        (np.float32(8), FixedScaler, {"loss_scale": 8.0}),
        (np.array(8), FixedScaler, {"loss_scale": 8.0}),
        ("fixed", FixedScaler, {}),
        ("backoff", BackoffScaler, {}),
        ("Backoff", BackoffScaler, {}),
        (" BackoffScaler", BackoffScaler, {}),
        ("logmax", LogMaxScaler, {}),
        ("LogMax", LogMaxScaler, {}),
        ("log_max", LogMaxScaler, {}),
        ("tf_graft>LogMaxScaler", LogMaxScaler, {}),
        ({"name": "backoff", "step_window": 5}, BackoffScaler, {"step_window": 5}),
        ({"name": "fixed", "loss_scale": 2}, FixedScaler, {"loss_scale": 2.0}),
    ],
)
def test_get(identifier, cls, arguments):
    before = repr(identifier)
    scaler = scaling.get(identifier)
    assert type(scaler) is cls
    assert scaler.get_config() == DEFAULTS[cls] | arguments
    assert repr(identifier) == before
    assert scaling.get(scaler) is scaler


@pytest.mark.parametrize(
    ("identifier", "error", "message"),
    [
        ("back_of", ValueError, r"get\('back_of'\): there is no .*; did you mean 'backoff'\?"),
        ("zzz", ValueError, r"'zzz'.*there are backoff, fixed, logmax"),
        ({"name": "backoff", "window": 2}, ValueError, "not take 'window'.*step_window"),
        ({"name": "backoff", "step_window": 0}, ValueError, r"BackoffScaler\(step_window=0\)"),
        ({"step_window": 2}, TypeError, "or a dict with 'name' or 'class_name'"),
        ({"name": 3}, TypeError, "give a scaler, a number"),
        (True, TypeError, "give a scaler, a number"),
        (np.ones(2), TypeError, "give a scaler, a number"),
        (BackoffScaler, TypeError, "give a scaler, a number"),
        (0, ValueError, r"FixedScaler\(loss_scale=0\): loss_scale must be finite and above 0"),
        (math.nan, ValueError, "loss_scale must be finite"),
        (
            keras.saving.serialize_keras_object(keras.optimizers.SGD(0.1)),
            ValueError,
            "'SGD' is not a loss scaler",
        ),
    ],
)
def test_get_says_what_is_wrong(identifier, error, message):
    with pytest.raises(error, match=message):
        scaling.get(identifier)


def test_automatic_loss_scaler_is_the_scaler_of_that_name():
    assert type(AutomaticLossScaler()) is BackoffScaler
    assert AutomaticLossScaler().get_config() == DEFAULTS[BackoffScaler]
    assert type(AutomaticLossScaler(" LOGMAX ", {})) is LogMaxScaler
    params = {"scale_min": 0.5, "scale_max": 9.0, "step_factor": 3.0, "step_window": 7}
    scaler = AutomaticLossScaler("Backoff", params)
    assert scaler.get_config() == params | {"hysteresis": 0}
    assert (
        AutomaticLossScaler("LogMax", CHANGED[LogMaxScaler]).get_config() == (CHANGED[LogMaxScaler])
    )


@pytest.mark.parametrize(
    ("algorithm", "params", "error", "message"),
    [
        ("Foo", None, ValueError, "Unknown scaling algorithm: foo"),
        ("fixed", None, ValueError, "Unknown scaling algorithm: fixed"),
        (None, None, TypeError, "algorithm must be 'Backoff' or 'LogMax'"),
        ("Backoff", [1], TypeError, r"params is \[1\]; it must be a dict"),
        ("Backoff", {"log_max": 1.0}, ValueError, "Unknown parameter: log_max"),
        ("Backoff", {"hysteresis": 1}, ValueError, "Unknown parameter: hysteresis"),
        ("LogMax", {"step_window": 1}, ValueError, "Unknown parameter: step_window"),
        ("Backoff", {"scale_min": 1}, ValueError, "scale_min has to be of type <class 'float'>"),
        ("Backoff", {"step_window": 2.0}, ValueError, "step_window has to be of type <class 'int'"),
        ("LogMax", {"beta1": "0.5"}, ValueError, "beta1 has to be of type <class 'float'>"),
        # There these were taken.
        ("Backoff", {"step_factor": 0.5}, ValueError, "step_factor must be finite and above 1"),
        ("LogMax", {"scale_min": 9.0, "scale_max": 8.0}, ValueError, "must not be above"),
    ],
)
def test_automatic_loss_scaler_checks_what_openseq2seq_checked(algorithm, params, error, message):
    with pytest.raises(error, match=message):
        AutomaticLossScaler(algorithm, params)


def test_public_names_exist():
    assert all(hasattr(scaling, name) for name in scaling.__all__)
