"""Loss scalers by name, for configs, saved models and users."""

import inspect
import numbers
from collections.abc import Mapping
from typing import TypeGuard

import keras
import numpy as np

from tf_graft.core.arguments.names import Registry, refuse_unknown
from tf_graft.core.checks import shown
from tf_graft.core.types import Config
from tf_graft.scaling.backoff import BackoffScaler
from tf_graft.scaling.fixed import FixedScaler
from tf_graft.scaling.logmax import LogMaxScaler
from tf_graft.scaling.scaler import LossScaler

SCALERS: Registry[LossScaler] = Registry("loss scaler")
SCALERS.add(FixedScaler, "fixed", "FixedScaler")
SCALERS.add(BackoffScaler, "backoff", "BackoffScaler")
SCALERS.add(LogMaxScaler, "logmax", "LogMaxScaler")
# The parameters of OpenSeq2Seq, with their types.
_BOUNDS: dict[str, type] = {"scale_min": float, "scale_max": float}
_PARAMS: dict[str, dict[str, type]] = {
    "backoff": _BOUNDS | {"step_factor": float, "step_window": int},
    "logmax": _BOUNDS
    | {"log_max": float, "beta1": float, "beta2": float, "overflow_std_dev": float},
}


def AutomaticLossScaler(
    algorithm: str = "Backoff", params: Mapping[str, object] | None = None
) -> LossScaler:
    """Makes a scaler from OpenSeq2Seq's arguments.

    Differences from OpenSeq2Seq: the result is a plain `BackoffScaler` or `LogMaxScaler`, and the
    ranges of arguments are checked.

    Args:
        algorithm: `"Backoff"` or `"LogMax"`, in upper or lower case. Default `"Backoff"`.
        params: the scaler's arguments by name, each of its exact type (1.0, not 1, for a float).
            OpenSeq2Seq has no `hysteresis`, so it is not allowed here. Default None, no arguments.

    Raises:
        TypeError: `algorithm` is not a string, or `params` not a dict.
        ValueError: the algorithm or a parameter is unknown, or a parameter has the wrong type or is
            out of range.

    Example:
        >>> AutomaticLossScaler("LogMax", {"scale_max": 1024.0}).scale_max
        1024.0

    Reference:
        OpenSeq2Seq, `automatic_loss_scaler.AutomaticLossScaler` (arXiv:1805.10387).
    """
    call = f"AutomaticLossScaler(algorithm={shown(algorithm)})"
    if not isinstance(algorithm, str):
        raise TypeError(f"{call}: algorithm must be 'Backoff' or 'LogMax'.")
    if params is not None and not isinstance(params, Mapping):
        raise TypeError(f"{call}: params is {shown(params)}; it must be a dict or None.")
    name = algorithm.lower().strip()
    if name not in _PARAMS:
        what = f"Unknown scaling algorithm: {shown(name, str)}"
        raise ValueError(f"{call}: {what}; use 'Backoff' or 'LogMax'.")
    given = dict(params or {})
    for key, kind in _PARAMS[name].items():
        if key in given and not isinstance(given[key], kind):
            raise ValueError(f"{call}: {key} has to be of type {kind}, not {shown(given[key])}.")
    for key in given:
        if key not in _PARAMS[name]:
            known = ", ".join(_PARAMS[name])
            raise ValueError(f"{call}: Unknown parameter: {shown(key, str)}; there are {known}.")
    return get({"name": name, **given})


def get(identifier: object) -> LossScaler:
    """Returns the scaler for a name, a config, a number or a scaler.

    Args:
        identifier: a scaler, returned as it is; a number, for a fixed scale; None, for 1; a name
            (`"backoff"`, `"logmax"`, `"fixed"`; case and underscores do not matter); a flat config
            (`{"name": "backoff", "step_window": 100}`); or the result of
            `keras.saving.serialize_keras_object` on a scaler. A dict is left unchanged.

    Raises:
        TypeError: `identifier` is none of these.
        ValueError: the name or an argument is unknown, or an argument is refused.

    Example:
        >>> get({"name": "backoff", "step_window": 100}).step_window
        100
    """
    if isinstance(identifier, LossScaler):
        return identifier
    if identifier is None:
        return FixedScaler()
    if isinstance(identifier, str):
        return _build(identifier, {})
    if isinstance(identifier, Mapping) and "class_name" in identifier:
        return _deserialized(identifier)
    if isinstance(identifier, Mapping) and isinstance(identifier.get("name"), str):
        return _build(identifier["name"], {k: v for k, v in identifier.items() if k != "name"})
    if _is_number(identifier):
        return FixedScaler(identifier)
    raise TypeError(
        f"scaling.get({shown(identifier)}): give a scaler, a number, None, a name, or a dict with "
        "'name' or 'class_name'."
    )


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _build(name: str, arguments: Config) -> LossScaler:
    cls = SCALERS.get(name.strip())
    if cls is None:
        raise SCALERS.unknown("scaling.get", name)
    refuse_unknown(f"scaling.get: {name}", inspect.signature(cls).parameters, arguments)
    return cls(**arguments)


def _deserialized(config: Mapping[str, object]) -> LossScaler:
    try:
        result = keras.saving.deserialize_keras_object(dict(config))
    except TypeError as error:  # Keras raises it for unknown classes
        reason = shown(error, str)
        raise ValueError(
            f"scaling.get({shown(config)}): it is not a loss scaler: {reason}."
        ) from None
    if not isinstance(result, LossScaler):
        raise ValueError(f"scaling.get: {shown(config['class_name'])} is not a loss scaler.")
    return result
