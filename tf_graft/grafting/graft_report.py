"""The analysis of a graft's records."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.core.checks import shown
from tf_graft.core.files.report_files import ReportError
from tf_graft.core.media import for_notebook
from tf_graft.grafting import fits, records
from tf_graft.grafting.measured_rates import MeasuredRates
from tf_graft.grafting.rate_checks import KINDS
from tf_graft.grafting.variance import Shares, decomposed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A norm this far below the median layer's is rounding error: the true gradient is zero.
NEGLIGIBLE = 1e-4
# A layer that did not move in a larger share of its records than this has no useful ratio.
STANDSTILL = 0.5
# The kind `auto` is the simplest of these whose steps are about as close as the closest ones', with
# so many ranges of records left out in turn.
AUTO = "auto"
SIMPLEST = ("global", "constant", "power_law", "piecewise")
ABOUT = 0.01
LEFT_OUT = 10
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

    A graft is a `tf_graft.AdaGraft`. A notebook shows the report as `plot` draws it.

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
        shares: the parts of the variance of the ratio's logarithm: `total`, the variance, and three
            shares of it, `shared` (the common course of all layers), `layer` (constant differences
            between layers) and `own` (the course of each layer alone).

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

    def __repr__(self) -> str:
        """Says what was recorded."""
        header, steps = self.records.header, self.records.steps
        return (
            f"<GraftReport: {header.magnitude}'s length, {header.direction}'s direction, "
            f"{len(self.paths)} variables, {len(steps):,} records to step {steps[-1]:,}>"
        )

    def _repr_png_(self) -> bytes | None:
        return for_notebook(self.plot)

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

    def plot(self, width: float = 8.0, height: float = 3.6) -> "Figure":
        """Draws the ratio of every layer over training; needs matplotlib.

        The layers that are furthest from the common ratio have names. Silent layers are left out.

        Args:
            width: inches.
            height: inches.

        Returns:
            The figure, with a logarithmic axis of ratios.
        """
        from tf_graft.grafting import figures

        speaking = [layer.path for layer in self.layers() if not layer.silent]
        curves = {path: self.ratio[:, self.paths.index(path)] for path in speaking}
        return figures.ratios(self.records.steps, curves, self.common, width, height)

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

    def rates(
        self, kind: str = "piecewise", *, with_learning_rate: bool = True, until: int | None = None
    ) -> MeasuredRates:
        """Returns rates with which the direction optimizer alone makes the graft's steps on
        average.

        A rate is the geometric mean, over the records, of the graft's learning rate times the
        ratio.

        Args:
            kind: `"constant"`, one rate for each layer; `"piecewise"` or `"power_law"`, one factor
                for each layer and a shared curve; `"global"`, one factor for all; `"auto"`, the
                result of `best_kind`.
            with_learning_rate: whether the rates contain the graft's learning rate. Without it,
                give the schedule to `LayerwiseRates(learning_rate=...)`: then it can be longer than
                the graft's.
            until: the last step whose records count; None for all records.

        Raises:
            TypeError: `until` is no number.
            ValueError: the kind is unknown, or `until` is negative or no whole number.
            ReportError: the graft's learning rate or its steps were always 0 until then, or nothing
                was recorded.
        """
        if kind not in (*KINDS, AUTO):
            known = ", ".join((*KINDS, AUTO))
            raise ValueError(f"rates(kind={shown(kind)}): kind must be one of {known}.")
        at = self._moving()
        if checks.integer("rates", "until", until, 0, optional=True) is not None:
            at = at[self.records.steps[at] <= until]
        if not at.size:
            raise ReportError(f"until step {until}, no step of the graft was recorded.")
        kind = self._best_kind(at) if kind == AUTO else kind
        return self._fitted(kind, at, with_learning_rate)

    def best_kind(self) -> str:
        """Returns the kind whose rates best match the graft's steps in records left out of the fit.

        The records are divided into ranges of steps. Each range is left out in turn; the rates are
        fitted to the others, and the distance is measured on it, as in `misses`. Of kinds whose
        distances differ by less than a hundredth, the simplest one is chosen.

        Raises:
            ReportError: the graft's learning rate or its steps were always 0.
        """
        return self._best_kind(self._moving())

    def _moving(self) -> np.ndarray:
        """Returns the numbers of the records in which the graft made a step."""
        direction, wanted = self._steps(np.arange(len(self.records.steps)))
        at = np.flatnonzero(direction.any(axis=1) & wanted.any(axis=1))
        if not at.size:
            raise ReportError("the graft's learning rate or its steps were always 0.")
        return at

    def _best_kind(self, at: np.ndarray) -> str:
        left_out = np.array_split(at, min(LEFT_OUT, len(at)))
        if len(left_out) == 1:
            return "constant"

        def miss(kind: str) -> float:
            fitted = ((self._fitted(kind, np.setdiff1d(at, part)), part) for part in left_out)
            return float(np.median(np.concatenate([self._missed(*each) for each in fitted])))

        misses = {kind: miss(kind) for kind in SIMPLEST}
        return next(k for k in SIMPLEST if misses[k] <= min(misses.values()) + ABOUT)

    def _fitted(self, kind: str, at: np.ndarray, with_learning_rate: bool = True) -> MeasuredRates:
        """Fits rates to the records of some numbers."""
        rate = self.records.learning_rate[at, np.newaxis]
        if not with_learning_rate:
            rate = np.ones_like(rate)
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
            path: min(max(ratio * scale, low), high) if ratio else common
            for path, ratio in self._silent_ratios.items()
        }
        return {path: rates[path] if path in rates else silent[path] for path in self.paths}

    @functools.cached_property
    def _silent_ratios(self) -> dict[str, float]:
        return {layer.path: layer.ratio for layer in self.layers() if layer.silent}

    def misses(self) -> dict[str, float]:
        """Returns the distance of each kind's steps from the graft's, relative to their length.

        The distance is the median over the records, on the recorded directions. `"free"` is the
        best single factor for all layers at each step, so no global schedule can do better.
        """
        at = np.arange(len(self.records.steps))
        direction, wanted = self._steps(at)
        with np.errstate(divide="ignore", invalid="ignore"):
            best = (wanted * direction).sum(axis=1) / (direction**2).sum(axis=1)
        found = {"free": float(np.median(_distances(best[:, np.newaxis] * direction, wanted)))}
        found |= {kind: float(np.median(self._missed(self.rates(kind), at))) for kind in KINDS}
        return found

    def _missed(self, rates: MeasuredRates, at: np.ndarray) -> np.ndarray:
        """Returns the distances of rates' steps from the graft's, at the records of some numbers.

        Records of steps of length 0 are left out.
        """
        direction, wanted = self._steps(at)
        course = rates.course(tf.constant(self.records.steps[at], tf.float64))
        factors = np.array([rates.factor(p) for p in self.paths if p not in self.silent])
        made = factors * direction
        return _distances(made if course is None else course.numpy()[:, None] * made, wanted)

    def _steps(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the lengths of the directions and of the graft's steps, by record and layer."""
        direction = np.nan_to_num(self.records.direction[at][:, self._speaking])
        rate = self.records.learning_rate[at, np.newaxis]
        return direction, np.nan_to_num(rate * self.records.magnitude[at][:, self._speaking])


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


def _distances(made: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns the distances between steps relative to those wanted, without steps of length 0."""
    lengths = [np.sqrt((x**2).sum(axis=1)) for x in (made - wanted, wanted)]
    moved = (made**2).sum(axis=1) > 0
    moved &= lengths[1] > 0
    return np.asarray(lengths[0][moved] / lengths[1][moved])
