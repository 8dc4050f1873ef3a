"""The optimizer of a run, from its flat section of the config."""

import re
from typing import Any

import keras

import tf_graft
from tf_graft.training.errors import Source
from tf_graft.training.schema import RunConfig


def build(config: RunConfig, steps_per_epoch: int, source: Source) -> keras.optimizers.Optimizer:
    """The optimizer `config.optimizer` describes.

    In a schedule, `total` stands for the steps from its warm-up, or `begin_decay_at`, to the end
    of the run, and `epoch` for the steps of an epoch. Both are replaced in `config`, which holds
    numbers afterwards.

    Raises:
        ConfigError: what the optimizer or the schedule objects to, with its place.
    """
    section = config.optimizer
    every = (section.model_extra or {}).get("gradient_accumulation_steps") or 1
    updates = steps_per_epoch // every if isinstance(every, int) else steps_per_epoch
    arguments = section.model_dump(exclude_none=True)
    try:
        if isinstance(section.learning_rate, dict):
            resolved = _resolve(section.learning_rate, config.run.epochs * updates, updates)
            section.learning_rate = resolved
            arguments["learning_rate"] = tf_graft.schedules.get(resolved)
        return tf_graft.get(arguments)
    except (ValueError, TypeError) as error:
        raise _located(error, config, source) from None


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


def _located(error: Exception, config: RunConfig, source: Source) -> Exception:
    """The error with the place of the argument it names."""
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
