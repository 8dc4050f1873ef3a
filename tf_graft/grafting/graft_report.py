"""The analysis of a graft's records."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import tensorflow as tf

from tf_graft.core.checks import shown
from tf_graft.core.files.report_files import ReportError
from tf_graft.grafting import fits, records
from tf_graft.grafting.measured_rates import MeasuredRates
from tf_graft.grafting.rate_checks import KINDS
from tf_graft.grafting.variance import Shares, decomposed

# A norm this far below the median layer's is rounding error: the true gradient is zero.
NEGLIGIBLE = 1e-4
# A layer that did not move in a larger share of its records than this has no useful ratio.
STANDSTILL = 0.5
# Rates count as closer only if their steps are closer by at least this share of their length.
WORTHWHILE = 0.05


class Layer(NamedTuple):
    """The measurements of one variable over the whole run; means are geometric, over the records.

    Args:
        path: the variable's path.
        shape: its shape.
        ratio: mean ratio of the magnitude's norm to the direction's.
        of_common: `ratio` divided by the mean over all layers.
        spread: the factor by which the ratio typically varies over the run, at least 1.
        magnitude: mean norm of the magnitude optimizer's steps.
        direction: mean norm of the direction optimizer's steps.
        weight: norm of the weights at the end.
        silent: the reason why the ratio is meaningless; empty if it is meaningful.
    """

    path: str
    shape: tuple[int, ...]
    ratio: float
    of_common: float
    spread: float
    magnitude: float
    direction: float
    weight: float
    silent: str


class GraftReport:
    """The norms and ratios of a graft during training, and the rates that follow from them.

    Args:
        recorded: the records of a run; `read` loads them from its folder or file.

    Attributes:
        records: the records.
        ratio: the magnitude's norm over the direction's, one row for each record and one column for
            each variable; NaN where a norm is zero or not finite.
        silent: the variables with a meaningless ratio, by path, with the reason. Some gradients are
            exactly zero except for rounding errors, for example that of an attention key's bias,
            and the magnitude optimizer may scale these errors to full length. Means and variances
            exclude these variables, and their exported rates are limited to the range of the other
            layers.
        shares: the parts of the variance of the ratio's logarithm; see `Shares`.

    Raises:
        ReportError: there are no records, or no variable has a ratio.
    """

    def __init__(self, recorded: records.Records) -> None:
        self.records = recorded
        self.paths = recorded.header.paths
        if not len(recorded.steps):
            raise ReportError("the run has no records yet.")
        self.ratio = _ratio(recorded.magnitude, recorded.direction)
        self.silent = _silent(recorded, self.ratio)
        self._speaking = np.array([path not in self.silent for path in self.paths])
        if not self._speaking.any():
            raise ReportError("in this run no variable has a ratio: the optimizers did not move.")
        self._logs = _filled(np.log(self.ratio[:, self._speaking]))
        self.shares: Shares = decomposed(self._logs)

    @classmethod
    def read(cls, run: str | Path) -> Self:
        """Makes the report on a run's folder or a file of records.

        Raises:
            ReportError: there are no records, or they cannot be read.
        """
        recorded = records.read(run)
        try:
            return cls(recorded)
        except ReportError as error:
            raise ReportError(f"{run}: {error}") from None

    @property
    def common(self) -> np.ndarray:
        """The geometric mean of the layers' ratios at each record."""
        return np.asarray(np.exp(self._logs.mean(axis=1)))

    def layers(self) -> list[Layer]:
        """Returns the variables, sorted by the distance of their ratio from the common one."""
        mean = self._logs.mean()
        with np.errstate(invalid="ignore", divide="ignore"):
            logs = np.log(self.ratio)
        rows = [self._layer(i, logs[:, i], mean) for i in range(len(self.paths))]
        return sorted(
            rows, key=lambda row: (bool(row.silent), -abs(np.log(row.of_common or 1)), row.path)
        )

    def _layer(self, i: int, logs: np.ndarray, mean: float) -> Layer:
        known = logs[np.isfinite(logs)]
        ratio = float(np.exp(known.mean())) if known.size else 0.0
        return Layer(
            self.paths[i],
            tuple(self.records.header.shapes[i]),
            ratio,
            ratio / float(np.exp(mean)),
            float(np.exp(known.std())) if known.size else 1.0,
            _geometric(self.records.magnitude[:, i]),
            _geometric(self.records.direction[:, i]),
            float(self.records.weight[-1, i]),
            self.silent.get(self.paths[i], ""),
        )

    def rates(self, kind: str = "piecewise") -> MeasuredRates:
        """Returns rates with which the direction optimizer alone makes the graft's steps on
        average.

        A rate is the geometric mean, over the records, of the graft's learning rate times the
        ratio.

        Args:
            kind: `"constant"`, one rate for each layer; `"piecewise"` or `"power_law"`, one factor
                for each layer and a shared curve; `"global"`, one factor for all.

        Raises:
            ValueError: the kind is unknown.
            ReportError: the graft's learning rate was always 0.
        """
        if kind not in KINDS:
            raise ValueError(f"rates(kind={shown(kind)}): kind must be one of {', '.join(KINDS)}.")
        at = self.records.learning_rate > 0
        if not at.any():
            raise ReportError("the graft's learning rate was always 0.")
        rate = self.records.learning_rate[at, np.newaxis]
        if kind == "global":
            magnitude, direction = (
                norms[at][:, self._speaking]
                for norms in (self.records.magnitude, self.records.direction)
            )
            return fits.everywhere(rate * magnitude, direction)
        speaking = [path for path in self.paths if path not in self.silent]
        logs = self._logs[at] + np.log(rate)
        try:
            fitted = fits.FITS[kind](speaking, self.records.steps[at].astype(float), logs)
        except ValueError as error:
            raise ReportError(f"no {kind} rates fit: {error}") from None
        return replace(fitted, rates=self._bounded(fitted.rates))

    def _bounded(self, rates: Mapping[str, float]) -> dict[str, float]:
        """Adds the rates of silent variables, clipped to the range of the others."""
        low, high = min(rates.values()), max(rates.values())
        common = float(np.exp(np.mean(np.log(list(rates.values())))))
        scale = common / float(np.exp(self._logs.mean()))
        silent = {
            layer.path: min(max(layer.ratio * scale, low), high) if layer.ratio else common
            for layer in self.layers()
            if layer.silent
        }
        return {path: rates[path] if path in rates else silent[path] for path in self.paths}

    def misses(self) -> dict[str, float]:
        """Returns the distance of each kind's steps from the graft's, relative to their length.

        The distance is the median over the records, on the recorded directions. `"free"` is the
        best single factor for all layers at each step, so no global schedule can do better.
        """
        direction = np.nan_to_num(self.records.direction[:, self._speaking])
        rate = self.records.learning_rate[:, np.newaxis]
        wanted = np.nan_to_num(rate * self.records.magnitude[:, self._speaking])
        moved = ((wanted**2).sum(axis=1) > 0) & ((direction**2).sum(axis=1) > 0)
        wanted, direction = wanted[moved], direction[moved]
        steps = tf.constant(self.records.steps[moved], tf.float64)
        best = (wanted * direction).sum(axis=1) / (direction**2).sum(axis=1)
        found = {"free": _miss(best[:, np.newaxis] * direction, wanted)}
        for kind in KINDS:
            rates = self.rates(kind)
            course = rates.course(steps)
            factors = np.array([rates.factor(p) for p in self.paths if p not in self.silent])
            made = factors * direction
            found[kind] = _miss(made if course is None else course.numpy()[:, None] * made, wanted)
        return found


def _ratio(magnitude: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Returns the ratio of the norms, NaN where it is undefined."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = magnitude / direction
    return np.where(np.isfinite(ratio) & (ratio > 0), ratio, np.nan)


def _silent(recorded: records.Records, ratio: np.ndarray) -> dict[str, str]:
    """Returns the variables whose ratio says nothing, by path, with the reason."""
    medians = {
        recorded.header.magnitude: np.median(recorded.magnitude, axis=0),
        recorded.header.direction: np.median(recorded.direction, axis=0),
    }
    still = np.isnan(ratio).mean(axis=0)
    silent = {}
    for i, path in enumerate(recorded.header.paths):
        if still[i] > STANDSTILL:
            silent[path] = f"no step in {still[i]:.0%} of the records"
        for owner, median in medians.items():
            if path not in silent and median[i] < NEGLIGIBLE * np.median(median):
                silent[path] = f"gradient of zero: {owner}'s steps are rounding"
    return silent


def _filled(x: np.ndarray) -> np.ndarray:
    """Fills the gaps in each column of a table by linear interpolation."""
    result = x.copy()
    at = np.arange(len(x))
    for column in result.T:
        known = np.isfinite(column)
        column[~known] = np.interp(at[~known], at[known], column[known])
    return result


def _geometric(norms: np.ndarray) -> float:
    positive = norms[np.isfinite(norms) & (norms > 0)]
    return float(np.exp(np.log(positive).mean())) if positive.size else 0.0


def _miss(made: np.ndarray, wanted: np.ndarray) -> float:
    lengths = [np.sqrt((x**2).sum(axis=1)) for x in (made - wanted, wanted)]
    return float(np.median(lengths[0] / lengths[1]))
