"""Reads a study, and lists the runs that it makes."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from pydantic import ValidationError

from tf_graft.study.schema import Arm, Study, merged
from tf_graft.training import config as configs
from tf_graft.training import plain_yaml
from tf_graft.training.errors import explain
from tf_graft.training.schema import RunConfig
from tf_graft.training.source import ConfigError, Source

# A key of `set` or `sweep`, which is a key of a config, with its dots.
IN_A_CONFIG = re.compile(r"(set|(?:tasks|arms)\.[^.]+\.(?:set|sweep))\.(.+)")
# In values, words for what the arm is after:
RUN = "{run}"  # the folder of its run with the same seed
FIRST = "{first_run}"  # the folder of its run with the first seed
VALUE = "{value}"  # the value that its sweep chose


class Cell(NamedTuple):
    """An arm on a task."""

    task: str
    arm: str


class Trial(NamedTuple):
    """One run.

    Args:
        cell: the run's task and arm.
        value: the value of its arm's sweep as text; empty without a sweep.
        seed: the run's seed.
        folder: the run's folder.
    """

    cell: Cell
    value: str
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """The run in a line of progress."""
        return " ".join([*self.cell, *([self.value] if self.value else []), f"seed {self.seed}"])


class Plan:
    """A study that was read, with the folder that its runs are in.

    Args:
        study: the study.
        file: its file, to which the names of configs are relative.
        folder: the folder of the study.
    """

    def __init__(self, study: Study, file: Path, folder: Path):
        self.study, self.file, self.folder = study, file, folder
        self.cells = [Cell(task, arm) for task in study.tasks for arm in study.arms]

    def arm(self, cell: Cell) -> Arm:
        """Returns what a study says about an arm."""
        return self.study.arms[cell.arm]

    def before(self, cell: Cell) -> Cell | None:
        """Returns the arm before an arm, on the same task."""
        after = self.arm(cell).after
        return None if after is None else Cell(cell.task, after)

    def trial(self, cell: Cell, value: str, seed: int) -> Trial:
        """Returns a run of an arm."""
        swept = (f"{key.rpartition('.')[2]}={value}" for key in self.arm(cell).sweep)
        parts = [*cell, *(quote(part, safe="=") for part in swept), f"seed_{seed}"]
        return Trial(cell, value, seed, self.folder.joinpath(*parts))

    def searches(self, cell: Cell) -> list[Trial]:
        """Returns the runs that choose the value of an arm's sweep, those of the first seed."""
        return [self.trial(cell, value, self.study.seeds[0]) for value in self._values(cell)]

    def config(self, trial: Trial, chosen: str | None = None) -> RunConfig:
        """Returns the config of a run; for the arguments see `overrides`.

        Raises:
            ConfigError: the config cannot be read, or a value does not fit in it.
        """
        try:
            return configs.load(self.config_file(trial), self.overrides(trial, chosen))
        except ConfigError as error:
            raise ConfigError(f"{self.file}, arm '{trial.cell.arm}': {error}") from None

    def config_file(self, trial: Trial) -> Path:
        """Returns the file of a run's config."""
        task = self.study.tasks[trial.cell.task]
        return self.file.parent / (self.arm(trial.cell).config or task.config)

    def overrides(self, trial: Trial, chosen: str | None = None) -> list[str]:
        """Returns what a run changes in its config.

        Args:
            trial: the run.
            chosen: the value that the sweep of the arm before chose; else its first one.
        """
        words = self._words(trial, chosen)
        given = {key: _filled(value, words) for key, value in self._given(trial.cell).items()}
        swept = {key: self._values(trial.cell)[trial.value] for key in self.arm(trial.cell).sweep}
        place = {"run.seed": trial.seed, "run.dir": str(trial.folder)}
        return [f"{key}={_text(value)}" for key, value in merged(given, swept, place).items()]

    def named(self, trial: Trial, chosen: str | None) -> list[Trial]:
        """Returns the runs whose folders the config of a run names.

        Args:
            trial: the run.
            chosen: the value that the sweep of the arm before chose.
        """
        said = str(self._given(trial.cell))
        return [run for word, run in self._runs_before(trial, chosen).items() if word in said]

    def _given(self, cell: Cell) -> dict[str, Any]:
        """Returns what a study sets for an arm on a task, but for its sweep."""
        return merged(self.study.tasks[cell.task].set, self.study.set, self.arm(cell).set)

    def _words(self, trial: Trial, chosen: str | None) -> dict[str, Any]:
        """Returns what the words in values stand for."""
        words: dict[str, Any] = {}
        for word, run in self._runs_before(trial, chosen).items():
            words |= {word: str(run.folder), VALUE: self._values(run.cell)[run.value]}
        return words

    def _runs_before(self, trial: Trial, chosen: str | None) -> dict[str, Trial]:
        """Returns the runs of the arm before, by the words for their folders."""
        before = self.before(trial.cell)
        if before is None:
            return {}
        value = next(iter(self._values(before))) if chosen is None else chosen
        seeds = {RUN: trial.seed, FIRST: self.study.seeds[0]}
        return {word: self.trial(before, value, seed) for word, seed in seeds.items()}

    def _values(self, cell: Cell) -> dict[str, Any]:
        """Returns the values of an arm's sweep by their texts; an empty text without a sweep."""
        swept = self.arm(cell).sweep.values()
        return {_text(value): value for values in swept for value in values} or {"": ""}

    def check(self) -> None:
        """Reads every config of the study.

        Raises:
            ConfigError: a config cannot be read, or a value does not fit in it.
        """
        for cell in self.cells:
            for trial in self.searches(cell):
                self.config(trial)


def load(path: Path, overrides: Sequence[str] = ()) -> Plan:
    """Reads a study, and checks the configs of all its arms.

    Args:
        path: a YAML file.
        overrides: `key=value`, applied in order: `seeds=[0]`, `set.run.epochs=1`.

    Raises:
        ConfigError: the study is invalid; the message says in one sentence what and where.
    """
    text, source = configs.text_of(path), Source(str(path))
    values = configs.values_of(text, source, overrides, _names)
    try:
        study = Study.model_validate(values).of(source)
    except ValidationError as error:
        raise explain(error.errors()[0], values, source, Study) from None
    plan = Plan(study, path, Path("runs") / path.stem)
    plan.check()
    return plan


def _names(key: str) -> list[str]:
    """Splits the key of an override at its dots, but for those of a config's key."""
    found = IN_A_CONFIG.fullmatch(key)
    return [*found[1].split("."), found[2]] if found else key.split(".")


def _filled(value: Any, words: Mapping[str, Any]) -> Any:
    """Replaces words in texts; a text that is a word becomes what the word stands for."""
    if isinstance(value, dict):
        return {key: _filled(inner, words) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, words) for inner in value]
    if isinstance(value, str):
        if value in words:
            return words[value]
        for word, said in words.items():
            value = value.replace(word, str(said))
    return value


def _text(value: Any) -> str:
    """Writes a value as an override reads it."""
    return plain_yaml.in_a_line(value)
