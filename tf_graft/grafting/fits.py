"""Fits: each reduces a table of rates, steps by layers, to a few numbers."""

from collections.abc import Sequence

import numpy as np

from tf_graft.grafting.measured_rates import MeasuredRates
from tf_graft.grafting.rate_checks import STEEPEST
from tf_graft.grafting.variance import parts

KNOTS = 32


def constant(paths: Sequence[str], steps: np.ndarray, logs: np.ndarray) -> MeasuredRates:
    """Fits one rate for each layer: the geometric mean over the steps."""
    return MeasuredRates("constant", _rates(paths, logs))


def piecewise(paths: Sequence[str], steps: np.ndarray, logs: np.ndarray) -> MeasuredRates:
    """Fits one factor for each layer, and a curve through geometric means over ranges of steps."""
    _, shared, _, _ = parts(logs)
    ranges = np.array_split(np.arange(len(steps)), min(KNOTS, len(steps)))
    knots = tuple(float(steps[part].mean()) for part in ranges)
    curve = tuple(float(np.exp(shared[part].mean())) for part in ranges)
    return MeasuredRates("piecewise", _rates(paths, logs), steps=knots, curve=curve)


def power_law(paths: Sequence[str], steps: np.ndarray, logs: np.ndarray) -> MeasuredRates:
    """Fits one factor for each layer, and a power of the step, by least squares of logarithms."""
    _, shared, _, _ = parts(logs)
    log_steps = np.log(steps)
    reference = log_steps.mean()
    offsets = log_steps - reference
    squares = float(offsets @ offsets)
    exponent = float(offsets @ shared) / squares if squares else 0.0
    exponent = min(max(exponent, -STEEPEST), STEEPEST)
    return MeasuredRates(
        "power_law",
        _rates(paths, logs),
        reference_step=float(np.exp(reference)),
        exponent=exponent,
    )


def everywhere(magnitude: np.ndarray, direction: np.ndarray) -> MeasuredRates:
    """Fits one factor for all layers: the geometric mean of the ratio of the norms over all."""
    totals = [np.sqrt((norms**2).sum(axis=1)) for norms in (magnitude, direction)]
    moved = (totals[0] > 0) & (totals[1] > 0)
    ratio = totals[0][moved] / totals[1][moved]
    return MeasuredRates("global", rate=float(np.exp(np.log(ratio).mean())))


FITS = {"constant": constant, "piecewise": piecewise, "power_law": power_law}


def _rates(paths: Sequence[str], logs: np.ndarray) -> dict[str, float]:
    return dict(zip(paths, np.exp(logs.mean(axis=0)).tolist(), strict=True))
