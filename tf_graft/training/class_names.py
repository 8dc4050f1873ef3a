"""Names that configs can give, known before TensorFlow is imported: a misspelt one ends at once.

They are read from the sources of this package and of Keras, which is a matter of milliseconds.
"""

import functools
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tf_graft.core.media import for_message
from tf_graft.core.spelling import plain, snake_case, suggest
from tf_graft.training.errors import Key, Source
from tf_graft.training.schema import MODELS, Config, RunConfig

LISTING = "`tf-graft list`"
PACKAGE = Path(__file__).parent.parent
REGISTERED = re.compile(r"^@register\nclass (\w+)", re.MULTILINE)
EXPORTED = re.compile(r"\b([A-Z]\w+) as \1\b")
CHILDREN = ("optimizer", "magnitude_optimizer", "direction_optimizer", "center_optimizer", "others")


def check_model(values: Config, source: Source) -> None:
    """Refuses a model that does not exist, before its other keys are looked at.

    Raises:
        ConfigError: there is none of that name; the message suggests a similar one.
    """
    section = values.get("model")
    name = section.get("name") if isinstance(section, dict) else None
    models = {*MODELS, *(model.lower() for model in of_keras("applications"))} - {"application"}
    if isinstance(name, str) and re.fullmatch(r"\w+", name) and name.lower() not in models:
        hint = suggest(name.lower(), models, LISTING)
        raise source.error(("model", "name"), f"no model '{for_message(name)}'; {hint}")


def check_optimizers(config: RunConfig, source: Source) -> None:
    """Refuses an optimizer that does not exist; call it where no other class can be registered.

    Raises:
        ConfigError: there is none of that name; the message suggests a similar one.
    """
    known = {plain(name): snake_case(name) for name in (*of_keras("optimizers"), *of_package())}
    for key, name in _optimizers(config.optimizer.model_dump(), ("optimizer",)):
        if isinstance(name, str) and plain(name.rpartition(">")[2]) not in known:
            hint = suggest(snake_case(name), known.values(), LISTING)
            raise source.error(key, f"no optimizer '{for_message(name)}'; {hint}")


def _optimizers(section: Config, key: Key) -> Iterator[tuple[Key, Any]]:
    """Yields the name of an optimizer and of each one within it, with its key."""
    yield (*key, "name"), section.get("name")
    for argument in CHILDREN:
        if isinstance(section.get(argument), dict):
            yield from _optimizers(section[argument], (*key, argument))


@functools.cache
def of_package() -> frozenset[str]:
    """Returns the names of this package's optimizer classes."""
    sources = (path.read_text("utf-8") for path in PACKAGE.glob("*/*.py"))
    return frozenset(name for text in sources for name in REGISTERED.findall(text))


@functools.cache
def of_keras(module: str) -> frozenset[str]:
    """Returns the names of the classes and models that a module of Keras exports."""
    (folder,) = importlib.util.find_spec("keras").submodule_search_locations  # type: ignore
    return frozenset(EXPORTED.findall(Path(folder, module, "__init__.py").read_text("utf-8")))
