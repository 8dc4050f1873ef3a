"""Reads YAML 1.2 as plain data: sections, lists, numbers, booleans, text and null.

Tags, anchors, directives and ambiguous numbers are refused, so reading a text from elsewhere runs
no code, and the values are those that a reader sees.
"""

import io
import re
from typing import Any, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent, DocumentStartEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from tf_graft.core.media import for_message
from tf_graft.training.source import ConfigError, Key, Source, last_name

Plain: TypeAlias = Any  # dicts, lists and scalars, nested

MAX_DEPTH = 16
DECIMALS = {
    "int": re.compile(r"[+-]?(0|[1-9]\d*(_\d+)*)"),
    "float": re.compile(
        r"[+-]?(\d+(_\d+)*\.?|(\d+(_\d+)*)?\.\d+)(e[+-]?\d+)?|[+-]?\.inf|\.nan", re.IGNORECASE
    ),
}
PLAIN = ("null", "bool", "int", "float")  # other untagged scalars are text, also dates


def read(text: str, source: Source, key: Key = ()) -> Plain:
    """Reads the value of a text.

    Args:
        text: a file's content, or the value that an override gives to `key`.
        source: locates errors; receives the lines of a file.
        key: the override's key, which `source` knows already.

    Raises:
        ConfigError: the text is not one document of plain data.
    """
    try:
        _check_events(text, source, key)
        return _plain(_yaml().compose(text), key, source)
    except ConfigError:
        raise
    except MarkedYAMLError as error:
        problem = (error.problem or error.context or "not YAML").rstrip(".")
        mark = error.problem_mark or error.context_mark
        raise source.at(mark.line + 1, key, f"{problem}.") from None
    except ReaderError as error:
        line = text[: error.position].count("\n") + 1
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise source.at(line, key, f"the character U+{code:04X} is not allowed.") from None
    except (ValueError, OverflowError):
        raise source.at(None, key, "an escape (\\U...) stands for no character.") from None


def written(values: dict[str, Plain]) -> str:
    """Writes values as a text that `read` reads back."""
    text = io.StringIO()
    _yaml().dump(values, text)
    return text.getvalue()


def in_a_line(value: Plain) -> str:
    """Writes a value in one line that `read` reads back."""
    text, yaml = io.StringIO(), _yaml()
    yaml.default_flow_style = True
    yaml.dump(value, text)
    return text.getvalue().removesuffix("...\n").strip()


def _yaml() -> YAML:
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.allow_unicode = False  # some line breaks, of Unicode and YAML, are not read back
    yaml.width = 2**30
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    return yaml


def _check_events(text: str, source: Source, key: Key) -> None:
    """Refuses anything but one document of plain data, before building objects from it."""
    if directive := re.search(r"^%", text, re.MULTILINE):
        line = text[: directive.start()].count("\n") + 1
        raise source.at(line, key, "directives (%) are not supported.")
    depth = documents = 0
    for event in _yaml().parse(text):
        line = event.start_mark.line + 1
        begins = isinstance(event, DocumentStartEvent)
        documents += begins
        if documents > 1:
            raise source.at(line, key, "a second document starts here; a config is one.")
        if begins and event.explicit and source.overridden(key):
            raise source.at(line, key, "'---' begins a document, and is no value.")
        if getattr(event, "anchor", None):
            raise source.at(line, key, "anchors and aliases (& and *) are not supported.")
        if getattr(event, "tag", None):
            raise source.at(line, key, f"tags ({for_message(str(event.tag))}) are not supported.")
        depth += isinstance(event, CollectionStartEvent)
        depth -= isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise source.at(line, key, f"values are nested more than {MAX_DEPTH} deep.")


def _plain(node: Node | None, key: Key, source: Source) -> Plain:
    """Converts a node to dicts, lists and scalars, and records the lines of a file."""
    if node is None:
        return None
    source.note(node.start_mark.line + 1, key)
    if isinstance(node, SequenceNode):
        return [_plain(item, (*key, i), source) for i, item in enumerate(node.value)]
    if isinstance(node, ScalarNode):
        return _scalar(node, key, source)
    assert isinstance(node, MappingNode)
    values: dict[str, Plain] = {}
    for name_node, value_node in node.value:
        name, line = name_node.value, name_node.start_mark.line + 1
        if not isinstance(name_node, ScalarNode) or _kind(name_node) != "str":
            raise source.at(line, key, "a key must be a name.")
        if name in values:
            first = source.lines.get((*key, name))
            stands = f"; it stands on line {first} too" if first else ""
            raise source.at(line, key, f"'{for_message(name)}' is repeated{stands}.")
        source.note(line, (*key, name))
        values[name] = _plain(value_node, (*key, name), source)
    return values


def _kind(node: ScalarNode) -> str:
    return str(node.tag).rpartition(":")[2]


def _scalar(node: ScalarNode, key: Key, source: Source) -> Plain:
    """Converts a node to a number, a boolean, a text or None."""
    text, kind = node.value, _kind(node)
    if kind not in PLAIN:
        return text
    if kind in DECIMALS and not DECIMALS[kind].fullmatch(text):
        raise source.error(key, f"{last_name(key)} is {text[:60]}; write it as a decimal number.")
    try:
        return _yaml().constructor.construct_object(node)
    except ValueError:  # Python's limit on the digits of a number
        raise source.error(key, f"{last_name(key)} is not a number one can use.") from None
