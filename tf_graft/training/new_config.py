"""Writes a config for a model and a data set: its keys, with their meanings and defaults."""

import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tf_graft.training import start
from tf_graft.training.config import parse
from tf_graft.training.schema import (
    MODELS,
    Application,
    Data,
    FineTuning,
    Mesh,
    Mirrored,
    Optimizer,
    Precision,
    Run,
    Section,
)
from tf_graft.training.source import ConfigError, Source

WIDTH = 98  # so that the two characters fit that switch a line off
EPOCHS = 10
SIDE = 96  # of images, where their own sizes differ or a network of keras.applications refuses them
KINDS = {"mlp": "images", "cnn": "images", "transformer": "characters", "embedding": "words"}
CLICK_MODELS = ("two_tower", "dlrm", "wide_and_deep")
OF_KINDS = {  # the keys of `data` that are for some kinds only
    "sequence_length": ("characters", "words"),
    "vocabulary": ("words",),
    "image_size": ("images",),
    "classes": ("images", "words"),
    **dict.fromkeys(("fields", "label", "positive_from"), ()),  # of click models
}
CHILDREN = ("optimizer", "magnitude_optimizer", "direction_optimizer")  # made with adam
UNWRITTEN = ("name", "mesh")  # arguments of optimizers that a config does not give


def write(model: str, data: str, optimizer: str, path: Path) -> None:
    """Writes the config to a file that does not exist yet.

    Raises:
        ConfigError: a name is unknown, the model is not for these data or is a click model, or the
            file exists.
        OSError: the file or its folder cannot be made.
    """
    source = Source("tf-graft new")
    if path.exists():
        raise ConfigError(f"{path} exists, and stays as it is; name another file after the data.")
    model = model.lower()
    chosen = {"model": model, "data": data, "optimizer": optimizer}
    named = json.dumps({section: {"name": name} for section, name in chosen.items()})
    parse(named, source.file, ["run={epochs: 1}"])
    if model in CLICK_MODELS:
        message = f"'{model}' also needs data.fields and data.label, which only you can give"
        raise source.error(
            ("model",), f"{message}; begin with one of the repository's configs/recommenders."
        )
    start.tensorflow()
    text = _text(model, data, optimizer, path, source)
    parse(text, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def _text(model: str, data: str, optimizer: str, path: Path, source: Source) -> str:
    from tf_graft.training import data as data_sets

    kind, one_size = data_sets.kind_of(Data(name=data, image_size=SIDE).of(source))
    wanted = KINDS.get(model, "images")
    if kind != wanted:
        raise source.error(("model",), f"'{model}' is for {wanted}, the data are {kind}.")
    side = SIDE if model not in KINDS or (kind == "images" and not one_size) else None
    unused = [key for key, kinds in OF_KINDS.items() if kind not in kinds]
    chosen = MODELS.get(model, Application)
    lines = [
        f"# {model} on {data} with {optimizer}. Each key has its default: change what you want.",
        "# Lines that begin with # are options that are off.",
        "#",
        f"#   tf-graft train {path}",
        *("", "data:", *_keys(Data, {"name": data, "image_size": side}, unused)),
        *("", "model:", *_keys(chosen, {"name": model})),
        *("", "optimizer:", *_of_optimizer(optimizer, source)),
        *("", "run:", *_keys(Run, {"epochs": EPOCHS})),
        *("", "precision:", *_keys(Precision, {})),
        *("", "fine_tuning:", *_keys(FineTuning, {})),
        *("", "# strategy:  # several devices of this machine"),
        *_off(_keys(Mirrored, {"name": "mirrored"})),
        *("", "# mesh:  # in place of a strategy", *_off(_keys(Mesh, {}))),
    ]
    return "\n".join(lines) + "\n"


def _off(lines: Iterator[str]) -> list[str]:
    return [f"# {line}" for line in lines]


def _keys(
    section: type[Section], given: dict[str, Any], without: Sequence[str] = ()
) -> Iterator[str]:
    """Yields the lines of a section: the given values, and the defaults of the other keys."""
    for key, field in section.model_fields.items():
        if key not in without:
            value = given[key] if key in given else field.get_default(call_default_factory=True)
            yield from _line(key, _written(value), field.description or "")


def _line(key: str, value: str, meaning: str, off: bool = False) -> Iterator[str]:
    """Yields a key with its meaning beside it, on further lines if it is long."""
    begin = f"  {'# ' if off else ''}{key}: {value}".ljust(30) + "  # "
    more = "# ".rjust(34)
    lines = textwrap.wrap(meaning.replace("`", ""), WIDTH - len(more))
    if len(begin) > len(more) or not lines:
        yield begin.rstrip(" #")
    else:
        yield begin + lines.pop(0)
    yield from (more + line for line in lines)


def _written(value: object) -> str:
    """Writes a value as YAML reads it."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w/]*", value):
        return value
    return re.sub(r"^(-?\d+)e", r"\1.0e", json.dumps(value))


def _of_optimizer(name: str, source: Source) -> Iterator[str]:
    """Yields the lines of an optimizer: its own arguments, then, off, those of all optimizers."""
    from tf_graft.core.arguments import registry, signatures
    from tf_graft.training import configured_optimizer  # noqa: F401  (registers those of this package)

    try:
        cls = registry.find(name)
    except ValueError as error:
        raise source.error(("optimizer",), str(error)) from None
    documented = textwrap.dedent((inspect.getdoc(cls) or "").partition("Args:\n")[2])
    texts = {key: " ".join(text.split()) for _, key, text in signatures.ENTRY.findall(documented)}
    yield from _line("name", name, Optimizer.model_fields["name"].description or "")
    for key, parameter in inspect.signature(cls).parameters.items():
        default = parameter.default
        if default is parameter.empty and key in CHILDREN:
            yield from _line(key, "{name: adam}", texts.get(key, ""))
        elif default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            message = f"{name} also needs {key}, which only you can give; name another."
            raise source.error(("optimizer",), message)
        elif key not in UNWRITTEN and isinstance(default, bool | int | float | str | None):
            off = default is None or parameter.kind is parameter.KEYWORD_ONLY
            yield from _line(key, _written(default), texts.get(key, ""), off)
