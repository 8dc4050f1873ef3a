"""What pydantic finds in a config, as one sentence with the place."""

from typing import Any

from pydantic_core import ErrorDetails

from tf_graft.core.media import for_message
from tf_graft.core.spelling import suggest
from tf_graft.training.schema import (
    MODELS,
    OPENSEQ2SEQ,
    STRATEGIES,
    Application,
    Mesh,
    OpenSeq2Seq,
    RunConfig,
    Section,
    Vocabularies,
)
from tf_graft.training.source import ConfigError, Key, Source, last_name, shown

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


def explain(
    error: ErrorDetails, values: Any, source: Source, root: type[Section] = RunConfig
) -> ConfigError:
    """Makes a ConfigError from an error that pydantic found in `values`, those of `root`."""
    absent = error["type"] in ("missing", "extra_forbidden")
    key: Key = ()
    for part in error["loc"]:  # includes tags of unions, which are no keys
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            if not absent or part != error["loc"][-1]:
                continue
        key = (*key, part)
    return source.error(key, _sentence(error, key, root))


def _sentence(error: ErrorDetails, key: Key, root: type[Section]) -> str:
    section = f" in '{last_name(key[:-1])}'" if key[:-1] else ""
    if error["type"] == "extra_forbidden":
        unknown = for_message(str(key[-1]))
        return f"unknown key '{unknown}'{section}; {suggest(unknown, _known_keys(error, root))}"
    if error["type"] == "missing":
        return f"'{key[-1]}' is missing{section}."
    if error["type"] == "union_tag_not_found":
        return f"'name' is missing in '{last_name(key)}'."
    if error["type"] == "union_tag_invalid":
        unknown = str(error["ctx"]["tag"])
        return f"no {last_name(key)} '{for_message(unknown)}'; {suggest(unknown, STRATEGIES)}"
    problem = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if error["type"] == "value_error":
        return f"{problem}."
    problem = PHRASES.get(error["type"], problem[0].lower() + problem[1:])
    return f"{last_name(key)} is {shown(error['input'])}; it {problem}."


def _known_keys(error: ErrorDetails, root: type[Section]) -> list[str]:
    section = root
    if len(error["loc"]) == 1:
        return [*root.model_fields, *([OPENSEQ2SEQ] if root is RunConfig else [])]
    named: dict[str, type[Section]] = {
        **MODELS,
        "application": Application,
        **STRATEGIES,
        "mesh": Mesh,
        OPENSEQ2SEQ: OpenSeq2Seq,
        "vocabularies": Vocabularies,
    }
    for part in error["loc"][:-1]:
        if part in named:
            section = named[str(part)]
        elif part in getattr(section, "model_fields", {}) and part not in ("model", "strategy"):
            section = section.model_fields[str(part)].annotation  # type: ignore[assignment]
    return list(section.model_fields)
