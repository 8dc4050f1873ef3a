"""Configs: YAML and overrides in, a checked `RunConfig` or a `ConfigError` out.

The text is read as plain data only: no tags, no aliases, no interpolation, so reading a config
from elsewhere runs nothing and opens nothing.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from tf_graft.training import start
from tf_graft.training.errors import ConfigError, Key, Source, explain, last_name
from tf_graft.training.schema import OPENSEQ2SEQ, OpenSeq2Seq, RunConfig

MAX_BYTES = 64 * 1024
MAX_DEPTH = 16
SERIALIZED = {"class_name", "module", "registered_name"}
NUMBER = re.compile(r"[+-]?(\d[\d_]*\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


def load(path: str | Path, overrides: Sequence[str] = ()) -> tuple[RunConfig, Source]:
    """Reads a config file and applies `section.key=value` overrides.

    Args:
        path: a YAML file of at most 64 KiB.
        overrides: such as `optimizer.learning_rate=0.1`, applied in order.

    Returns:
        The config, its `run.dir` filled in, and where each value came from.

    Raises:
        ConfigError: in one sentence, what is wrong and where.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path}: {reason[0].lower()}{reason[1:]}.") from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: the file is not UTF-8 text.") from None
    config, source = parse(text, str(path), overrides)
    if config.run.dir is None:
        config.run.dir = str(Path("runs") / Path(path).stem)
    return config, source


def parse(
    text: str, name: str = "<config>", overrides: Sequence[str] = ()
) -> tuple[RunConfig, Source]:
    """Checks the text of a config; `name` stands for the file in messages."""
    source = Source(name)
    values = _read(text, source)
    _check_values(values, source)
    for override in overrides:
        values = _override(values, override, source)
    _check_values(values, source)
    if OPENSEQ2SEQ in values:
        values = _translated(values, source)
    try:
        return RunConfig.model_validate(values), source
    except ValidationError as error:
        raise explain(error.errors()[0], values, source) from None


def _translated(values: dict[str, Any], source: Source) -> dict[str, Any]:
    """The values with OpenSeq2Seq's words in ours."""
    try:
        section = OpenSeq2Seq.model_validate(values[OPENSEQ2SEQ])
    except ValidationError as error:
        first = error.errors()[0]
        first["loc"] = (OPENSEQ2SEQ, *first["loc"])
        raise explain(first, values, source) from None
    start.tensorflow()  # only such a config needs it to be read
    from tf_graft.training import openseq2seq

    return openseq2seq.translate(values, section, source)


def dump(config: RunConfig) -> str:
    """The config as YAML, which `load` reads back; `run.fresh`, an order for once, aside."""
    values = config.model_dump(exclude_none=True, exclude={"run": {"fresh"}})
    return yaml.safe_dump(values, sort_keys=False)


def differences(old: RunConfig, new: RunConfig, ignore: Sequence[str]) -> list[str]:
    """What changed between two configs, a phrase a key, the keys in `ignore` aside."""
    before, after = (
        {".".join(map(str, key)): value for key, value in _flatten(config.model_dump())}
        for config in (old, new)
    )
    return [
        f"{key} was {before.get(key)!r} and is {after.get(key)!r}"
        for key in sorted(before.keys() | after.keys())
        if key not in ignore and before.get(key) != after.get(key)
    ]


def _read(text: str, source: Source) -> dict[str, Any]:
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise ConfigError(f"{source.file}: a config is at most {MAX_BYTES // 1024} KiB long.")
    try:
        _check_events(text, source)
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        problem = (error.problem or error.context or "not YAML").rstrip(".")
        raise _at(error.problem_mark or error.context_mark, f"{problem}.", source) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        message = f"the character {error.character!r} is not allowed."
        raise ConfigError(f"{source.file}:{line}: {message}") from None
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{source.file}:1: a config is made of sections: 'data:', 'model:' ...")
    values = _plain(root, (), source)
    assert isinstance(values, dict)
    return values


def _at(mark: Any, message: str, source: Source) -> ConfigError:
    return ConfigError(f"{source.file}:{mark.line + 1}: {message}")


def _check_events(text: str, source: Source) -> None:
    """Refuses what is more than one document of plain data, before anything is built from it."""
    depth = documents = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        mark = event.start_mark
        if getattr(event, "anchor", None):
            raise _at(mark, "anchors and aliases (& and *) are not supported.", source)
        if getattr(event, "tag", None):
            raise _at(mark, f"tags ({event.tag}) are not supported.", source)
        documents += isinstance(event, yaml.DocumentStartEvent)
        if documents > 1:
            raise _at(mark, "a second document starts here; a config is one.", source)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _at(mark, f"values are nested more than {MAX_DEPTH} deep.", source)


def _plain(node: yaml.Node, key: Key, source: Source) -> Any:
    """The node as dicts, lists and scalars; every line is noted in `source`."""
    source.lines.setdefault(key, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*key, i), source) for i, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, key, source)
    values: dict[str, Any] = {}
    for name_node, value_node in node.value:
        name = name_node.value
        if name_node.tag != "tag:yaml.org,2002:str":
            raise _at(name_node.start_mark, "a key must be a name.", source)
        if name in values:
            message = f"'{name}' is repeated; it stands on line {source.lines[(*key, name)]} too."
            raise _at(name_node.start_mark, message, source)
        source.lines[(*key, name)] = name_node.start_mark.line + 1
        values[name] = _plain(value_node, (*key, name), source)
    return values


def _scalar(node: yaml.ScalarNode, key: Key, source: Source) -> Any:
    """A number, truth value, text or None; YAML 1.1's surprises are refused."""
    text, kind = node.value, node.tag.rpartition(":")[2]
    if kind == "bool" and text.lower() not in ("true", "false"):
        meant = "true" if text.lower() in ("yes", "on") else "false"
        message = f"'{text}' means {meant} in YAML; write {meant}, or \"{text}\" for the text."
        raise source.error(key, message)
    if kind == "int" and not re.fullmatch(r"[+-]?(0|[1-9][0-9_]*)", text):
        raise source.error(key, f"{last_name(key)} is {text[:60]}; write it as a decimal number.")
    if kind not in ("bool", "int", "float", "null") or (kind == "float" and ":" in text):
        return text
    try:
        return yaml.SafeLoader("").construct_object(node)
    except ValueError:  # Python's limit on the digits of a number
        raise source.error(key, f"{last_name(key)} is not a number one can use.") from None


def _override(values: dict[str, Any], override: str, source: Source) -> dict[str, Any]:
    name, _, value = override.partition("=")
    if not re.fullmatch(r"\w+(\.\w+)*=.*", override, re.DOTALL):
        raise ConfigError(f"override '{override}': write section.key=value.")
    key = tuple(name.split("."))
    source.overrides[key] = override
    _check_text(key, value, source)
    try:
        merged = OmegaConf.merge(OmegaConf.create(values), OmegaConf.from_dotlist([override]))
        plain = OmegaConf.to_container(merged, resolve=False)
    except (OmegaConfBaseException, yaml.YAMLError, ValueError, RecursionError) as error:
        reason = getattr(error, "problem", None) or str(error).strip().partition("\n")[0]
        raise ConfigError(f"override '{override}': {reason.rstrip('.')}.") from None
    assert isinstance(plain, dict)
    return {str(section): value for section, value in plain.items()}


def _check_values(values: dict[str, Any], source: Source) -> None:
    for key, value in _flatten(values):
        for text in (*key, value):
            _check_text(key, text, source)
        if isinstance(value, str) and NUMBER.fullmatch(value) and key[-1] not in ("name", "dir"):
            message = f"{last_name(key)} is the text '{value}'; write {_as_number(value)}."
            raise source.error(key, message)
        if SERIALIZED.intersection(key):  # Keras would import the module it names
            raise source.error(key, f"'{last_name(key)}': write a name and its arguments.")


def _check_text(key: Key, text: Any, source: Source) -> None:
    # omegaconf would look "${...}" up, in the environment too: a config is plain data.
    if isinstance(text, str) and ("${" in text or "\0" in text):
        character = "'${'" if "${" in text else "a zero byte"
        raise source.error(key, f"{last_name(key)} contains {character}; a config is plain data.")


def _as_number(text: str) -> str:
    mantissa, e, exponent = text.lower().partition("e")
    if not e:
        return text
    mantissa = mantissa if "." in mantissa else f"{mantissa}.0"
    return f"{mantissa}e{exponent if exponent[0] in '+-' else '+' + exponent}"


def _flatten(values: Any, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    if not isinstance(values, dict | list) or not values:
        yield key, values
        return
    for name, value in values.items() if isinstance(values, dict) else enumerate(values):
        yield from _flatten(value, (*key, name))
