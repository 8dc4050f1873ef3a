"""Builds the optimizer of a run from its section of the config."""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import keras
import numpy as np
import tensorflow as tf

from tf_graft import (  # noqa: F401  (each registers its classes)
    agn,
    grafting,
    optimizers,
    scaling,
    schedules,
    wrappers,
)
from tf_graft.compose.of_keras import get
from tf_graft.core.arguments import multipliers
from tf_graft.core.types import Config, ScheduleLike
from tf_graft.fit import layerwise_decay, no_decay
from tf_graft.report import GraftReport, MeasuredRates, ReportError
from tf_graft.training.schema import ParameterServer, RunConfig
from tf_graft.training.source import ConfigError, Key

CHECKED_STEPS = 32  # at which a schedule's rates are checked, from the first step to the last
REFUSALS = (ValueError, TypeError, ArithmeticError, LookupError, tf.errors.OpError)
DECAY = "layerwise_decay"  # among multipliers of the learning rate: those of all layers
SCHEDULED = ("learning_rate", "momentum", "beta_1", "weight_decay")  # these may be schedules
MULTIPLIERS = ("learning_rate_multipliers", "count_rows")  # and each of the values of these
Change: TypeAlias = Callable[[Key, Any], Any]  # of a value, given its key


def build(
    config: RunConfig, steps_per_epoch: int, model: Callable[[], keras.Model]
) -> keras.optimizers.Optimizer:
    """Builds the optimizer that `config.optimizer` describes, for what `model` returns.

    In a schedule, `total` stands for the steps from the end of its warm-up, or from
    `begin_decay_at`, to the end of the run (as `total_steps`, or in a warm-up with `shift: false`,
    for those of the whole run; in a sequence, for those from the schedule's milestone), and `epoch`
    for the steps of an epoch. Both are replaced by numbers in `config`, and the name of a rates
    file by its content. The words `layerwise_decay` and `no_decay` stand for what the functions of
    these names make of the model, which is asked for only if a config has these words.

    Raises:
        ConfigError: the optimizer or a schedule refuses an argument; the message says where.
    """
    section, steps = config.optimizer, config.run.epochs * steps_per_epoch
    total, epoch = updates(config, steps_per_epoch)
    try:
        values = _changed(section.given(), ("optimizer",), _loaded(config))
        values = _changed(values, ("optimizer",), _in_numbers(total, epoch))
        config.optimizer = type(section)(**values).of(config.source)
        values = _changed(values, ("optimizer",), _of_layers(config, model))
        made = get(_changed(values, ("optimizer",), _made(config, total)))
        _check_steps(made, steps, isinstance(config.strategy, ParameterServer))
        return made
    except REFUSALS as error:
        raise located(error, config) from None


def updates(config: RunConfig, steps_per_epoch: int) -> tuple[int, int]:
    """Returns how many updates a run makes, and an epoch; at least 1 each.

    An accumulation goes on from an epoch to the next; the updates of an epoch are rounded.
    """
    every = _accumulated(config.optimizer.given())
    total = config.run.epochs * steps_per_epoch // every
    return max(total, 1), max(round(steps_per_epoch / every), 1)


def _check_steps(made: keras.optimizers.Optimizer, steps: int, on_servers: bool) -> None:
    """Refuses an optimizer that would not change the model once in all steps of the run.

    A worker of parameter servers pushes a shorter round, too.
    """
    every, cause = made.gradient_accumulation_steps or 1, "gradient_accumulation_steps"
    if every <= steps and isinstance(made, agn.AGN) and not on_servers:
        every, cause = made.round_length, "communication_period"
    if every > steps:
        raise ValueError(
            f"{cause}={getattr(made, cause)}: the model changes every {every:,} steps, and the run "
            f"has {steps:,}; give less, or train for more epochs."
        )


def _accumulated(section: Config) -> int:
    """Returns the number of steps for an update, of an optimizer or of the one inside it."""
    while "gradient_accumulation_steps" not in section and isinstance(
        section.get("optimizer"), dict
    ):
        section = section["optimizer"]
    every = section.get("gradient_accumulation_steps")
    return max(1, int(every)) if isinstance(every, int | float) else 1


def _changed(section: Config, key: Key, change: Change) -> Config:
    """Changes each value of an optimizer's section, and of its children's."""
    result: Config = {}
    for name, value in section.items():
        place = (*key, name)
        if name in MULTIPLIERS and isinstance(value, dict):
            value = {pattern: change((*place, pattern), each) for pattern, each in value.items()}
            result[name] = change(place, value)
            continue
        holds = isinstance(value, dict) and ("name" in value or name == "optimizers")
        is_child = holds and name not in SCHEDULED
        result[name] = _changed(value, place, change) if is_child else change(place, value)
    return result


def _is_schedule(value: object, place: Key) -> TypeGuard[Config]:
    """Returns whether a value is the section of a schedule."""
    scheduled = place[-1] in SCHEDULED or place[-2] in MULTIPLIERS
    return scheduled and isinstance(value, dict) and value.get("name") not in multipliers.FLAT


def _loaded(config: RunConfig) -> Change:
    """Replaces the name of a rates file, or of a run that measured a graft, by the rates.

    The name is relative to the config's folder; in an override, to the working directory.
    """

    def change(place: Key, value: object) -> object:
        measured = isinstance(value, dict) and "run" in value
        if place[-1] != "rates" or not (measured or isinstance(value, str)):
            return value
        folder = Path() if config.source.overridden(place) else Path(config.source.file).parent
        try:
            if isinstance(value, dict):
                how = {key: given for key, given in value.items() if key != "run"}
                return GraftReport.read(folder / str(value["run"])).rates(**how).to_dict()
            return MeasuredRates.load(folder / str(value)).to_dict()
        except (ReportError, TypeError, ValueError) as error:
            raise config.error(place, f"rates: {error}") from None

    return change


def _in_numbers(total: int, epoch: int) -> Change:
    """Replaces the words in a schedule, and `epoch` in averages, by numbers."""

    def change(place: Key, value: object) -> object:
        if _is_schedule(value, place):
            return _resolve(value, total, epoch)
        return epoch if "use_ema" in place and value == "epoch" else value

    return change


def _of_layers(config: RunConfig, model: Callable[[], keras.Model]) -> Change:
    """Replaces the words for groups of the model's variables by patterns."""

    def change(place: Key, value: object) -> object:
        if place[-1] == "exclude_from_weight_decay" and value == "no_decay":
            return no_decay(model())
        if place[-1] != "learning_rate_multipliers" or not isinstance(value, dict):
            return value
        try:
            layers = {DECAY: layerwise_decay(model(), value[DECAY])} if DECAY in value else {}
        except (TypeError, ValueError) as error:
            raise config.error((*place, DECAY), str(error)) from None
        return {p: m for key, x in value.items() for p, m in layers.get(key, {key: x}).items()}

    return change


def _made(config: RunConfig, total: int) -> Change:
    """Creates the schedules, and checks their rates over the run."""

    def change(place: Key, value: object) -> object:
        if not _is_schedule(value, place):
            return value
        try:
            schedule = schedules.get(value)
            name = "multiplier" if place[-2] in MULTIPLIERS else str(place[-1])
            what = "rate" if name == "learning_rate" else name
            _check_rates(what, schedule, value, total)
        except REFUSALS as error:
            raise _located(error, config, value, place) from None
        return schedule

    return change


def _check_rates(what: str, schedule: ScheduleLike, section: Config, total: int) -> None:
    numbers = [n for n in section.values() if isinstance(n, int) and 0 < n < total]
    steps = {0, 1, *numbers, *map(int, np.linspace(0, max(total - 1, 0), CHECKED_STEPS))}
    for step in sorted(steps):
        rate = float(np.asarray(schedule(step)))
        if not (math.isfinite(rate) and rate >= 0):
            raise ValueError(
                f"the {what} at step {step} is {rate}; it must be finite and at least 0"
            )


def _resolve(schedule: Config, total: int, epoch: int) -> Config:
    delays = [schedule.get(key) for key in ("begin_decay_at", "warmup_steps", "steps", "offset")]
    numbers = [epoch if delay == "epoch" else delay for delay in delays]
    shifts = schedule.get("shift", True)  # a warm-up may run at the beginning of its schedule
    whole = [int(n) for n in numbers if isinstance(n, int | float) and n == int(n)]
    delay = max(whole, default=0) if shifts else 0
    left = {"total": max(total - delay, 1), "epoch": epoch}
    resolved: Config = {}
    for key, value in schedule.items():
        words = left | {"total": total} if key == "total_steps" else left
        resolved[key] = _in_words(value, words)
    inner, milestones = schedule.get("schedules"), resolved.get("milestones")
    if isinstance(inner, list) and isinstance(milestones, list):
        for i, begin in enumerate([0, *milestones][: len(inner)]):
            rest = left["total"] - begin if isinstance(begin, int) else 1
            resolved["schedules"][i] = _in_words(inner[i], {**left, "total": max(rest, 1)})
    return resolved


def _in_words(value: Any, words: dict[str, int]) -> Any:
    """Replaces words by numbers in an argument of a schedule."""
    if isinstance(value, dict):
        return _resolve(value, words["total"], words["epoch"])
    if isinstance(value, list):
        return [_in_words(each, words) for each in value]
    return words.get(value, value) if isinstance(value, str) else value


def located(error: Exception, config: RunConfig) -> Exception:
    """Adds to an error the place of the argument that it names."""
    return _located(error, config, config.optimizer.model_dump(), ("optimizer",))


def _located(error: Exception, config: RunConfig, section: Config, key: Key) -> Exception:
    if isinstance(error, ConfigError):
        return error
    # without the prefix of TensorFlow's errors
    message = re.sub(r"\{\{.*?\}\} ", "", str(error).strip().partition("\n")[0])
    message = message if message.endswith((".", "?")) else f"{message}."
    named = re.findall(r"get\('([^']*)'\)", message)
    words = [*re.findall(r"(\w+)=", message), *re.findall(r"\w+", message)]
    places = list(_places(section, key))
    found = [at for name in named for at, value in places if at[-1] == "name" and value == name]
    for word in words:
        known = [(at, value) for at, value in places if at[-1] == word]
        # of several arguments of one name, first the one whose value the message quotes
        found += [at for at, value in known if f"{word}={value!r}" in message]
        found += [at for at, _ in known]
    return config.error(found[0] if found else (*key, "name"), message)


def _places(section: Config, key: Key) -> Iterator[tuple[Key, object]]:
    """Yields every argument of a section and its value, the outer ones first."""
    yield from (((*key, name), value) for name, value in section.items())
    for name, value in section.items():
        if isinstance(value, dict):
            yield from _places(value, (*key, name))
