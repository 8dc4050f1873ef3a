"""Errors in configs: one sentence, with the place."""

from dataclasses import dataclass, field
from typing import Any

from pydantic_core import ErrorDetails

from tf_graft.core.media import for_message
from tf_graft.core.spelling import suggest
from tf_graft.training.schema import (
    MODELS,
    OPENSEQ2SEQ,
    STRATEGIES,
    Mesh,
    OpenSeq2Seq,
    RunConfig,
    Section,
)

Key = tuple[str | int, ...]

# Phrases that replace pydantic's messages that tell little to the reader of a config.
PHRASES = {
    "string_pattern_mismatch": "is not a name",
    "model_type": "should be a section of 'key: value' lines",
    "model_attributes_type": "should be a section of 'key: value' lines",
    "int_type": "should be a whole number",
    "float_type": "should be a number",
    "bool_type": "should be true or false",
    "string_type": "should be a text",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}


class ConfigError(ValueError):
    """A config that cannot be run; the message says where, and what to write instead."""


@dataclass
class Source:
    """The place that each value of a config came from."""

    file: str
    lines: dict[Key, int] = field(default_factory=dict)
    overrides: dict[Key, str] = field(default_factory=dict)

    def error(self, key: Key, message: str) -> ConfigError:
        """Makes a ConfigError that names the place where `key`, or its section, was set."""
        for end in range(len(key), -1, -1):
            if key[:end] in self.overrides:
                return override_error(self.overrides[key[:end]], message)
            if key[:end] in self.lines:
                return ConfigError(f"{self.file}:{self.lines[key[:end]]}: {message}")
        return ConfigError(f"{self.file}: {message}")

    def at(self, line: int | None, key: Key, message: str) -> ConfigError:
        """Makes a ConfigError that names a line of the file, or the override that set `key`."""
        if self.overridden(key):
            return self.error(key, message)
        return ConfigError(f"{self.file}:{line}: {message}" if line else f"{self.file}: {message}")

    def note(self, line: int, key: Key) -> None:
        """Records the line of a key, unless an override set it."""
        if not self.overridden(key):
            self.lines.setdefault(key, line)

    def override(self, key: Key, text: str) -> None:
        """Records the override that sets a key, in place of the values that it replaces."""
        replaced = [k for k in (*self.lines, *self.overrides) if k[: len(key)] == key]
        for known in replaced:
            self.lines.pop(known, None)
            self.overrides.pop(known, None)
        self.overrides[key] = text

    def overridden(self, key: Key) -> bool:
        """Returns whether an override set a key, or a section that it is in."""
        return any(key[: len(over)] == over for over in self.overrides)


def explain(error: ErrorDetails, values: Any, source: Source) -> ConfigError:
    """Makes a ConfigError from an error that pydantic found in `values`."""
    absent = error["type"] in ("missing", "extra_forbidden")
    key: Key = ()
    for part in error["loc"]:  # includes tags of unions, which are no keys
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            if not absent or part != error["loc"][-1]:
                continue
        key = (*key, part)
    return source.error(key, _sentence(error, key))


def reason(error: OSError) -> str:
    """Returns the operating system's message as a part of a sentence."""
    said = error.strerror or str(error)
    return f"{said[:1].lower()}{said[1:]}"


def last_name(key: Key) -> str:
    """Returns the innermost name in a key, by which an error names the value."""
    names = (part for part in reversed(key) if isinstance(part, str))
    return for_message(next(names, "the config"))


def override_error(override: str, message: str) -> ConfigError:
    """Makes a ConfigError about an override."""
    return ConfigError(f"override '{for_message(override)}': {message}")


def _sentence(error: ErrorDetails, key: Key) -> str:
    section = f" in '{last_name(key[:-1])}'" if key[:-1] else ""
    if error["type"] == "extra_forbidden":
        unknown = for_message(str(key[-1]))
        return f"unknown key '{unknown}'{section}; {suggest(unknown, _known_keys(error))}"
    if error["type"] == "missing":
        return f"'{key[-1]}' is missing{section}."
    problem = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if error["type"] == "value_error":
        return f"{problem}."
    problem = PHRASES.get(error["type"], problem[0].lower() + problem[1:])
    return f"{last_name(key)} is {shown(error['input'])}; it {problem}."


def _known_keys(error: ErrorDetails) -> list[str]:
    section: type[Section] = RunConfig
    if len(error["loc"]) == 1:
        return [*RunConfig.model_fields, OPENSEQ2SEQ]
    named: dict[str, type[Section]] = {
        **MODELS,
        **STRATEGIES,
        "mesh": Mesh,
        OPENSEQ2SEQ: OpenSeq2Seq,
    }
    for part in error["loc"][:-1]:
        if part in named:
            section = named[str(part)]
        elif part not in ("model", "strategy"):
            section = section.model_fields[str(part)].annotation  # type: ignore[assignment]
    return list(section.model_fields)


def shown(value: object) -> str:
    """Formats a value for an error sentence."""
    if isinstance(value, dict | list):
        return "a section" if isinstance(value, dict) else "a list"
    return f"the text {value[:60]!r}" if isinstance(value, str) else str(value)[:60]
