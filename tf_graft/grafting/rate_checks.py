"""Checks of the content of a rates file."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tf_graft.core.checks import fault, shown
from tf_graft.core.types import Config

FORMAT = "tf_graft layerwise rates 1"
KINDS = ("constant", "piecewise", "power_law", "global")
LARGEST = 1e30  # leaves room for products in float32
STEEPEST = 100.0
LAST = 2**31  # the largest number of steps considered

# The keys of a rates file in addition to `format` and `kind`.
KEYS = {
    "constant": {"rates"},
    "piecewise": {"rates", "steps", "curve"},
    "power_law": {"rates", "reference_step", "exponent"},
    "global": {"rate"},
}


def checked(values: object) -> Config:
    """Returns the arguments of `MeasuredRates` that the content describes."""
    if not isinstance(values, Mapping) or values.get("format") != FORMAT:
        raise ValueError(f"rates have a 'format', which is {FORMAT!r}.")
    kind = values.get("kind")
    given, wanted = set(values) - {"format", "kind"}, of_kind(kind)
    if given != wanted:
        wrong, problem = min(
            [(str(key), "is unknown") for key in given - wanted]
            + [(key, "is missing") for key in wanted - given]
        )
        raise ValueError(f"{wrong[:60]!r} {problem} for kind {kind!r}.")
    arguments = each_checked({key: values[key] for key in wanted})
    if _highest(**arguments) > math.log(LARGEST):
        raise ValueError(f"within {LAST} steps a rate would be above {LARGEST:g}.")
    return {"kind": kind, **arguments}


def each_checked(arguments: Config) -> Config:
    """Returns the arguments of a kind of rates as numbers, each checked, but not their course."""
    result: Config = {name: CHECKS[name](name, value) for name, value in arguments.items()}
    steps, curve = result.get("steps", ()), result.get("curve", ())
    if len(steps) != len(curve) or any(a >= b for a, b in itertools.pairwise(steps)):
        raise ValueError("steps must increase, and the curve must have one value for each.")
    return result


def of_kind(kind: object) -> set[str]:
    """Returns the names of the arguments that belong to a kind of rates."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind is {shown(kind)}; it must be one of {', '.join(KINDS)}.")
    return KEYS[kind]


def _highest(
    rates: Mapping[str, float] | None = None,
    rate: float = 1.0,
    steps: Sequence[float] = (),
    curve: Sequence[float] = (1.0,),
    reference_step: float = 1.0,
    exponent: float = 0.0,
) -> float:
    """Returns the logarithm of the highest rate at any step."""
    course = max(exponent * math.log(step / reference_step) for step in (1, LAST))
    factor = max(rates.values()) if rates else rate
    return math.log(factor * max(curve)) + course if factor else -math.inf


def _number(name: str, value: object) -> float:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {shown(value)[:60]}; it must be a number.")
    if not abs(value) <= LARGEST:  # NaN too
        raise ValueError(f"{name} is {shown(value)[:60]}; it must be finite.")
    return float(value)


def _rate(name: str, value: object) -> float:
    rate = _number(name, value)
    if rate < 0:
        raise ValueError(f"{name} is {value}; it must be at least 0.")
    if must := fault(rate):
        raise ValueError(f"{name} is {value}; it must {must}.")
    return rate


def _positive(name: str, value: object) -> float:
    number = _number(name, value)
    if number < 1e-30:
        raise ValueError(f"{name} is {value}; it must be above 0.")
    return number


def _exponent(name: str, value: object) -> float:
    exponent = _number(name, value)
    if abs(exponent) > STEEPEST:
        raise ValueError(f"{name} is {value}; it must lie in [-{STEEPEST:g}, {STEEPEST:g}].")
    return exponent


def _rates(name: str, values: object) -> dict[str, float]:
    if not isinstance(values, Mapping) or not values:
        raise ValueError(f"{name} must be a number for each variable.")
    return {str(path): _rate(f"the rate of {shown(path)}", value) for path, value in values.items()}


def _numbers(name: str, values: object) -> tuple[float, ...]:
    plain = values.tolist() if isinstance(values, np.ndarray) else values  # 0-d: one number
    if not isinstance(plain, list | tuple) or not plain:
        raise ValueError(f"{name} must be a list of numbers.")
    return tuple(_positive(f"an entry of {name}", value) for value in plain)


CHECKS: dict[str, Callable[[str, object], object]] = {
    "rates": _rates,
    "rate": _rate,
    "steps": _numbers,
    "curve": _numbers,
    "reference_step": _positive,
    "exponent": _exponent,
}
