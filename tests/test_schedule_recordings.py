"""Schedules against the rates that other programs computed, and Keras' own classes.

Every case of PyTorch and the Model Garden that was recorded is here: the schedule of this package
that equals it, or the callback of Keras, or the reason why there is none.
"""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from support import recordings
from tf_graft import schedules
from tf_graft.schedules import (
    CosineRestarts,
    Cyclical,
    CyclicalMomentum,
    ExpDecay,
    OneCycle,
    PiecewiseConstant,
    PolyDecay,
    PowerDecay,
    Sequence,
    Warmup,
)

GOLDENS = Path(__file__).parent / "goldens"
TORCH = json.loads((GOLDENS / "lr_schedulers_torch.json").read_text())["cases"]
OTHER = json.loads((GOLDENS / "lr_schedules_other.json").read_text())["cases"]
GARDEN = json.loads((GOLDENS / "lr_schedules_model_garden.json").read_text())["cases"]


class ScaledByCycle(Cyclical):
    """A scale of one's own: 1 / 5^(0.01 n), where the first cycle is n = 1."""

    power = 0.01

    def scale(self, t, cycle):
        return 5.0 ** (-self.power * (tf.cast(cycle, tf.float64) + 1))


class ScaledLess(ScaledByCycle):
    power = 1e-4


class ScaledByStep(Cyclical):
    def scale(self, t, cycle):
        return 5.0 ** (-1e-4 * tf.cast(t, tf.float64))


ASYMMETRIC = (0.01, 0.11, 3, 5)
EQUAL = {
    # A product of schedules is written as their sequence.
    "chained_constant_exponential": Sequence(
        [ExpDecay(0.01, 1, 0.9), ExpDecay(0.1 * 0.9**3, 1, 0.9)], [3]
    ),
    "constant": Sequence([0.03, 0.1], [4]),
    "cosine_restarts_T3_mult3": CosineRestarts(0.1, 3, t_mul=3),
    "cosine_restarts_T5_mult1": CosineRestarts(0.1, 5),
    "cyclic_exp_range_asym_momentum": Cyclical(*ASYMMETRIC, mode="exp_range", gamma=0.9),
    "cyclic_scale_fn_cycle": ScaledByCycle(0.01, 0.11, 3),
    "cyclic_triangular": Cyclical(0.01, 0.11, 4),
    "cyclic_triangular_asym_momentum": Cyclical(*ASYMMETRIC),
    "linear": Warmup(0.1, 5, start=0.25),
    "linear_down": PolyDecay(0.1, 7, min_lr=0.01),
    # A boundary belongs to the piece before it, and a factor is one of the first rate.
    "multistep": PiecewiseConstant(0.1, [2, 6, 9], [0.1, 0.001, 0.0001]),
    "onecycle_cos": OneCycle(0.5, 20),
    "onecycle_linear": OneCycle(0.5, 20, 0.4, "linear", 10.0, 100.0),
    "onecycle_three_phase": OneCycle(0.5, 20, three_phase=True),
    "onecycle_three_phase_linear_nomomentum": OneCycle(1.0, 15, 0.4, "linear", three_phase=True),
    "polynomial": PolyDecay(0.1, 8, 2.0),
    "sequential_linear_step": Sequence(
        [Warmup(0.1, 5, start=0.2), ExpDecay(0.1, 3, 0.5, staircase=True)], [5]
    ),
    "step": ExpDecay(0.1, 4, 0.5, staircase=True),
}
MOMENTA = {
    name: CyclicalMomentum(EQUAL[name], 0.8 if name.startswith("cyclic") else 0.85)
    for name, case in TORCH.items()
    if "momenta" in case
}
# Keras' callback waits for `patience` epochs without an improvement, PyTorch's for one more; and
# Keras counts the last epoch of a cooldown as one of those, PyTorch does not.
PLATEAUS = {
    "plateau_min_abs_cooldown": {"factor": 0.5, "patience": 2, "min_delta": 0.02, "cooldown": 3},
    "plateau_min_lr": {"factor": 0.1, "patience": 1, "min_delta": 1e-4, "min_lr": 0.005},
    "plateau_nan": {"factor": 0.5, "patience": 2, "min_delta": 1e-4},
}
WITHOUT = {
    "plateau_max_abs_eps": "Keras' callback has no `eps`, below which PyTorch leaves the rate."
}


def test_every_recorded_case_is_here():
    assert {*TORCH} == {*EQUAL, *PLATEAUS, *WITHOUT}
    assert {*MOMENTA} == {name for name in TORCH if "momenta" in TORCH[name]}
    assert len(MOMENTA) == 5


@pytest.mark.parametrize("name", EQUAL)
def test_rates_equal_torchs(name):
    rates = [float(EQUAL[name](step)) for step in range(len(TORCH[name]["rates"]))]
    np.testing.assert_allclose(rates, TORCH[name]["rates"], rtol=3e-7, atol=1e-12)
    off = np.abs(np.array(rates) - TORCH[name]["rates"]).max() / max(rates)
    recordings.check(f"lr_schedulers_torch/{name}", off, 3e-7)


@pytest.mark.parametrize("name", MOMENTA)
def test_momenta_equal_torchs(name):
    momenta = [float(MOMENTA[name](step)) for step in range(len(TORCH[name]["momenta"]))]
    np.testing.assert_allclose(momenta, TORCH[name]["momenta"], rtol=2e-7)


LONG = "tfa_tests/cyclical_learning_rate__"
EXPONENTIAL = Cyclical(0.1, 1.0, 2000, mode="exp_range", gamma=0.996)
OTHERS = {
    "optax_schedules/cosine_onecycle": OneCycle(1.0, 21, 1 / 3),
    "optax_schedules/linear_onecycle": Sequence(
        [
            Warmup(1.0, 6, start=0.04),
            PolyDecay(1.0, 11, min_lr=0.04),
            PolyDecay(0.04, 3, min_lr=4e-6),
        ],
        [6, 17],
    ),
    "optax_schedules/piecewise_interpolate": Sequence(
        [CosineRestarts(1.0, 4, min_lr=0.5), CosineRestarts(0.5, 6, min_lr=0.1), 0.1], [4, 10]
    ),
    "optax_schedules/warmup_exponential": Warmup(
        ExpDecay(1.0, 5, 0.5, staircase=True, begin_decay_at=2), 4
    ),
    "tfa_cyclical_rate/custom_cycle": ScaledLess(0.01, 0.11, 3),
    "tfa_cyclical_rate/exponential": Cyclical(0.01, 0.11, 4, mode="exp_range", gamma=0.95),
    "tfa_cyclical_rate/triangular": Cyclical(0.01, 0.11, 4),
    f"{LONG}custom_cyclical_learning_rate__1": ScaledLess(0.1, 1.0, 4000),
    f"{LONG}custom_cyclical_learning_rate_with_scale_mode__0": ScaledByStep(0.1, 1.0, 4000),
    f"{LONG}exponential_cyclical_learning_rate__0": EXPONENTIAL,
    f"{LONG}exponential_cyclical_learning_rate__1": EXPONENTIAL,
    f"{LONG}triangular2_cyclical_learning_rate__0": Cyclical(0.1, 1.0, 30, mode="triangular2"),
    f"{LONG}triangular_cyclical_learning_rate__1": Cyclical(0.1, 1.0, 40),
}


@pytest.mark.parametrize("name", OTHERS)
def test_rates_equal_those_of_others(name):
    """TensorFlow Addons computes in float32, and its tests with a scale begin at step 1."""
    first = int("custom" in name and name.startswith(LONG))
    expected = OTHER[name]
    rates = [float(OTHERS[name](step)) for step in range(first, first + len(expected))]
    off = np.abs(np.array(rates) - expected).max() / max(rates)
    recordings.check(name, off, 1e-6)


def test_every_recording_of_others_is_here():
    assert {*OTHER} == {*OTHERS}


def after_epochs(callback, metrics):
    """Returns the rates of an optimizer of rate 0.1 over epochs with these values of a metric."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    callback.set_model(model)
    callback.on_train_begin()
    rates = []
    for epoch, metric in enumerate(metrics):
        rates.append(float(model.optimizer.learning_rate))
        callback.on_epoch_end(epoch, {"loss": float(metric)})
    return rates


@pytest.mark.parametrize("name", PLATEAUS)
def test_keras_callback_equals_torchs_plateau(name):
    callback = keras.callbacks.ReduceLROnPlateau("loss", mode="min", **PLATEAUS[name])
    rates = after_epochs(callback, TORCH[name]["metrics"])
    np.testing.assert_allclose(rates, TORCH[name]["rates"], rtol=1e-6)


@pytest.mark.parametrize("setting", GARDEN["direct_power"] + GARDEN["power_with_offset"])
def test_power_equals_the_model_gardens(setting):
    params = dict(setting["params"])
    offset = params.pop("offset", 0)
    before = params.pop("pre_offset_learning_rate", 1e6 if "offset" in setting["params"] else None)
    schedule = PowerDecay(params["initial_learning_rate"], params["power"], offset, before)
    rates = [float(schedule(step)) for step in setting["steps"]]
    np.testing.assert_allclose(rates, setting["values"], rtol=3e-7)


# Where Keras' own class is right, there is none here.


def inverse_time(t, staircase):
    return 0.3 / (1 + 0.4 * (t // 7 if staircase else t / 7))


def poly_cycle(t):
    length = 7 * max(1, -(-t // 7))
    return 0.01 + 0.29 * (1 - t / length) ** 2


OF_KERAS = {
    **{
        f"inverse_time_{staircase}": (
            {"name": "inverse_time_decay", "decay_rate": 0.4, "staircase": staircase},
            lambda t, staircase=staircase: inverse_time(t, staircase),
        )
        for staircase in (False, True)
    },
    "poly_cycle": (
        {"name": "polynomial_decay", "end_learning_rate": 0.01, "power": 2.0, "cycle": True},
        poly_cycle,
    ),
}


@pytest.mark.parametrize(("config", "oracle"), OF_KERAS.values(), ids=OF_KERAS)
def test_keras_class_is_right_from_a_config(config, oracle):
    schedule = schedules.get({**config, "initial_learning_rate": 0.3, "decay_steps": 7})
    steps = [*range(60), 699, 700, 701, 300_000]
    rates = [float(schedule(step)) for step in steps]
    np.testing.assert_allclose(rates, [oracle(t) for t in steps], rtol=1e-6)


@pytest.mark.slow
def test_keras_restarts_are_wrong_where_ours_are_right():
    """In a compiled step; as long as this holds, `CosineRestarts` has its reason."""
    theirs = tf.function(keras.optimizers.schedules.CosineDecayRestarts(1.0, 2, t_mul=6.0))
    ours = tf.function(CosineRestarts(1.0, 2, t_mul=6))
    restarts = [tf.constant(step, tf.int64) for step in (2, 14, 86, 518)]
    assert [float(theirs(step)) for step in restarts] == [0.0] * 4
    assert [float(ours(step)) for step in restarts] == [1.0] * 4
