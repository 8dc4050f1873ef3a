"""The public face, called with arguments that make no sense: each is refused in one sentence.

A refused call changes nothing: neither weights, nor state, nor the attribute that was assigned.
Constructors, and attributes after it, of every optimizer, wrapper, schedule and scaler; methods of
optimizers; functions of the face (`calls.py`).
"""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tf_graft
from tf_graft.core.wrapped import Wrapped
from trust import Result, calls
from trust.nonsense import (
    ABOVE_ONE,
    BETA,
    BOOLEAN,
    CALLED,
    CHOICE,
    COUNT,
    FROM_ONE,
    FROM_TWO,
    MESH,
    NAME,
    NO_FINITE,
    NO_NUMBERS,
    NOT_NEGATIVE,
    NOTHING,
    OPTIMIZER,
    PATTERNS,
    POSITIVE,
    RATE,
    SET_RATE,
    TINY,
    UNIT,
    Values,
)

ERRORS = (TypeError, ValueError, tf.errors.InvalidArgumentError)
LONGEST = 700  # characters of a sentence

COMMON: dict[str, Values] = {
    "weight_decay": NOT_NEGATIVE,
    "clipnorm": POSITIVE,
    "clipvalue": POSITIVE,
    "global_clipnorm": POSITIVE,
    "use_ema": BOOLEAN,
    "ema_momentum": UNIT | NOTHING,
    "ema_overwrite_frequency": FROM_ONE,
    "loss_scale_factor": POSITIVE,
    "gradient_accumulation_steps": FROM_TWO,
    "name": NAME,
    "mesh": MESH,
    "jit_compile": CHOICE,
    "sparse": CHOICE,
    "nonfinite": CHOICE,
    "exclude_from_weight_decay": PATTERNS,
}
ADAM = {"beta_1": BETA, "beta_2": BETA, "epsilon": POSITIVE, "amsgrad": BOOLEAN}
LAYERWISE = {"weight_decay_rate": NOT_NEGATIVE, "exclude_from_layer_adaptation": PATTERNS}
OWN_RATE = {"learning_rate": RATE | NOTHING}
# Of each class: what it is made with, and what of its arguments makes no sense.
OPTIMIZERS: dict[type, tuple[dict[str, Any], dict[str, Values]]] = {
    tf_graft.SGD: ({}, OWN_RATE | {"momentum": UNIT, "nesterov": BOOLEAN}),
    tf_graft.Momentum: ({}, OWN_RATE | {"momentum": UNIT, "use_nesterov": BOOLEAN}),
    tf_graft.Adagrad: (
        {},
        OWN_RATE | {"initial_accumulator_value": NOT_NEGATIVE, "epsilon": POSITIVE},
    ),
    tf_graft.Adadelta: ({}, OWN_RATE | {"rho": UNIT, "epsilon": POSITIVE}),
    tf_graft.RMSprop: (
        {"momentum": 0.5},
        OWN_RATE
        | {"rho": UNIT, "momentum": UNIT, "epsilon": POSITIVE, "centered": BOOLEAN}
        | {"initial_velocity": NOT_NEGATIVE},
    ),
    tf_graft.Adam: ({}, OWN_RATE | ADAM),
    tf_graft.AdamW: ({}, OWN_RATE | ADAM | {"weight_decay": NOT_NEGATIVE | NOTHING}),
    tf_graft.NovoGrad: (
        {},
        OWN_RATE
        | {"beta1": BETA, "beta2": BETA, "epsilon": POSITIVE, "grad_averaging": BOOLEAN}
        | {"weight_decay": NOT_NEGATIVE | NOTHING},
    ),
    tf_graft.LARS: (
        {},
        OWN_RATE
        | LAYERWISE
        | {"momentum": UNIT, "eeta": POSITIVE, "epsilon": NOT_NEGATIVE, "nesterov": BOOLEAN}
        | {"classic_momentum": BOOLEAN, "sum_of_norms": BOOLEAN},
    ),
    tf_graft.LAMB: ({}, OWN_RATE | LAYERWISE | {k: ADAM[k] for k in list(ADAM)[:3]}),
    tf_graft.AdaGraft: (
        {"magnitude_optimizer": "sgd", "direction_optimizer": "adam"},
        OWN_RATE
        | {"magnitude_optimizer": OPTIMIZER, "direction_optimizer": OPTIMIZER}
        | {"use_global_norm": BOOLEAN, "diagnostic": BOOLEAN},
    ),
    tf_graft.LARC: (
        {"optimizer": "sgd"},
        {"optimizer": OPTIMIZER, "learning_rate": RATE, "eta": POSITIVE, "mode": CHOICE}
        | {"min_update": UNIT, "epsilon": NOT_NEGATIVE, "exclude_from_layer_adaptation": PATTERNS},
    ),
    tf_graft.AGN: (
        {"optimizer": "adam"},
        {"optimizer": OPTIMIZER, "learning_rate": RATE, "mode": CHOICE, "num_worker": FROM_ONE}
        | {"communication_period": FROM_ONE, "use_locking": BOOLEAN, "reset_local_state": BOOLEAN}
        | {"center_optimizer": {k: v for k, v in OPTIMIZER.items() if v is not None}},
    ),
    tf_graft.MixedPrecision: (
        {"optimizer": "sgd"},
        {"optimizer": OPTIMIZER, "learning_rate": RATE, "loss_scale": calls.SCALER},
    ),
    tf_graft.LayerwiseRates: (
        {"optimizer": "sgd", "rates": calls.RATES},
        OWN_RATE | {"optimizer": OPTIMIZER, "rates": calls.NO_RATES},
    ),
    Wrapped: ({"optimizer": "lion"}, {"optimizer": OPTIMIZER, "learning_rate": RATE}),
}
# What else holds its arguments: schedules and loss scalers.
WHOLE: dict[str, Values] = {"decay_steps": FROM_ONE, "begin_decay_at": COUNT, "warmup_steps": COUNT}
NUMBER = NOT_NEGATIVE | NOTHING
# What is computed with in float64 may be as small or large as it can hold.
WIDE = {*TINY, *("1e39", "1e300", "1 in float32", "above 1 - 2^-25")}
FLOAT64, ANY_SIZE, WIDE_BETA = (
    {k: v for k, v in values.items() if k not in WIDE} for values in (POSITIVE, NOT_NEGATIVE, BETA)
)
schedules, scaling = tf_graft.schedules, tf_graft.scaling
POLY = {"learning_rate": 0.5, "decay_steps": 4}
HOLDERS: dict[type, tuple[dict[str, Any], dict[str, Values]]] = {
    schedules.FixedLR: ({"learning_rate": 0.5}, {"learning_rate": NUMBER}),
    schedules.PolyDecay: (
        POLY,
        WHOLE
        | {"learning_rate": NUMBER, "power": FLOAT64}
        | {"min_lr": ANY_SIZE | {"above the rate": 0.6}},
    ),
    schedules.InvPolyDecay: (
        {**POLY, "min_lr": 0.25},
        WHOLE
        | {"learning_rate": POSITIVE, "power": FLOAT64}
        | {"min_lr": FLOAT64 | {"above the rate": 0.6}},
    ),
    schedules.ExpDecay: (
        {**POLY, "decay_rate": 0.5},
        {"learning_rate": NUMBER, "decay_steps": FROM_ONE, "begin_decay_at": COUNT}
        | {"decay_rate": FLOAT64 | {"1.5": 1.5}, "staircase": BOOLEAN}
        | {"min_lr": ANY_SIZE | {"above the rate": 0.6}},
    ),
    schedules.PiecewiseConstant: (
        {"learning_rate": 0.5, "boundaries": [1, 2], "decay_rates": [0.5, 0.25]},
        {"learning_rate": NUMBER, "steps_per_epoch": FROM_ONE | {"2^53": 2**53}}
        | {
            "boundaries": calls.BOUNDARIES,
            "decay_rates": calls.each_in(NOT_NEGATIVE, 0.5)
            | {"one": [0.5], "products above float32": [3e38, 1e30 * 1e9]},
        },
    ),
    schedules.TransformerSchedule: (
        {"d_model": 4, "warmup_steps": 4},
        {"learning_rate": NUMBER, "d_model": FROM_ONE, "warmup_steps": COUNT, "max_lr": POSITIVE}
        | {"coefficient": NUMBER},
    ),
    schedules.Warmup: (
        {"schedule": 0.5, "steps": 4},
        {"schedule": {k: v for k, v in RATE.items() if k != "a schedule of a NaN variable"}}
        | {"steps": COUNT, "shape": CHOICE, "start": UNIT, "shift": BOOLEAN},
    ),
    schedules.LrPolicy: (
        {"policy": "poly_decay", "params": POLY},
        {
            "policy": CHOICE,
            "params": {
                **{"a list": [1], "text": "a", "3": 3, "nothing": {}, "unknown": {**POLY, "q": 1}},
                **{f"{k}, a rate": {**POLY, "learning_rate": v} for k, v in NO_FINITE.items()},
                **{
                    f"{k}, a rate": {**POLY, "learning_rate": v}
                    for k, v in NO_NUMBERS.items()
                    if k != "a list"
                },
            },
        },
    ),
    scaling.FixedScaler: ({}, {"loss_scale": calls.SCALE}),
    scaling.BackoffScaler: (
        {},
        {"scale_min": calls.SCALE | {"above scale_max": 2.0**15}, "scale_max": calls.SCALE}
        | {"step_factor": ABOVE_ONE, "step_window": FROM_ONE, "hysteresis": COUNT},
    ),
    scaling.LogMaxScaler: (
        {},
        {"scale_min": calls.SCALE | {"above scale_max": 2.0**15}, "scale_max": calls.SCALE}
        | {"log_max": NO_NUMBERS | NO_FINITE | {"129": 129, "-127": -127}}
        | {
            "beta1": WIDE_BETA,
            "beta2": WIDE_BETA,
            "overflow_std_dev": ANY_SIZE | {"2^127": 2.0**127},
        },
    ),
}
# Attributes that Python itself keeps from being set, or that are not what the argument was.
UNSET = ("exclude_from_weight_decay", "loss_scale", "rates", *("optimizer", "center_optimizer"))
CHILDREN = ("magnitude_optimizer", "direction_optimizer")


class Place(NamedTuple):
    """Where nonsense is put.

    Args:
        name: where, in a few words.
        words: of these a message must have one.
        values: the nonsense.
        call: given a value, does what must be refused.
        present: what must be the same afterwards.
    """

    name: str
    words: tuple[str, ...]
    values: Values
    call: Callable[[Any], Any]
    present: Callable[[], Any] = lambda: None


def attacks(every: int) -> Iterator[Result]:
    """Gives each place each of its values, or one in so many; each place one at least."""
    for number, place in enumerate(_places()):
        apart = min(every, len(place.values))
        for position, (kind, value) in enumerate(place.values.items()):
            if (number + position) % apart == 0:
                yield Result(f"{place.name}, {kind}", wrong(place, value))


def wrong(place: Place, value: Any) -> str | None:
    """What is wrong with how a value was received; None where it was refused."""
    before = place.present()
    try:
        place.call(value)
    except ERRORS as error:
        fault = _no_sentence(str(error), place.words)
    except Exception as error:
        fault = f"{type(error).__name__}: {str(error)[:150]}"
    else:
        fault = "accepted"
    return fault or (None if _same(before, place.present()) else "refused, and changed something")


def _no_sentence(message: str, words: tuple[str, ...]) -> str | None:
    """Why a message is not one sentence about one of the words."""
    shown = f"{message[:150]!r}"
    if "\n" in message or len(message) > LONGEST or not re.search(r"[.?]$", message):
        return f"no sentence: {shown}"
    return None if any(word in message for word in words) else f"not about {words}: {shown}"


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(_same(before[k], after[k]) for k in before)
    if isinstance(before, np.ndarray):
        return before.tobytes() == after.tobytes()
    return before is after or before == after


def _places() -> Iterator[Place]:
    yield from _constructors()
    yield from _attributes()
    for cls, (given, _) in OPTIMIZERS.items():
        yield from _called_rates(cls, given)
        yield from calls.of_optimizer(Place, cls(**given))
    yield from calls.of_functions(Place)


def _constructors() -> Iterator[Place]:
    for cls, (given, own) in (OPTIMIZERS | HOLDERS).items():
        for argument, values in ({**COMMON, **own} if cls in OPTIMIZERS else own).items():

            def make(value: Any, cls: Any = cls, given: Any = given, name: str = argument) -> Any:
                return cls(**{**given, name: value})

            named = "optimizer" in argument or argument in ("loss_scale", "rates")
            words = (argument, "get(", "get:", *(("SGD(", "Scaler(", "/:") if named else ()))
            words = words if argument != "params" else ("LrPolicy(",)
            yield Place(f"{cls.__name__}({argument}=...)", words, values, make)


def _attributes() -> Iterator[Place]:
    for cls, (given, own) in (OPTIMIZERS | HOLDERS).items():
        holder, of_optimizer = cls(**given), cls in OPTIMIZERS
        everything = {**COMMON, **own, "learning_rate": SET_RATE} if of_optimizer else own
        if of_optimizer:
            holder.build([tf.Variable([1.0, 2.0], name="w")])
        for argument, values in everything.items():
            if argument in (*UNSET, *CHILDREN):
                continue

            def put(value: Any, holder: Any = holder, name: str = argument) -> None:
                setattr(holder, name, value)

            def present(holder: Any = holder, name: str = argument) -> Any:
                held = getattr(holder, name)
                return (
                    held.numpy()
                    if isinstance(held, tf.Variable) or hasattr(held, "numpy")
                    else held
                )

            words = (argument,) if argument != "params" else ("LrPolicy(",)
            yield Place(f"{cls.__name__}().{argument} = ...", words, values, put, present)


def _called_rates(cls: type, given: dict[str, Any]) -> Iterator[Place]:
    def build(value: Any) -> None:
        cls(**{**given, "learning_rate": value}).build([tf.Variable([1.0], name="w")])

    yield Place(f"{cls.__name__}(learning_rate=...).build", ("rate",), CALLED, build)


def arguments_without_nonsense() -> set[str]:
    """Arguments of constructors that no attack is made on."""
    found = set()
    for cls, (_, own) in (OPTIMIZERS | HOLDERS).items():
        attacked = {*own, *(COMMON if cls in OPTIMIZERS else ()), "common"}
        found |= {f"{cls.__name__}.{name}" for name in inspect.signature(cls).parameters} - {
            f"{cls.__name__}.{name}" for name in attacked
        }
    return found
