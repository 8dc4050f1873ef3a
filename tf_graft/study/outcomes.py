"""The results of the runs of a study."""

import hashlib
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tf_graft.study.plan import Cell, Plan, Trial
from tf_graft.training import config as configs
from tf_graft.training import folder, results
from tf_graft.training.folder import RunFolder
from tf_graft.training.schema import RunConfig
from tf_graft.training.source import ConfigError

# The keys that may change between two calls of a study; more epochs would change schedules.
FREE = tuple(key for key in folder.FREE if key != "run.epochs")


class Outcome(NamedTuple):
    """An arm on a task, at the best value of its sweep, with the metric of each seed.

    Args:
        cell: the task and the arm.
        value: the value that the sweep chose; empty without a sweep.
        metrics: the metric by seed, of the runs that have ended.
        swept: the metric of the first seed by value.
    """

    cell: Cell
    value: str
    metrics: Mapping[int, float]
    swept: Mapping[str, float]

    @property
    def mean(self) -> float:
        """The mean over the seeds; NaN without a run, or if one has diverged."""
        return math.nan if self.diverged else statistics.fmean(self.finite or [math.nan])

    @property
    def deviation(self) -> float:
        """The sample deviation over the seeds; NaN with fewer than two, or if a run diverged."""
        known = not self.diverged and len(self.finite) > 1
        return statistics.stdev(self.finite) if known else math.nan

    @property
    def finite(self) -> list[float]:
        """The metrics of the runs that have not diverged."""
        return [metric for metric in self.metrics.values() if math.isfinite(metric)]

    @property
    def diverged(self) -> bool:
        """Whether the metric of a run is NaN or infinite."""
        return len(self.finite) < len(self.metrics)


class Outcomes:
    """The numbers of a study's runs, read from their folders.

    Args:
        plan: the study.
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self._known: dict[Trial, float] = {}

    def metric(self, trial: Trial) -> float | None:
        """Returns the metric of a run; None if the run has not ended.

        Raises:
            ConfigError: a run that has ended has no such number, or was made with other values
                than the study has now, or after another run than the one that is there now.
        """
        if trial not in self._known:
            numbers = _numbers(trial)
            if numbers is None or not self.ready(trial):
                return None
            self.check(trial, self.config(trial))
            self._known[trial] = float(_number(numbers, self.plan))
        return self._known[trial]

    def config(self, trial: Trial) -> RunConfig:
        """Returns the config of a run, with the value that the sweep of the arm before chose.

        Raises:
            ConfigError: the config cannot be read, or a value does not fit in it.
        """
        return self.plan.config(trial, self.chosen_before(trial.cell))

    def check(self, trial: Trial, config: RunConfig) -> None:
        """Refuses a folder with a run of another config, or a run made after one that is gone.

        Args:
            trial: the run.
            config: its config.

        Raises:
            ConfigError: the folder holds such a run.
        """
        if not trial.folder.exists():
            return
        if not asked(trial).exists():
            holds = f"a run of another config: {asked(trial)} is missing"
        elif changes := configs.differences(configs.load(asked(trial), own=True), config, FREE):
            holds = f"a run of another config: {changes[0]}"
        elif self.sums(trial) != _text_of(sums_file(trial)):
            named = ", ".join(str(run.folder) for run in self._named(trial))
            holds = f"a run that used another {named} than the one that is there now"
        else:
            return
        raise ConfigError(
            f"{trial.folder} holds {holds}; remove the folder, or give the study's file another "
            "name."
        )

    def sums(self, trial: Trial) -> str:
        """Returns the checksums of the logs of those runs that the config of a run names.

        They are lines such as `sha256sum` writes; an empty text if the config names none.
        """
        logs = [RunFolder(str(run.folder)).steps for run in self._named(trial)]
        texts = {log: log.read_bytes() if log.exists() else b"" for log in logs}
        return "".join(
            f"{hashlib.sha256(text).hexdigest()}  {log}\n" for log, text in texts.items()
        )

    def _named(self, trial: Trial) -> list[Trial]:
        return self.plan.named(trial, self.chosen_before(trial.cell))

    def ready(self, trial: Trial) -> bool:
        """Returns whether the runs that a run needs have ended."""
        before, value = self.plan.before(trial.cell), self.chosen_before(trial.cell)
        if before is None:
            return True
        if value is None:
            return False
        return self.metric(self.plan.trial(before, value, trial.seed)) is not None

    def chosen_before(self, cell: Cell) -> str | None:
        """Returns the value that the sweep of the arm before chose; None until then."""
        before = self.plan.before(cell)
        return None if before is None else self.chosen(before)

    def chosen(self, cell: Cell) -> str | None:
        """Returns the best value of an arm's sweep; None until all values are tried.

        Runs that diverged, whose metric is not a number, are worse than all others.
        """
        searches = {trial.value: self.metric(trial) for trial in self.plan.searches(cell)}
        found = {value: metric for value, metric in searches.items() if metric is not None}
        return min(found, key=lambda value: self.loss(found[value])) if found == searches else None

    def loss(self, metric: float) -> float:
        """Returns a metric such that smaller is better."""
        signed = -metric if self.plan.study.higher_is_better else metric
        return signed if math.isfinite(signed) else math.inf

    def of(self, cell: Cell) -> Outcome:
        """Returns what is known of an arm on a task."""
        plan, chosen = self.plan, self.chosen(cell)
        trials = [] if chosen is None else [plan.trial(cell, chosen, s) for s in plan.study.seeds]
        metrics = {trial.seed: self.metric(trial) for trial in trials}
        swept = {trial.value: self.metric(trial) for trial in plan.searches(cell)}
        return Outcome(
            cell,
            chosen or "",
            {seed: metric for seed, metric in metrics.items() if metric is not None},
            {value: metric for value, metric in swept.items() if metric is not None},
        )


def asked(trial: Trial) -> Path:
    """Returns the file with the config that a run was asked for."""
    return trial.folder.with_suffix(".yaml")


def sums_file(trial: Trial) -> Path:
    """Returns the file with the checksums of the runs that a run was made after."""
    return trial.folder.with_suffix(".sha256")


def _text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _numbers(trial: Trial) -> results.Numbers | None:
    """Reads what a run came to; None if it must be made, or written again by `tf-graft train`."""
    try:
        return RunFolder(str(trial.folder)).finished()
    except (OSError, ValueError):
        return None


def _number(numbers: results.Numbers, plan: Plan) -> float:
    metric, known = plan.study.metric, {k: v for k, v in numbers.items() if not isinstance(v, str)}
    if metric not in known:
        said = ", ".join(known)
        raise plan.study.error(("metric",), f"a run has no number '{metric}', but {said}.")
    return float(known[metric])
