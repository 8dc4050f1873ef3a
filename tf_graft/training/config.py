"""Reads configs: turns YAML and overrides into a checked `RunConfig`, or raises a `ConfigError`.

Files and overrides are both read as plain data (see `plain_yaml`): reading a config from elsewhere
runs no code and opens no other file.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tf_graft.core.media import for_message
from tf_graft.core.spelling import meant, suggest
from tf_graft.training import plain_yaml, start
from tf_graft.training.errors import explain
from tf_graft.training.schema import MODELS, OPENSEQ2SEQ, Config, OpenSeq2Seq, RunConfig
from tf_graft.training.source import (
    ConfigError,
    Key,
    Source,
    last_name,
    override_error,
    shown,
)

FILE = "config.yaml"  # a run's config, in its folder
MAX_BYTES = 64 * 1024
TEXTS = ("name", "dir", "start_from", "after", "like")  # keys whose text may look like a number
SERIALIZED = {"class_name", "module", "registered_name"}
NUMBER = re.compile(r"[+-]?\d[\d_]*\.?\d*(e[+-]?\d+)?", re.IGNORECASE)
FLOAT32 = (1.1754944e-38, 3.4028235e38)  # the smallest and the largest of its normal numbers


def load(path: str | Path, overrides: Sequence[str] = (), *, own: bool = False) -> RunConfig:
    """Reads a config file and applies `section.key=value` overrides.

    Args:
        path: a YAML file of at most 64 KiB.
        overrides: such as `optimizer.learning_rate=0.1`, applied in order.
        own: whether a run wrote the file; then it may be longer, as it includes a file of rates.

    Returns:
        The config, with `run.dir` filled in; it knows the place that each value came from.

    Raises:
        ConfigError: the config is invalid; the message says in one sentence what and where.
    """
    text = text_of(path, own)
    config = parse(text, str(path), overrides)
    if config.run.dir is None:
        config.run.dir = str(Path("runs") / Path(path).stem)
    return config


def text_of(path: str | Path, own: bool = False) -> str:
    """Reads a file of at most 64 KiB, or a longer one that a run wrote.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(-1 if own else MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = _similar(path) if isinstance(error, FileNotFoundError) else "."
        reason = f"{reason[0].lower()}{reason[1:]}{hint}"
        raise ConfigError(f"{for_message(str(path))}: {reason}") from None
    if len(raw) > MAX_BYTES and not own:
        raise ConfigError(f"{path}: a config is at most {MAX_BYTES // 1024} KiB long.")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: the file is not UTF-8 text.") from None


def _similar(path: str | Path) -> str:
    """Ends an error sentence with a config of a similar name, here or in the folder `configs`."""
    here = [*Path().glob("*.yaml"), *Path("configs").glob("*.yaml")]
    near = meant(Path(path).stem, [known.stem for known in here])
    found = [known for known in here if known.stem == near]
    return f"; did you mean {for_message(str(found[0]))}?" if found else "."


def parse(text: str, name: str = "<config>", overrides: Sequence[str] = ()) -> RunConfig:
    """Checks the text of a config; messages call the file `name`."""
    source = Source(name)
    values = values_of(text, source, overrides)
    _check_model(values, source)
    if OPENSEQ2SEQ in values:
        values = _translated(values, source)
    try:
        return RunConfig.model_validate(values).of(source)
    except ValidationError as error:
        raise explain(error.errors()[0], values, source) from None


def values_of(
    text: str,
    source: Source,
    overrides: Sequence[str] = (),
    names_of: Callable[[str], list[str]] = methodcaller("split", "."),
) -> Config:
    """Reads sections from a text and overrides, and checks that they are plain data.

    Args:
        text: YAML.
        source: what messages call the text.
        overrides: `key=value`, applied in order.
        names_of: returns the names of the sections that an override's key is in, and its own.
    """
    values = plain_yaml.read(text, source)
    if not isinstance(values, dict):
        raise source.at(1, (), "a config is made of sections: 'data:', 'model:' ...")
    for override in overrides:
        _override(values, override, source, names_of)
    _check_values(values, source)
    return values


def _translated(values: Config, source: Source) -> Config:
    """Translates the section `openseq2seq` into `optimizer` and `precision`."""
    try:
        section = OpenSeq2Seq.model_validate(values[OPENSEQ2SEQ])
    except ValidationError as error:
        first = error.errors()[0]
        first["loc"] = (OPENSEQ2SEQ, *first["loc"])
        raise explain(first, values, source) from None
    start.tensorflow()  # no other config needs it to be read
    from tf_graft.training import openseq2seq_config

    return openseq2seq_config.translate(values, section, source)


def dump(config: RunConfig) -> str:
    """Writes a config as YAML that `load` reads back, without `run.fresh`, which acts once."""
    values = config.model_dump(exclude_none=True, exclude={"run": {"fresh"}})
    return plain_yaml.written(values | {"optimizer": config.optimizer.given()})


def differences(old: RunConfig, new: RunConfig, ignore: Sequence[str]) -> list[str]:
    """Lists the changes between two configs, a phrase per key, except for keys in `ignore`."""
    before, after = (
        {".".join(map(str, key)): value for key, value in _flatten(config.model_dump())}
        for config in (old, new)
    )
    return [
        f"{key} was {before.get(key)!r} and is {after.get(key)!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
        and not any(key == name or key.startswith(f"{name}.") for name in ignore)
    ]


def _override(
    values: Config, override: str, source: Source, names_of: Callable[[str], list[str]]
) -> None:
    """Replaces or adds a value; missing sections on the path to it are created."""
    name, _, text = override.partition("=")
    override = " ".join(override.splitlines())
    if not re.fullmatch(r"\w+(\.\w+)*=.*", override):
        raise override_error(override, "write section.key=value.")
    if name.count(".") >= plain_yaml.MAX_DEPTH:
        message = f"values are nested more than {plain_yaml.MAX_DEPTH} deep."
        raise override_error(override, message)
    key, inner = _way(values, names_of(name), override)
    source.override(key, override)
    inner[key[-1]] = plain_yaml.read(text, source, key)


def _way(values: Any, names: list[str], override: str) -> tuple[Key, Any]:
    """Finds the section or list that a key is in, and the key, with whole numbers for lists."""
    key: Key = ()
    for depth, name in enumerate(names, 1):
        part: str | int = name
        if isinstance(values, list):
            if not name.isdecimal() or int(name) >= len(values):
                has = f"its values are 0 to {len(values) - 1}" if values else "it is empty"
                raise override_error(override, f"{last_name(key)} is a list; {has}.")
            part = int(name)
        elif not isinstance(values, dict):
            message = f"{last_name(key)} is {shown(values)}, which has no '{for_message(name)}'."
            raise override_error(override, message)
        key = (*key, part)
        if depth < len(names):
            if isinstance(values, dict) and values.get(name) is None:
                values[name] = {}
            values = values[part]
    return key, values


def _check_values(values: Config, source: Source) -> None:
    for key, value in _flatten(values):
        for text in (*key, value):
            if isinstance(text, str):
                _check_text(key, text, source)
        if isinstance(value, int | float):
            _check_number(key, value, source)
        if isinstance(value, str) and NUMBER.fullmatch(value) and key[-1] not in TEXTS:
            text = for_message(value)
            raise source.error(key, f"{last_name(key)} is the text '{text}'; write {text}.")
        if SERIALIZED.intersection(key):  # Keras would import the module that it names
            raise source.error(key, f"'{last_name(key)}': write a name and its arguments.")


def _check_model(values: Config, source: Source) -> None:
    """Refuses a model that does not exist, before its other keys are looked at."""
    section = values.get("model")
    name = section.get("name") if isinstance(section, dict) else None
    if not isinstance(name, str) or name in MODELS or not re.fullmatch(r"\w+", name):
        return
    start.tensorflow()  # for the names of Keras' models
    from tf_graft.training import models

    known = {*MODELS, *map(str.lower, models.of_keras())}
    if name.lower() not in known:
        hint = suggest(name.lower(), known, "`tf-graft list`")
        raise source.error(("model", "name"), f"no model '{for_message(name)}'; {hint}")


def _check_text(key: Key, text: str, source: Source) -> None:
    half = re.search("[\ud800-\udfff]", text) is not None
    for found, what in (
        ("${" in text, "'${'"),  # other readers replace it, even from the environment
        ("\0" in text, "a zero byte"),
        (half, "half a character"),
    ):
        if found:
            message = f"{last_name(key)} contains {what}; a config is plain data."
            raise source.error(key, message)


def _check_number(key: Key, number: float, source: Source) -> None:
    """Refuses numbers that become 0, infinity or NaN in float32, in which runs compute."""
    if number == 0 or FLOAT32[0] <= abs(number) <= FLOAT32[1]:
        return
    if isinstance(number, float) and not math.isfinite(number):
        raise source.error(key, f"{last_name(key)} is {number}; it must be finite.")
    size = f"{number:.3g}" if isinstance(number, float) else f"{str(number)[:12]}..."
    bounds = f"{FLOAT32[0]:.2g} and {FLOAT32[1]:.2g}, which float32 can hold"
    message = f"{last_name(key)} is {size}; it must be 0, or its size between {bounds}."
    raise source.error(key, message)


def _flatten(values: object, key: Key = ()) -> Iterator[tuple[Key, object]]:
    if not isinstance(values, dict | list) or not values:
        yield key, values
        return
    for name, value in values.items() if isinstance(values, dict) else enumerate(values):
        yield from _flatten(value, (*key, name))
