"""One table of every optimizer, and the small problem that the guarantees run on.

A guarantee loops over `SAMPLES`; where an optimizer is an exception, that is data on its row with
the reason beside it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import numpy as np
import oracles
import pytest
import tensorflow as tf

import tf_graft

RATE = 0.1


class Refusal(NamedTuple):
    """Arguments that the constructor refuses, and how."""

    kwargs: dict[str, Any]
    error: type[Exception]
    message: str


@dataclass(frozen=True)
class Sample:
    """One optimizer in one configuration.

    Attributes:
        name: how tests call it.
        cls: its class.
        kwargs: what is given beside the learning rate and the common options.
        idle: declared: a zero gradient changes neither slots nor weights.
        rowwise: declared: each row is updated from that row alone.
        stock: Keras' optimizer with the same arguments.
        oracle: its update rule in float64 NumPy.
        slots: the roles it remembers for each variable.
        rtol: float32 against float64, relative to the largest step.
        stock_rtol: against Keras in float32, relative to the learning rate.
        xla_ulps: how far the sum of a few steps compiled by XLA, or done by a kernel, may lie from
            the same uncompiled, and so may each slot: in units in the last place of the largest
            entry of the variable.
        refuses: what its own arguments must not be.
    """

    name: str
    cls: type[tf_graft.Optimizer]
    kwargs: dict[str, Any]
    idle: bool
    stock: type[keras.optimizers.Optimizer]
    oracle: Callable[..., Any]
    slots: tuple[str, ...] = ()
    rowwise: bool = True
    rtol: float = 2e-6
    stock_rtol: float = 2e-6
    xla_ulps: int = 4
    refuses: tuple[Refusal, ...] = field(default=(), repr=False)

    def make(self, learning_rate: Any = RATE, **options: Any) -> tf_graft.Optimizer:
        """A new optimizer, with common options or other arguments."""
        return self.cls(learning_rate, **(self.kwargs | options))

    def make_stock(self, learning_rate: Any = RATE, **options: Any) -> keras.optimizers.Optimizer:
        """Keras' counterpart."""
        return self.stock(learning_rate, **(self.kwargs | options))

    def make_oracle(self, weights: dict[str, Any], learning_rate: Any = RATE, **options: Any):
        """The whole pipeline in float64, from the same arguments."""
        everything = self.kwargs | options
        own = {k: v for k, v in everything.items() if k not in COMMON_NAMES}
        common = {k: v for k, v in everything.items() if k in COMMON_NAMES}
        return oracles.Oracle(self.oracle, weights, learning_rate, own, **common)


# Written out here, so that an argument that appears in the package and not in the tests is noticed.
COMMON_NAMES = (
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "loss_scale_factor",
    "gradient_accumulation_steps",
    "name",
    "mesh",
    "jit_compile",
    "sparse",
    "nonfinite",
    "exclude_from_weight_decay",
)


def _number(owner: str, name: str, *wrong: Any, must: str) -> tuple[Refusal, ...]:
    """Refusals of one argument: values out of range, then what is no number at all."""
    out_of_range = [
        Refusal({name: value}, ValueError, f"{owner}({name}={value}): {name} must {must}.")
        for value in (*wrong, float("nan"), float("inf"))
    ]
    no_number = [
        Refusal({name: value}, TypeError, f"{owner}({name}={value!r}): {name} must be a number.")
        for value in ("0.1", True, None, [0.1])
    ]
    return (*out_of_range, *no_number)


def _boolean(owner: str, name: str) -> tuple[Refusal, ...]:
    message = f"{owner}({name}={{!r}}): {name} must be True or False."
    return tuple(Refusal({name: v}, TypeError, message.format(v)) for v in (1, "yes", None))


# Keras takes 1 - beta_2^t in float32, where it loses half its digits at the first steps.
_ADAM_STOCK_RTOL = 1e-4

_UNIT = "lie in [0, 1]"
_BETA = "lie in [0, 1)"
_POSITIVE = "be finite and above 0"
_NOT_NEGATIVE = "be finite and at least 0"

_SGD = (
    *_number("SGD", "momentum", -0.1, 1.1, must=_UNIT),
    *_boolean("SGD", "nesterov"),
)
_ADAGRAD = (
    *_number("Adagrad", "initial_accumulator_value", -0.1, must=_NOT_NEGATIVE),
    *_number("Adagrad", "epsilon", 0, -1e-7, must=_POSITIVE),
)
_ADADELTA = (
    *_number("Adadelta", "rho", -0.1, 1.1, must=_UNIT),
    *_number("Adadelta", "epsilon", 0, -1e-7, must=_POSITIVE),
)
_RMSPROP = (
    *_number("RMSprop", "rho", -0.1, 1.1, must=_UNIT),
    *_number("RMSprop", "momentum", -0.1, 1.1, must=_UNIT),
    *_number("RMSprop", "epsilon", 0, -1e-7, must=_POSITIVE),
    *_boolean("RMSprop", "centered"),
)


def _adam(owner: str) -> tuple[Refusal, ...]:
    return (
        *_number(owner, "beta_1", -0.1, 1, 1.5, must=_BETA),
        *_number(owner, "beta_2", -0.1, 1, 1.5, must=_BETA),
        *_number(owner, "epsilon", 0, -1.0, must=_POSITIVE),
        *_boolean(owner, "amsgrad"),
    )


SAMPLES = (
    Sample(
        name="sgd",
        cls=tf_graft.SGD,
        kwargs={},
        idle=True,
        stock=keras.optimizers.SGD,
        oracle=oracles.sgd,
        refuses=_SGD,
    ),
    Sample(
        name="sgd_momentum",
        cls=tf_graft.SGD,
        kwargs={"momentum": 0.9},
        idle=False,
        stock=keras.optimizers.SGD,
        oracle=oracles.sgd,
        slots=("momentum",),
    ),
    Sample(
        name="sgd_nesterov",
        cls=tf_graft.SGD,
        kwargs={"momentum": 0.9, "nesterov": True},
        idle=False,
        stock=keras.optimizers.SGD,
        oracle=oracles.sgd,
        slots=("momentum",),
    ),
    Sample(
        name="adagrad",
        cls=tf_graft.Adagrad,
        kwargs={},
        idle=True,
        stock=keras.optimizers.Adagrad,
        oracle=oracles.adagrad,
        slots=("accumulator",),
        refuses=_ADAGRAD,
    ),
    Sample(
        name="adadelta",
        cls=tf_graft.Adadelta,
        kwargs={},
        idle=False,
        stock=keras.optimizers.Adadelta,
        oracle=oracles.adadelta,
        slots=("accumulated_gradient", "accumulated_delta"),
        xla_ulps=16,  # a product of two roots, which XLA rounds otherwise, feeds the next step's
        refuses=_ADADELTA,
    ),
    Sample(
        name="rmsprop",
        cls=tf_graft.RMSprop,
        kwargs={},
        idle=False,
        stock=keras.optimizers.RMSprop,
        oracle=oracles.rmsprop,
        slots=("velocity",),
        refuses=_RMSPROP,
    ),
    Sample(
        name="rmsprop_momentum",
        cls=tf_graft.RMSprop,
        kwargs={"momentum": 0.5},
        idle=False,
        stock=keras.optimizers.RMSprop,
        oracle=oracles.rmsprop,
        slots=("velocity", "momentum"),
    ),
    Sample(
        name="rmsprop_centered_momentum",
        cls=tf_graft.RMSprop,
        kwargs={"momentum": 0.5, "centered": True},
        idle=False,
        stock=keras.optimizers.RMSprop,
        oracle=oracles.rmsprop,
        slots=("velocity", "momentum", "average_gradient"),
    ),
    Sample(
        name="adam",
        cls=tf_graft.Adam,
        kwargs={},
        idle=False,
        stock=keras.optimizers.Adam,
        oracle=oracles.adam,
        slots=("momentum", "velocity"),
        stock_rtol=_ADAM_STOCK_RTOL,
        refuses=_adam("Adam"),
    ),
    Sample(
        name="adam_amsgrad",
        cls=tf_graft.Adam,
        kwargs={"amsgrad": True},
        idle=False,
        stock=keras.optimizers.Adam,
        oracle=oracles.adam,
        slots=("momentum", "velocity", "velocity_hat"),
        stock_rtol=_ADAM_STOCK_RTOL,
    ),
    Sample(
        name="adamw",
        cls=tf_graft.AdamW,
        kwargs={"weight_decay": 0.05},
        idle=False,
        stock=keras.optimizers.AdamW,
        oracle=oracles.adam,
        slots=("momentum", "velocity"),
        stock_rtol=_ADAM_STOCK_RTOL,
        refuses=(
            *_adam("AdamW"),
            *_number("AdamW", "weight_decay", -0.1, must=_NOT_NEGATIVE),
        ),
    ),
)
BY_NAME = {sample.name: sample for sample in SAMPLES}

# The common options, each alone; numbers chosen so that each bites on the problem below.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weight_decay": {"weight_decay": 0.2},
    "weight_decay_excluded": {"weight_decay": 0.2, "exclude_from_weight_decay": ["bias$"]},
    "clipvalue": {"clipvalue": 0.5},
    "clipnorm": {"clipnorm": 0.8},
    "global_clipnorm": {"global_clipnorm": 0.8},
    "accumulation": {"gradient_accumulation_steps": 2},
    "ema": {"use_ema": True, "ema_momentum": 0.7},
    "ema_overwrite": {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2},
    "loss_scale": {"loss_scale_factor": 10.0},
    "together": {
        "weight_decay": 0.2,
        "global_clipnorm": 0.8,
        "gradient_accumulation_steps": 2,
        "use_ema": True,
        "ema_momentum": 0.7,
        "ema_overwrite_frequency": 2,
        "loss_scale_factor": 10.0,
    },
}

# The problem: a matrix, a vector and a scalar.
SHAPES = {"kernel": (4, 3), "bias": (3,), "scale": ()}


def each(samples=SAMPLES, argument: str = "sample", quick: Sequence[str] | None = None):
    """Parametrizes a test by sample; all but those named in `quick` are slow then."""
    return pytest.mark.parametrize(
        argument,
        [
            pytest.param(
                sample,
                id=sample.name,
                marks=[pytest.mark.slow] if quick and sample.name not in quick else [],
            )
            for sample in samples
        ],
    )


def each_option(*left_out: str, argument: str = "option"):
    """Parametrizes a test by the name of an option."""
    return pytest.mark.parametrize(argument, [name for name in OPTIONS if name not in left_out])


def weights(shapes=None, dtype="float32", seed=1) -> dict[str, np.ndarray]:
    """Initial weights by path, of magnitude one."""
    random = np.random.default_rng(seed)
    return {
        p: random.normal(size=s).astype(dtype)
        for p, s in (SHAPES if shapes is None else shapes).items()
    }


def gradients(count: int, shapes=None, dtype="float32", seed=2) -> list[dict[str, np.ndarray]]:
    """`count` steps of dense gradients by path, of magnitude one."""
    random = np.random.default_rng(seed)
    return [
        {
            p: random.normal(size=s).astype(dtype)
            for p, s in (SHAPES if shapes is None else shapes).items()
        }
        for _ in range(count)
    ]


def variables(values: dict[str, Any], dtype: str | None = None) -> dict[str, keras.Variable]:
    """Keras variables with those paths and values."""
    return {
        path: keras.Variable(value, dtype=dtype or np.asarray(value).dtype.name, name=path)
        for path, value in values.items()
    }


def slices(ids: Any, values: Any, rows: int | None = None) -> tf.IndexedSlices:
    """A row-sparse gradient, with its dense shape where `rows` is given."""
    values = tf.convert_to_tensor(values)
    shape = None if rows is None else tf.constant([rows, *values.shape[1:]], tf.int64)
    return tf.IndexedSlices(values, tf.constant(np.asarray(ids, np.int64)), shape)


def state_of(optimizer: Any, *model: Any) -> dict[str, np.ndarray]:
    """Every variable of the optimizer and the model, by its path without the optimizer's name."""
    prefix = f"{optimizer.name}/"
    found = {v.path.removeprefix(prefix): v.numpy() for v in optimizer.variables}
    found |= {f"model {i}": v.numpy() for i, v in enumerate(model)}
    assert len(found) == len(optimizer.variables) + len(model), "paths are not distinct"
    return found


def assert_same_state(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Bit for bit, NaN included, naming what differs."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype, name
        assert actual[name].tobytes() == value.tobytes(), f"'{name}' differs"
