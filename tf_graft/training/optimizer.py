"""The optimizer of a run, from its flat section of the config."""

import re
from pathlib import Path
from typing import Any

import keras

import tf_graft
from tf_graft.training.errors import ConfigError, Key, Source
from tf_graft.training.schema import RunConfig


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
    updates = steps_per_epoch // every if isinstance(every, int) else steps_per_epoch
    try:
        values = _with_rates(section.model_dump(exclude_none=True), ("optimizer",), source)
        values = _with_numbers(values, config.run.epochs * updates, updates)
        config.optimizer = type(section)(**values)
        return tf_graft.get(_with_schedules(values))
    except (ValueError, TypeError) as error:
        raise located(error, config, source) from None


def _with_rates(values: dict[str, Any], key: Key, source: Source) -> dict[str, Any]:
    """An optimizer's section with what its rates files hold, and its children's.

    A file that the config names is sought beside the config; one in an override, from here.
    """
    result = dict(values)
    for name, value in values.items():
        if isinstance(value, dict) and isinstance(value.get("name"), str):
            result[name] = _with_rates(value, (*key, name), source)
    if isinstance(values.get("rates"), str):
        place = (*key, "rates")
        folder = Path() if source.overridden(place) else Path(source.file).parent
        try:
            rates = tf_graft.report.LayerwiseRates.load(folder / values["rates"])
        except tf_graft.report.ReportError as error:
            raise source.error(place, f"rates: {error}") from None
        result["rates"] = rates.to_dict()
    return result


def _with_numbers(values: dict[str, Any], total: int, epoch: int) -> dict[str, Any]:
    """An optimizer's section with its schedules in numbers, and its children's."""
    result = dict(values)
    for name, value in values.items():
        if name == "learning_rate" and isinstance(value, dict):
            result[name] = _resolve(value, total, epoch)
        elif isinstance(value, dict) and isinstance(value.get("name"), str):
            result[name] = _with_numbers(value, total, epoch)
    return result


def _with_schedules(values: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's section with its schedules made, and its children's."""
    result = dict(values)
    for name, value in values.items():
        if name == "learning_rate" and isinstance(value, dict):
            result[name] = tf_graft.schedules.get(value)
        elif isinstance(value, dict) and isinstance(value.get("name"), str):
            result[name] = _with_schedules(value)
    return result


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
    if isinstance(error, ConfigError):
        return error
    message = str(error).strip().partition("\n")[0]
    message = message if message.endswith((".", "?")) else f"{message}."
    section = config.optimizer.model_dump()
    for word in re.findall(r"\w+", message):
        if word in section:
            return source.error(("optimizer", word), message)
        rate = section["learning_rate"]
        if isinstance(rate, dict) and word in rate:
            return source.error(("optimizer", "learning_rate", word), message)
    return source.error(("optimizer", "name"), message)
