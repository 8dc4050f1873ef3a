"""Checks the arguments of Keras' own optimizers and schedules, which Keras does not check."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.core.arguments import options

Check = Callable[[str, str, object], object]


def _number(**bounds: Any) -> Check:
    return functools.partial(checks.number, **bounds)


def _numbers(owner: str, name: str, value: object) -> list[float]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{owner}({name}={checks.shown(value)}): {name} must be a list of numbers.")
    return [checks.number(owner, name, each) for each in value]


ANY: Check = checks.number
SHARE = _number(low=0, high=1)
FADING = _number(low=0, high=1, open_high=True)  # with 1 an average would never forget
AT_LEAST_0 = _number(low=0)
ABOVE_0 = _number(low=0, open_low=True)
AT_MOST_0 = _number(high=0)
OPTIONAL = _number(low=0, optional=True)

CHECKS: dict[str, Check] = {
    **dict.fromkeys(("beta_1", "beta_2", "adam_beta_1", "adam_beta_2"), FADING),
    **dict.fromkeys(("momentum", "rho", "alpha"), SHARE),
    **dict.fromkeys(("epsilon", "epsilon_1", "epsilon_2", "clip_threshold"), ABOVE_0),
    **dict.fromkeys(("decay_steps", "first_decay_steps", "t_mul"), ABOVE_0),
    **dict.fromkeys(("beta_2_decay", "learning_rate_power"), AT_MOST_0),
    **dict.fromkeys(("l1_regularization_strength", "l2_regularization_strength"), AT_LEAST_0),
    **dict.fromkeys(("l2_shrinkage_regularization_strength", "beta"), AT_LEAST_0),
    **dict.fromkeys(("initial_accumulator_value", "adam_lr_ratio", "decay_rate"), AT_LEAST_0),
    **dict.fromkeys(("initial_learning_rate", "end_learning_rate"), AT_LEAST_0),
    **dict.fromkeys(("m_mul", "power"), AT_LEAST_0),
    **dict.fromkeys(("weight_decay", "adam_weight_decay", "rms_rate", "warmup_target"), OPTIONAL),
    **dict.fromkeys(("muon_a", "muon_b", "muon_c"), ANY),
    **dict.fromkeys(("boundaries", "values"), _numbers),
    **dict.fromkeys(("amsgrad", "centered", "nesterov", "relative_step"), checks.boolean),
    **dict.fromkeys(("exclude_embeddings", "staircase", "cycle"), checks.boolean),
    "exclude_layers": checks.patterns,
    "ns_steps": functools.partial(checks.integer, low=1),
    "warmup_steps": functools.partial(checks.integer, low=0),
    # In this class the name means something else; Lion itself refuses what is not in (0, 1].
    "Lion.beta_1": SHARE,
}


def check(owner: str, given: Mapping[str, object]) -> None:
    """Refuses arguments of a Keras class that make no sense.

    Args:
        owner: the class.
        given: its own arguments. Tensors and variables, which may change, are not checked.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range.
    """
    for name, value in given.items():
        found = CHECKS.get(f"{owner}.{name}") or CHECKS.get(name)
        if found and not isinstance(value, tf.Tensor | tf.Variable | keras.Variable):
            found(owner, name, value)


def checked(cls: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all arguments of a Keras optimizer; a learning rate that is a number is a float.

    Raises:
        TypeError: an argument is unknown or has the wrong type.
        ValueError: an argument is out of range, or more than one way of clipping is given.
    """
    own = [name for name in inspect.signature(cls).parameters if name in CHECKS]
    common = {k: v for k, v in given.items() if k not in (*own, "learning_rate")}
    options.checked(cls.__name__, own, common)
    check(cls.__name__, given)
    rate = given.get("learning_rate")
    if rate is None or callable(rate) or isinstance(rate, Mapping):
        return dict(given)
    return {**given, "learning_rate": checks.number(cls.__name__, "learning_rate", rate, 0)}
