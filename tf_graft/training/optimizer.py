"""The optimizer of a run, from its flat section of the config."""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_graft import optimizers, scaling, schedules, wrappers  # noqa: F401  (each registers)
from tf_graft.core.wrapped import get
from tf_graft.report import MeasuredRates, ReportError
from tf_graft.training.errors import ConfigError, Key, Source
from tf_graft.training.schema import RunConfig

LOOKS = 32  # at a schedule's rates, from the first step to the last
REFUSALS = (ValueError, TypeError, ArithmeticError, LookupError, tf.errors.OpError)
Change = Callable[[Key, Any], Any]


def build(config: RunConfig, steps_per_epoch: int, source: Source) -> keras.optimizers.Optimizer:
    """The optimizer `config.optimizer` describes.

    In a schedule, `total` stands for the steps from its warm-up, or `begin_decay_at`, to the end
    of the run, and `epoch` for the steps of an epoch. Both are replaced in `config`, which holds
    numbers afterwards, as is the name of a rates file.

    Raises:
        ConfigError: what the optimizer or the schedule objects to, with its place.
    """
    section = config.optimizer
    every = (section.model_extra or {}).get("gradient_accumulation_steps") or 1
    counts = isinstance(every, int) and every > 0
    updates = steps_per_epoch // every if counts else steps_per_epoch
    total = config.run.epochs * updates
    try:
        values = _changed(section.given(), ("optimizer",), _loaded(source))
        values = _changed(values, ("optimizer",), _in_numbers(total, updates))
        config.optimizer = type(section)(**values)
        return get(_changed(values, ("optimizer",), _made(total, source)))
    except REFUSALS as error:
        raise located(error, config, source) from None


def _changed(section: dict[str, Any], key: Key, change: Change) -> dict[str, Any]:
    """An optimizer's section with each value changed, and its children's."""
    result: dict[str, Any] = {}
    for name, value in section.items():
        place = (*key, name)
        is_child = name != "learning_rate" and isinstance(value, dict) and "name" in value
        result[name] = _changed(value, place, change) if is_child else change(place, value)
    return result


def _loaded(source: Source) -> Change:
    """Puts what a rates file holds in the place of its name.

    A file that the config names is sought beside the config; one in an override, from here.
    """

    def change(place: Key, value: Any) -> Any:
        if place[-1] != "rates" or not isinstance(value, str):
            return value
        folder = Path() if source.overridden(place) else Path(source.file).parent
        try:
            return MeasuredRates.load(folder / value).to_dict()
        except ReportError as error:
            raise source.error(place, f"rates: {error}") from None

    return change


def _in_numbers(total: int, epoch: int) -> Change:
    """Puts numbers in the place of a schedule's words."""

    def change(place: Key, value: Any) -> Any:
        is_schedule = place[-1] == "learning_rate" and isinstance(value, dict)
        return _resolve(value, total, epoch) if is_schedule else value

    return change


def _made(total: int, source: Source) -> Change:
    """Makes schedules, and looks at their rates over the run."""

    def change(place: Key, value: Any) -> Any:
        if place[-1] != "learning_rate" or not isinstance(value, dict):
            return value
        try:
            schedule = schedules.get(value)
            _look_at(schedule, value, total)
        except REFUSALS as error:
            raise _located(error, value, place, source) from None
        return schedule

    return change


def _look_at(schedule: Any, section: dict[str, Any], total: int) -> None:
    numbers = [n for n in section.values() if isinstance(n, int) and 0 < n < total]
    steps = {0, 1, *numbers, *map(int, np.linspace(0, max(total - 1, 0), LOOKS))}
    for step in sorted(steps):
        rate = float(schedule(step))
        if not (math.isfinite(rate) and rate >= 0):
            raise ValueError(f"the rate at step {step} is {rate}; it must be finite and at least 0")


def _resolve(schedule: dict[str, Any], total: int, epoch: int) -> dict[str, Any]:
    delays = [schedule.get(key) for key in ("begin_decay_at", "warmup_steps", "steps")]
    delay = max((d for d in delays if isinstance(d, int)), default=0)
    words = {"total": max(total - delay, 1), "epoch": epoch}
    resolved: dict[str, Any] = {}
    for key, value in schedule.items():
        if isinstance(value, dict):
            resolved[key] = _resolve(value, words["total"], epoch)
        else:
            resolved[key] = words.get(value, value) if isinstance(value, str) else value
    return resolved


def located(error: Exception, config: RunConfig, source: Source) -> Exception:
    """The error with the place of the argument it names."""
    return _located(error, config.optimizer.model_dump(), ("optimizer",), source)


def _located(error: Exception, section: dict[str, Any], key: Key, source: Source) -> Exception:
    if isinstance(error, ConfigError):
        return error
    message = re.sub(r"\{\{.*?\}\} ", "", str(error).strip().partition("\n")[0])  # of TensorFlow's
    message = message if message.endswith((".", "?")) else f"{message}."
    named = re.findall(r"get\('([^']*)'\)", message)
    words = [*re.findall(r"(\w+)=", message), *re.findall(r"\w+", message)]
    places = list(_places(section, key))
    found = [at for name in named for at, value in places if at[-1] == "name" and value == name]
    for word in words:
        known = [(at, value) for at, value in places if at[-1] == word]
        # of several arguments of one name, the one that was quoted
        found += [at for at, value in known if f"{word}={value!r}" in message]
        found += [at for at, _ in known]
    return source.error(found[0] if found else (*key, "name"), message)


def _places(section: dict[str, Any], key: Key) -> Iterator[tuple[Key, Any]]:
    """Every argument of a section and its value, the outer ones first."""
    yield from (((*key, name), value) for name, value in section.items())
    for name, value in section.items():
        if isinstance(value, dict):
            yield from _places(value, (*key, name))
