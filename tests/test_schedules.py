"""Schedules: OpenSeq2Seq's recorded rates, float64 oracles, properties, and use in Keras."""

import copy
import inspect
import itertools
import json
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from support.schedule_samples import GOLDENS, KERAS_INSIDE, RECORDED, SAMPLES
from tf_graft import schedules
from tf_graft.core.places import tpus
from tf_graft.schedules import (
    CosineRestarts,
    Cyclical,
    CyclicalMomentum,
    ExpDecay,
    FixedLR,
    InvPolyDecay,
    LrPolicy,
    Noam,
    OneCycle,
    PiecewiseConstant,
    PolyDecay,
    PowerDecay,
    PowerLinearDecay,
    Sequence,
    StepCosine,
    TransformerSchedule,
    Warmup,
    WarmupStableDecay,
    lr_policies,
)

REFUSED = [case for case in GOLDENS if "error" in case]
ERRORS = {
    "ValueError": ValueError,
    "IndexError": IndexError,
    "InvalidArgumentError": tf.errors.InvalidArgumentError,
}
CosineDecay = keras.optimizers.schedules.CosineDecay


def golden_id(case):
    return f"{case['case']}-{'-'.join(str(value) for value in case['params'].values())}"


def rates(schedule, steps):
    return schedule(tf.constant(steps, tf.int64)).numpy()


# The functions against what OpenSeq2Seq computed.


def assert_recorded(actual, case):
    rtol = 1e-3 if case["dtype"] == "float16" else 2e-6
    # The end of a cosine is a difference of two ones.
    atol = 1e-7 * case["params"]["learning_rate"] if case["policy"] == "cosine_decay" else 0.0
    expected = np.array(case["values"], float)
    np.testing.assert_allclose(np.array(actual, float), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("case", RECORDED, ids=golden_id)
def test_function_reproduces_golden(case):
    policy = getattr(lr_policies, case["policy"])
    values = [policy(step, **case["params"]) for step in case["steps"]]
    assert_recorded(values, case)
    if case["dtype"] == "python":
        assert all(type(value) is float for value in values)
    else:
        assert all(value.dtype == case["dtype"] and value.shape == () for value in values)


@pytest.mark.parametrize(
    "case", [case for case in RECORDED if case["dtype"] != "python"], ids=golden_id
)
def test_function_in_a_graph_reproduces_golden(case):
    policy = getattr(lr_policies, case["policy"])
    compiled = tf.function(lambda steps: policy(steps, **case["params"]))
    assert_recorded(compiled(tf.constant(case["steps"], tf.int64)), case)


@pytest.mark.parametrize("case", REFUSED, ids=golden_id)
def test_function_refuses_what_openseq2seq_refused(case):
    policy = getattr(lr_policies, case["policy"])
    with pytest.raises(ERRORS[case["error"]], match=case["policy"]):
        policy(4, **case["params"])


@pytest.mark.parametrize(
    "step", [3, np.int32(3), np.int64(3), tf.constant(3), tf.Variable(3, dtype=tf.int64)]
)
def test_functions_take_any_integer_step(step):
    assert float(lr_policies.poly_decay(step, 1.0, 4)) == 0.25
    assert float(lr_policies.piecewise_constant(step, 1.0, [2], [0.5])) == 0.5
    assert float(lr_policies.transformer_policy(step, 1.0, 4, 4)) == 0.25


def test_functions_take_tuples_and_lengths_that_are_not_whole():
    assert float(lr_policies.piecewise_constant(4, 1.0, (3,), (0.5,))) == 0.5
    for whole, other in ((5, 5.0), (2, 2.0)):
        for step in (1, 4, 7):
            found = [
                float(lr_policies.poly_decay(step, 1.0, 10, warmup_steps=n, begin_decay_at=n))
                for n in (whole, other)
            ]
            assert found[0] == found[1]
    warm = lr_policies.cosine_decay(1, 1.0, 9, warmup_steps=2.5)
    np.testing.assert_allclose(warm, 0.4 * (1 + np.cos(np.pi / 9)) / 2, 1e-6)
    late = lr_policies.exp_decay(2, 1.0, 1, 0.5, False, begin_decay_at=0.5)
    np.testing.assert_allclose(late, 0.5**1.5, 1e-6)


def test_steps_in_half_precision_are_in_range():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(FixedLR(0.5)(np.float16(3))) == 0.5


def test_a_config_may_have_a_tuple_of_schedules():
    config = {"name": "sequence", "schedules": (1.0, 0.5), "milestones": (3,)}
    assert [float(schedules.get(config)(step)) for step in (2, 3)] == [1.0, 0.5]


def test_function_piecewise_wants_boundaries_of_the_kind_of_the_step():
    assert float(lr_policies.piecewise_constant(3.0, 1.0, [2.5], [0.5])) == 0.5
    with pytest.raises(ValueError, match="boundaries in steps must be floats"):
        lr_policies.piecewise_constant(3.0, 1.0, [2], [0.5])


def test_function_exp_with_no_decay_steps_gives_the_floor():
    assert float(lr_policies.exp_decay(0, 1.0, 0, 0.5, False, min_lr=0.25)) == 0.25
    assert float(lr_policies.exp_decay(0, 1.0, 0, 0.5, True)) == 0.0


def test_function_exp_floors_before_the_decay_too():
    assert float(lr_policies.exp_decay(0, 0.5, 10, 0.5, False, begin_decay_at=5, min_lr=1.0)) == 1.0


def test_function_transformer_overflows_in_float16():
    values = [
        float(lr_policies.transformer_policy(step, 1.0, 4, 4, dtype="float16"))
        for step in (65519, 65520)
    ]
    assert values[0] > 0.0
    assert values[1] == 0.0


def test_function_inv_poly_keeps_falling():
    assert float(lr_policies.inv_poly_decay(100, 1.0, 10, min_lr=0.1)) < 0.02


# The classes against float64 oracles, one step at a time, written from the formulas.


STEPS = [*range(35), 100, 200, 201, 4000, 300_000, 300_001, 999_999, 10_000_000, 10_000_001]
samples = pytest.mark.parametrize(("schedule", "oracle"), SAMPLES.values(), ids=SAMPLES)
only_schedules = pytest.mark.parametrize(
    "schedule", [schedule for schedule, _ in SAMPLES.values()], ids=SAMPLES
)


@pytest.mark.parametrize("name", SAMPLES)
def test_class_matches_oracle(name):
    schedule, oracle = SAMPLES[name]
    tolerance = {"rtol": 1e-6 if name in KERAS_INSIDE else 1.2e-7}
    values = [schedule(step) for step in STEPS]
    assert all(value.dtype == tf.float32 and value.shape == () for value in values)
    np.testing.assert_allclose(values, [oracle(t) for t in STEPS], **tolerance)


@samples
def test_class_in_float32_is_near_the_oracle(schedule, oracle, monkeypatch):
    """As on a TPU. Taking the power of a rounded rate would be off by 50 percent in `exp_long`."""
    monkeypatch.setattr(tpus, "tracing", lambda: True)
    values = [schedule(step) for step in STEPS[::3] + STEPS[-2:]]
    expected = [oracle(t) for t in STEPS[::3] + STEPS[-2:]]
    np.testing.assert_allclose(values, expected, rtol=1e-6)


@only_schedules
@pytest.mark.parametrize("jit_compile", [False, True])
def test_compiled_equals_eager(schedule, jit_compile):
    compiled = tf.function(schedule, jit_compile=jit_compile)
    steps = [0, 3, 4, 8, 9, 21, 300_001, 10_000_000]
    values = [compiled(tf.constant(step, tf.int64)) for step in steps]
    np.testing.assert_allclose(values, [schedule(step) for step in steps], rtol=2.4e-7, atol=1e-9)


def step_kinds():
    yield from (int, float, np.int8, np.uint16, np.int32, np.int64, np.uint64, np.float32, np.array)
    for dtype in ("int32", "int64", "uint64", "float32", "float64"):
        yield lambda step, dtype=dtype: tf.constant(step, dtype)
        yield lambda step, dtype=dtype: tf.Variable(step, dtype=dtype)
        yield lambda step, dtype=dtype: keras.Variable(step, dtype=dtype, trainable=False)


@only_schedules
def test_every_kind_of_step_gives_the_same_rate(schedule):
    assert len({float(schedule(kind(7))) for kind in step_kinds()}) == 1


@pytest.mark.parametrize("on_tpu", [False, True])
@pytest.mark.parametrize("step", [300_001, 2**24 + 1, 10**12])
def test_large_steps_are_not_rounded(step, on_tpu, monkeypatch):
    monkeypatch.setattr(tpus, "tracing", lambda: on_tpu)
    assert float(PolyDecay(1.0, 2, begin_decay_at=step - 1)(step)) == 0.5
    assert float(PiecewiseConstant(1.0, [step - 1], [0.5])(step)) == 0.5
    assert float(Warmup(PolyDecay(1.0, 2), step - 1)(step)) == 0.5
    assert float(PolyDecay(1.0, 2, begin_decay_at=step - 1)(float(step))) == 0.5


@pytest.mark.parametrize(
    "schedule", [schedule for name, (schedule, _) in SAMPLES.items() if name not in KERAS_INSIDE]
)
def test_a_vector_of_steps_gives_a_vector_of_rates(schedule):
    np.testing.assert_array_equal(rates(schedule, STEPS), [schedule(step) for step in STEPS])


# The classes equal the functions where those have no trap.

PAIRS = {
    "fixed": (FixedLR(0.3), lr_policies.fixed_lr, (0.3,)),
    "exp": (ExpDecay(0.3, 7, 0.9, False, 5), lr_policies.exp_decay, (0.3, 7, 0.9, False, 5)),
    "exp_stairs": (
        ExpDecay(0.3, 7, 0.9, True, 5, 0.1),
        lr_policies.exp_decay,
        (0.3, 7, 0.9, True, 5, 0.1),
    ),
    "poly": (
        PolyDecay(0.3, 20, 2.0, 9, 0.02, 4),
        lr_policies.poly_decay,
        (0.3, 20, 2.0, 9, 0.02, 4),
    ),
    "inv_poly_until_the_end": (
        InvPolyDecay(0.3, 50, 0.02, 2.0),
        lr_policies.inv_poly_decay,
        (0.3, 50, 0.02, 2.0),
    ),
    "piecewise": (
        PiecewiseConstant(0.3, [1, 3], [0.5, 0.1], 10),
        lr_policies.piecewise_constant,
        (0.3, [1, 3], [0.5, 0.1], 10),
    ),
    "transformer": (
        TransformerSchedule(2.0, d_model=512, warmup_steps=9, max_lr=0.02, coefficient=0.9),
        lr_policies.transformer_policy,
        (2.0, 512, 9, 0.02, 0.9),
    ),
    "transformer_without_warmup": (
        TransformerSchedule(2.0, d_model=512, warmup_steps=0),
        lr_policies.transformer_policy,
        (2.0, 512, 0),
    ),
}


@pytest.mark.parametrize(("schedule", "policy", "arguments"), PAIRS.values(), ids=PAIRS)
def test_class_equals_function(schedule, policy, arguments):
    expected = [float(policy(step, *arguments)) for step in range(50)]
    np.testing.assert_allclose(rates(schedule, range(50)), expected, rtol=1e-6)


# Where the functions have a trap, the classes do not.


def test_poly_decay_starts_after_the_warm_up():
    schedule = PolyDecay(1.0, 4, begin_decay_at=1, min_lr=0.5, warmup_steps=2)
    assert rates(schedule, range(8)).tolist() == [0, 0.5, 1, 0.875, 0.75, 0.625, 0.5, 0.5]
    assert float(lr_policies.poly_decay(2, 1.0, 4, 1.0, 0, 0.5, 2)) == 0.75  # the trap


def test_poly_decay_waits_for_begin_after_a_shorter_warm_up():
    schedule = PolyDecay(1.0, 2, begin_decay_at=4, warmup_steps=2)
    assert rates(schedule, range(7)).tolist() == [0, 0.5, 1, 1, 1, 0.5, 0]


def test_inv_poly_stops_at_its_end_and_heeds_begin_and_warm_up():
    schedule = InvPolyDecay(1.0, 3, 0.25, begin_decay_at=3, warmup_steps=2)
    expected = [0, 0.5, 1, 1, 1 / 2, 1 / 3, 1 / 4, 1 / 4, 1 / 4]
    np.testing.assert_allclose(rates(schedule, range(9)), expected, rtol=1e-7)


def test_warmup_before_poly_decay_is_its_own_warm_up():
    wrapped, own = Warmup(PolyDecay(0.3, 20, 2.0), 5), PolyDecay(0.3, 20, 2.0, warmup_steps=5)
    np.testing.assert_allclose(rates(wrapped, range(30)), rates(own, range(30)), rtol=2e-7)


def test_warmup_without_steps_is_the_schedule():
    for shape in ("linear", "exponential"):
        schedule = Warmup(PolyDecay(1.0, 4), 0, shape, start=0.5)
        assert rates(schedule, range(5)).tolist() == [1, 0.75, 0.5, 0.25, 0]


@pytest.mark.parametrize("shift", [True, False])
def test_warmup_hands_whole_steps_to_the_schedule(shift):
    class Recording(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            self.step = step
            return 1.0

    inner = Recording()
    warmup = Warmup(inner, 10, shift=shift)
    seen = [(warmup(np.int32(t)), int(inner.step))[1] for t in (0, 9, 10, 12)]
    assert seen == ([0, 0, 0, 2] if shift else [10, 10, 10, 12])
    assert inner.step.dtype == tf.int64


def test_piecewise_fractions_of_epochs():
    schedule = PiecewiseConstant(1.0, [0.5, 1.25], [0.5, 0.25], steps_per_epoch=4)
    assert rates(schedule, range(8)).tolist() == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]


def test_piecewise_without_boundaries_is_constant():
    assert rates(PiecewiseConstant(0.5, [], []), [0, 9]).tolist() == [0.5, 0.5]


# What is refused.

NAN, INF = float("nan"), float("inf")
BASE = {
    FixedLR: {"learning_rate": 0.1},
    ExpDecay: {"learning_rate": 0.1, "decay_steps": 10, "decay_rate": 0.5},
    PolyDecay: {"learning_rate": 0.1, "decay_steps": 10},
    InvPolyDecay: {"learning_rate": 0.1, "decay_steps": 10, "min_lr": 0.01},
    PiecewiseConstant: {"learning_rate": 0.1, "boundaries": [3, 5], "decay_rates": [0.5, 0.1]},
    TransformerSchedule: {"d_model": 4, "warmup_steps": 4},
    Warmup: {"schedule": 0.1, "steps": 4},
    OneCycle: {"max_lr": 0.1, "total_steps": 20},
    Cyclical: {"base_lr": 0.1, "max_lr": 0.3, "step_size_up": 4},
    CyclicalMomentum: {"schedule": Cyclical(0.1, 0.3, 4)},
    CosineRestarts: {"learning_rate": 0.1, "first_decay_steps": 10},
    WarmupStableDecay: {"learning_rate": 0.1, "total_steps": 20, "decay_steps": 10},
    PowerDecay: {"learning_rate": 0.1},
    PowerLinearDecay: {"learning_rate": 0.1, "decay_steps": 20},
    StepCosine: {"boundaries": [3, 5], "values": [0.5, 0.1]},
    Sequence: {"schedules": [0.1, 0.2], "milestones": [3]},
}
BAD_VALUES = [
    *((cls, "learning_rate", value) for cls in BASE for value in (-0.1, NAN, INF, np.float32(NAN))),
    *((cls, "decay_steps", n) for cls in (ExpDecay, PolyDecay, InvPolyDecay) for n in (0, -1, 1.5)),
    *((cls, "min_lr", r) for cls in (ExpDecay, PolyDecay, InvPolyDecay) for r in (-1.0, 0.2, NAN)),
    *((cls, "begin_decay_at", -1) for cls in (ExpDecay, PolyDecay, InvPolyDecay)),
    *((cls, "warmup_steps", -1) for cls in (PolyDecay, InvPolyDecay, TransformerSchedule)),
    *((cls, "power", value) for cls in (PolyDecay, InvPolyDecay) for value in (0, -1, NAN, INF)),
    *((ExpDecay, "decay_rate", value) for value in (0.0, -0.5, 1.01, NAN)),
    (InvPolyDecay, "min_lr", 0.0),
    (InvPolyDecay, "learning_rate", 0.0),
    (PiecewiseConstant, "boundaries", [5, 3]),
    (PiecewiseConstant, "boundaries", [3, 3]),
    (PiecewiseConstant, "boundaries", [3]),
    (PiecewiseConstant, "boundaries", [-1, 3]),
    (PiecewiseConstant, "boundaries", [0.5, 3]),
    (PiecewiseConstant, "boundaries", [3, INF]),
    (PiecewiseConstant, "decay_rates", [0.5]),
    (PiecewiseConstant, "decay_rates", [0.5, -0.1]),
    (PiecewiseConstant, "decay_rates", [0.5, NAN]),
    (PiecewiseConstant, "steps_per_epoch", 0),
    (TransformerSchedule, "d_model", 0),
    (TransformerSchedule, "max_lr", 0.0),
    (TransformerSchedule, "coefficient", -1.0),
    (Warmup, "steps", -1),
    (Warmup, "shape", "wobbly"),
    (Warmup, "start", -0.1),
    (Warmup, "start", 1.1),
    (Warmup, "schedule", -0.1),
    *((cls, "max_lr", value) for cls in (OneCycle, Cyclical, PowerDecay) for value in (-1.0, NAN)),
    (OneCycle, "max_lr", 0.0),
    *((OneCycle, "total_steps", n) for n in (0, 2, 5.5)),
    *((OneCycle, "pct_start", share) for share in (0.0, 1.0, 0.04, 0.99, NAN)),
    (OneCycle, "anneal", "wobbly"),
    (OneCycle, "div_factor", 0.5),
    (OneCycle, "final_div_factor", 0.5),
    *((Cyclical, "base_lr", value) for value in (-0.1, 0.4, NAN)),
    (Cyclical, "step_size_up", 0),
    (Cyclical, "step_size_down", 0),
    (Cyclical, "mode", "wobbly"),
    (Cyclical, "gamma", 0.9),
    (CyclicalMomentum, "base_momentum", 0.96),
    (CyclicalMomentum, "max_momentum", 1.1),
    *((CosineRestarts, "first_decay_steps", n) for n in (0, 1.5)),
    *((CosineRestarts, "t_mul", n) for n in (0, 1.5)),
    *((CosineRestarts, "m_mul", n) for n in (0.0, 1.1)),
    *((CosineRestarts, "min_lr", n) for n in (-0.1, 0.2)),
    (WarmupStableDecay, "total_steps", 9),
    (WarmupStableDecay, "decay_steps", 0),
    (WarmupStableDecay, "decay_steps", 21),
    (WarmupStableDecay, "warmup_steps", 11),
    (WarmupStableDecay, "min_lr", 0.2),
    (WarmupStableDecay, "shape", "wobbly"),
    *((cls, "power", NAN) for cls in (PowerDecay, PowerLinearDecay)),
    *((cls, "offset", -1) for cls in (PowerDecay, PowerLinearDecay, StepCosine)),
    (PowerDecay, "max_lr", 0.0),
    (PowerLinearDecay, "decay_steps", 0),
    (PowerLinearDecay, "linear_fraction", 1.1),
    *((StepCosine, "boundaries", value) for value in ([5, 3], [0, 3], [3], [3, 4.5])),
    *((StepCosine, "values", value) for value in ([0.5], [0.5, -0.1])),
    *((Sequence, "milestones", value) for value in ([], [0], [3, 4], [-1], [1.5])),
    *((Sequence, "schedules", value) for value in ([], [0.1], [0.1, -0.1])),
]
BAD_VALUES = [bad for bad in BAD_VALUES if bad[1] in inspect.signature(bad[0]).parameters]
BAD_TYPES = [
    *(
        (cls, name, value)
        for cls in BASE
        for name in inspect.signature(cls).parameters
        for value in ("0.1", [[1]], {})
        if name not in ("shape", "anneal", "mode")
    ),
    *((cls, "learning_rate", value) for cls in BASE for value in (True, None)),
    (Warmup, "schedule", None),
    (Warmup, "schedule", True),
    (Warmup, "schedule", abs),
    (ExpDecay, "staircase", 1),
    (Warmup, "shift", "yes"),
    (PiecewiseConstant, "boundaries", [3, "5"]),
    (OneCycle, "three_phase", 1),
    (CyclicalMomentum, "schedule", 0.1),
    (Sequence, "schedules", [0.1, abs]),
]
BAD_TYPES = [bad for bad in BAD_TYPES if bad[1] in inspect.signature(bad[0]).parameters]


def assert_refused(error, cls, name, value):
    with pytest.raises(error, match=rf"(?s)^{cls.__name__}\(.*{name}.*: .*{name}") as caught:
        cls(**{**BASE[cls], name: value})
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("cls", BASE)
def test_bad_values_and_types_are_refused(cls):
    for error, bad in ((ValueError, BAD_VALUES), (TypeError, BAD_TYPES)):
        mine = [(name, value) for its, name, value in bad if its is cls]
        assert mine
        for name, value in mine:
            assert_refused(error, cls, name, value)


def test_errors_read_well():
    with pytest.raises(ValueError, match=r"^PolyDecay\(power=-1\): power must be finite and above"):
        PolyDecay(0.1, 10, power=-1)
    with pytest.raises(
        ValueError, match=r"^PolyDecay\(min_lr=0\.5\): min_lr must lie in \[0, 0\.1"
    ):
        PolyDecay(0.1, 10, min_lr=0.5)
    with pytest.raises(TypeError, match="use_staircase_decay"):
        ExpDecay(0.1, 10, 0.5, use_staircase_decay=True)


POLY = {"learning_rate": 0.1, "decay_steps": 10}
PIECES = {"learning_rate": 0.1, "boundaries": [3], "decay_rates": [0.5]}
NOAM = {"learning_rate": 1.0, "d_model": 4, "warmup_steps": 4}


@pytest.mark.parametrize(
    ("policy", "params", "message"),
    [
        ("poly_decay", {**POLY, "warmup_steps": None}, r"\['warmup_steps'\] must be a number"),
        ("poly_decay", {**POLY, "learning_rate": [0.1, 0.2]}, r"rate'\] must be a number"),
        ("piecewise_constant", {**PIECES, "boundaries": 3}, r"boundaries'\] must be a list of num"),
        ("piecewise_constant", {**PIECES, "decay_rates": ["a"]}, r"rates'\] must be a number"),
        ("transformer_policy", {**NOAM, "dtype": 3.5}, r"dtype'\] must be a float dtype"),
        ("transformer_policy", {**NOAM, "dtype": "int32"}, r"dtype'\] must be a float dtype"),
    ],
)
def test_what_no_policy_takes_is_refused(policy, params, message):
    with pytest.raises(TypeError, match=rf"^LrPolicy\(params\['.*{message}"):
        LrPolicy(policy, params)


def test_arguments_of_a_policy_may_be_numpys():
    numpy = {**PIECES, "boundaries": np.array([3]), "decay_rates": np.array([0.5], np.float32)}
    schedule = LrPolicy("piecewise_constant", numpy | {"learning_rate": np.float64(0.1)})
    assert schedule.params == PIECES
    assert type(schedule.params["boundaries"][0]) is int
    assert float(schedule(4)) == pytest.approx(0.05)
    for dtype in (np.float16, tf.float16, "float16"):
        policy = LrPolicy("transformer_policy", {**NOAM, "dtype": dtype, "max_lr": None})
        again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(policy))
        assert again.params == policy.params == {**NOAM, "dtype": "float16", "max_lr": None}
        assert float(again(65520)) == 0  # the trap of float16


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.array, int])
def test_numpy_numbers_become_plain_ones(kind):
    schedule = PolyDecay(kind(2), kind(10), power=kind(1), warmup_steps=kind(2))
    config = schedule.get_config()
    assert {type(value) for value in config.values()} == {int, float}
    assert config["learning_rate"] == 2.0


# Properties.

rate = st.floats(1e-6, 10.0)
whole = st.integers(0, 10_000)
length = st.integers(1, 10_000_000)
power = st.floats(1e-3, 50.0)
few = settings(max_examples=40, deadline=None, derandomize=True)
GRID = np.unique(np.concatenate([np.arange(60), np.geomspace(1, 1e9, 120).astype(np.int64)]))


def assert_falls_within(values, low, high):
    values = values.astype(np.float64)
    assert np.isfinite(values).all()
    assert (values >= np.float32(low)).all()
    assert (values <= np.float32(high)).all()
    assert (np.diff(values) <= 0).all()


@few
@given(rate, length, st.floats(1e-6, 1.0), st.booleans(), whole, st.floats(0, 1))
def test_exp_decay_falls_within_its_bounds(lr, steps, factor, staircase, begin, fraction):
    schedule = ExpDecay(lr, steps, factor, staircase, begin, fraction * lr)
    assert_falls_within(rates(schedule, GRID), fraction * lr, lr)


@few
@given(rate, length, power, whole, st.floats(1e-6, 1.0), whole, st.booleans())
def test_polynomial_decays_rise_then_fall(lr, steps, power, begin, fraction, warmup, inverse):
    end = fraction * lr
    if inverse:
        schedule = InvPolyDecay(lr, steps, end, power, begin, warmup)
    else:
        schedule = PolyDecay(lr, steps, power, begin, end, warmup)
    values = rates(schedule, GRID)
    assert_falls_within(values[warmup <= GRID], end, lr)
    assert_falls_within(values[warmup >= GRID][::-1], 0.0, lr)
    start = max(begin, warmup)
    edges = rates(schedule, [warmup, start, start + steps, start + steps + 1])
    np.testing.assert_allclose(edges, [lr, lr, end, end], rtol=1e-6)


@few
@given(st.lists(whole, unique=True), st.lists(rate, min_size=30, max_size=30))
def test_piecewise_takes_only_its_values(boundaries, factors):
    boundaries = sorted(boundaries)[:30]
    factors = factors[: len(boundaries)]
    values = rates(PiecewiseConstant(0.5, boundaries, factors), GRID)
    assert {*values.tolist()} <= {float(np.float32(0.5 * factor)) for factor in (1.0, *factors)}


@few
@given(rate, st.integers(1, 4096), whole, st.floats(1e-4, 1.0))
def test_noam_peaks_at_the_end_of_its_warm_up(lr, width, warmup, cap):
    schedule = Noam(lr, d_model=width, warmup_steps=warmup, max_lr=cap)
    values, peak = rates(schedule, GRID), max(warmup - 1, 0)
    top = float(schedule(peak))
    assert_falls_within(values[peak <= GRID], 0.0, top)
    assert_falls_within(values[peak >= GRID][::-1], 0.0, top)
    assert top <= np.float32(cap)


@few
@given(
    rate,
    whole,
    st.sampled_from(["linear", "quadratic", "cosine", "exponential"]),
    st.floats(1e-6, 1.0),
    st.booleans(),
)
def test_warmup_rises_from_its_start_and_then_follows(lr, steps, shape, start, shift):
    inner = PolyDecay(lr, 20_000)
    schedule = Warmup(inner, steps, shape, start, shift)
    offset = steps if shift else 0
    top = float(inner(steps - offset))
    rising = rates(schedule, GRID[steps >= GRID])
    assert_falls_within(rising[::-1], 0.0, top)
    np.testing.assert_allclose(rising[0], top * (start if steps else 1.0), rtol=1e-6)
    later = GRID[steps <= GRID]
    np.testing.assert_array_equal(rates(schedule, later), rates(inner, later - offset))


@pytest.mark.parametrize("power", [5e-324, 1e-300, 1e-3, 1.0, 1e3, 1e18, 1e300])
def test_no_power_is_too_small_or_too_large_for_inv_poly(power):
    values = rates(InvPolyDecay(1.0, 100, 1e-3, power), range(200))
    assert_falls_within(values, 1e-3, 1.0)
    np.testing.assert_allclose(values[[0, 100]], [1.0, 1e-3], rtol=1e-6)


@few
@given(rate, st.integers(20, 100_000), st.floats(0.1, 0.45), st.booleans(), st.booleans())
def test_one_cycle_rises_once_and_falls(top, total, share, straight, three_phase):
    anneal = "linear" if straight else "cosine"
    schedule = OneCycle(top, total, share, anneal, three_phase=three_phase)
    values, peak = rates(schedule, GRID), round(share * total) - 1
    assert_falls_within(values[peak <= GRID], top / 25e4, top)
    assert_falls_within(values[peak >= GRID][::-1], top / 25, top)
    momentum = rates(CyclicalMomentum(schedule), GRID)
    assert_falls_within(momentum[peak >= GRID], 0.85, 0.95)
    assert_falls_within(momentum[peak <= GRID][::-1], 0.85, 0.95)


@pytest.mark.slow
@few
@given(rate, st.integers(1, 10_000), st.integers(1, 12), st.floats(1e-3, 1.0), st.floats(0, 1))
def test_cosine_restarts_where_it_should(lr, length, t_mul, m_mul, fraction):
    schedule = CosineRestarts(lr, length, t_mul, m_mul, fraction * lr)
    starts = [sum(length * t_mul**j for j in range(i)) for i in range(6)]
    tops = [fraction * lr + (1 - fraction) * lr * m_mul**i for i in range(6)]
    np.testing.assert_allclose(rates(schedule, starts), tops, rtol=1e-6)
    for start, end in itertools.pairwise(starts):
        steps = np.unique(np.linspace(start, end - 1, 50).astype(np.int64))
        assert_falls_within(rates(schedule, steps), fraction * lr, lr)


# Configs and names.


def assert_same(a, b):
    assert type(a) is type(b)
    assert a.get_config() == b.get_config()
    assert [float(a(step)) for step in (0, 3, 9, 300)] == [
        float(b(step)) for step in (0, 3, 9, 300)
    ]


@only_schedules
def test_configs_round_trip(schedule):
    config = schedule.get_config()
    before = copy.deepcopy(config)
    assert list(config) == list(inspect.signature(type(schedule)).parameters)
    assert_same(type(schedule).from_config(config), schedule)
    assert config == before
    assert config == json.loads(json.dumps(config))


@only_schedules
def test_keras_serialization_round_trips(schedule):
    for serialize, deserialize in (
        (keras.saving.serialize_keras_object, keras.saving.deserialize_keras_object),
        (keras.optimizers.schedules.serialize, keras.optimizers.schedules.deserialize),
        (keras.saving.serialize_keras_object, schedules.get),
    ):
        config = serialize(schedule)
        assert config["registered_name"] == f"tf_graft>{type(schedule).__name__}"
        before = copy.deepcopy(config)
        assert_same(deserialize(config), schedule)
        assert config == before


def test_config_is_no_window_into_the_schedule():
    schedule = PiecewiseConstant(1.0, [3], [0.5])
    schedule.get_config()["boundaries"].append(4)
    boundaries = [3]
    other = PiecewiseConstant(1.0, boundaries, [0.5])
    boundaries[0] = 9
    assert schedule.boundaries == other.boundaries == [3]


def snake_case(name):
    return "".join("_" + c.lower() if c.isupper() else c for c in name).strip("_")


@pytest.mark.parametrize("cls", BASE)
def test_get_takes_names_in_either_case(cls):
    snake = {"FixedLR": "fixed_lr"}.get(cls.__name__, snake_case(cls.__name__))
    expected = cls(**BASE[cls])
    for name in (cls.__name__, snake, snake.replace("_", "").upper(), f"tf_graft>{cls.__name__}"):
        config = {"name": name, **BASE[cls]}
        before = copy.deepcopy(config, {id(held): held for held in [config.get("schedule")]})
        assert_same(schedules.get(config), expected)
        assert_same(schedules.get({"class_name": name, "config": BASE[cls]}), expected)
        assert config == before


def test_get_takes_schedules_numbers_and_keras_names():
    schedule = PolyDecay(0.1, 10)
    assert schedules.get(schedule) is schedule
    assert_same(schedules.get(0.5), FixedLR(0.5))
    assert_same(schedules.get(np.float32(0.5)), FixedLR(0.5))
    for name in ("cosine_decay", "CosineDecay"):
        cosine = schedules.get({"name": name, "initial_learning_rate": 0.1, "decay_steps": 10})
        assert isinstance(cosine, CosineDecay)
    config = {"initial_learning_rate": 0.1, "decay_steps": 10, "decay_rate": 0.5}
    exponential = schedules.get({"name": "exponential_decay", **config})
    assert isinstance(exponential, keras.optimizers.schedules.ExponentialDecay)
    assert_same(
        schedules.get({"name": "noam", "d_model": 4, "warmup_steps": 4}),
        Noam(d_model=4, warmup_steps=4),
    )


@pytest.mark.parametrize(
    ("inner", "cls"),
    [
        ({"name": "poly_decay", "learning_rate": 0.1, "decay_steps": 10}, PolyDecay),
        ({"name": "CosineDecay", "initial_learning_rate": 0.1, "decay_steps": 10}, CosineDecay),
        ({"name": "warmup", "schedule": 0.1, "steps": 2}, Warmup),
        (0.1, FixedLR),
    ],
)
def test_get_nests(inner, cls):
    config = {"name": "warmup", "schedule": inner, "steps": 5, "shape": "cosine"}
    before = copy.deepcopy(config)
    schedule = schedules.get(config)
    assert (type(schedule), type(schedule.schedule), schedule.shape) == (Warmup, cls, "cosine")
    assert config == before


def test_get_nests_in_sequences_and_momenta():
    cycle = {"name": "one_cycle", "max_lr": 0.1, "total_steps": 20}
    sequence = schedules.get(
        {
            "name": "sequence",
            "schedules": [0.1, {"name": "warmup", "schedule": cycle, "steps": 2}],
            "milestones": [3],
        }
    )
    assert_same(sequence, Sequence([0.1, Warmup(OneCycle(0.1, 20), 2)], [3]))
    momentum = schedules.get({"name": "cyclical_momentum", "schedule": cycle})
    assert_same(momentum, CyclicalMomentum(OneCycle(0.1, 20)))
    with pytest.raises(ValueError, match=r"OneCycle\(max_lr=-1\)"):
        schedules.get(
            {"name": "sequence", "schedules": [{**cycle, "max_lr": -1}], "milestones": []}
        )


@pytest.mark.parametrize(
    ("identifier", "error", "message"),
    [
        (
            "poly_deca",
            ValueError,
            r"^schedules\.get\('poly_deca'\): there is no such .*; did you mean 'poly_decay'\?$",
        ),
        (
            "zzz",
            ValueError,
            r"\('zzz'\): there is no such schedule; the nearest .*list_schedules\(\) lists all\.$",
        ),
        ("poly_decay", ValueError, "poly_decay also needs 'learning_rate', 'decay_steps'"),
        ({"name": "noam", "d_model": 4}, ValueError, "noam also needs 'warmup_steps'"),
        ({"name": "fixed_lr", "lr": 1, "b": 2}, ValueError, r"not take 'lr', 'b'.*learning_rate\."),
        ({"name": "warmup", "steps": 4}, ValueError, "warmup also needs 'schedule'"),
        ({"name": "fixed_lr", "learning_rate": -1}, ValueError, r"FixedLR\(learning_rate=-1\)"),
        ({"learning_rate": 1}, ValueError, "must have a 'name'"),
        (
            {"name": "sequence", "schedules": 3, "milestones": [1]},
            TypeError,
            r"^Sequence\(schedules=3\): schedules must be a list of schedules",
        ),
        ({"name": "warmup", "schedule": [1], "steps": 4}, TypeError, r"get\(\[1\]\): give a sch"),
        ({"name": 3}, TypeError, "the name is 3"),
        ({"name": ["warmup"]}, TypeError, "must be a string"),
        (None, TypeError, "give a schedule, a number"),
        (abs, TypeError, "give a schedule, a number"),
        (
            keras.saving.serialize_keras_object(keras.optimizers.SGD(0.1)),
            TypeError,
            "'SGD' is not a schedule",
        ),
    ],
)
def test_get_says_what_is_wrong(identifier, error, message):
    with pytest.raises(error, match=message):
        schedules.get(identifier)


def test_list_schedules_names_ours_and_keras():
    listed = schedules.list_schedules()
    assert {"fixed_lr", "exp_decay", "poly_decay", "inv_poly_decay", "piecewise_constant"} < {
        *listed
    }
    assert {"transformer_schedule", "noam", "warmup", "cosine_decay", "polynomial_decay"} < {
        *listed
    }
    assert listed["warmup"] == Warmup.__doc__.splitlines()[0]
    assert all(len(line) > 10 for line in listed.values())
    assert "learning_rate_schedule" not in listed


def test_public_names_exist():
    assert all(hasattr(schedules, name) for name in schedules.__all__)
    assert Noam is TransformerSchedule


# In Keras' own optimizers.


def downhill(schedule, **compile_arguments):
    """A weight from 0 with gradient -1: after n updates it is the sum of n rates."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.layers[0].kernel.assign([[0.0]])
    model.compile(
        keras.optimizers.SGD(schedule),
        loss=lambda y_true, y_pred: -tf.reduce_mean(y_pred, axis=-1),
        **compile_arguments,
    )
    return model


def fit(model, updates):
    ones = np.ones((updates, 1), np.float32)
    model.fit(ones, ones, batch_size=1, shuffle=False, verbose=0)
    return float(model.layers[0].kernel.numpy()[0, 0])


IN_FIT = {
    "poly": PolyDecay(1.0, 10, warmup_steps=3),
    "piecewise": PiecewiseConstant(1.0, [1, 3], [0.5, 0.25]),
    "warmup_keras": Warmup(CosineDecay(1.0, 10), 4),
}


@pytest.mark.parametrize("schedule", IN_FIT.values(), ids=IN_FIT)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_fit_uses_the_rate_of_each_step(schedule, jit_compile):
    weight = fit(downhill(schedule, jit_compile=jit_compile), 6)
    assert weight == pytest.approx(sum(float(schedule(step)) for step in range(6)), rel=1e-6)


# Keras copies variables in a way NumPy 2 warns about.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("schedule", IN_FIT.values(), ids=IN_FIT)
def test_a_saved_model_goes_on_where_it_stopped(schedule, tmp_path):
    model = downhill(schedule)
    model.compile(model.optimizer, loss="mean_absolute_error")
    inputs, targets = np.ones((4, 1), np.float32), np.full((4, 1), 1e6, np.float32)
    model.fit(inputs, targets, batch_size=1, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    loaded.fit(inputs, targets, batch_size=1, verbose=0)
    expected = sum(float(schedule(step)) for step in range(8))
    assert float(loaded.layers[0].kernel.numpy()[0, 0]) == pytest.approx(expected, rel=1e-6)
