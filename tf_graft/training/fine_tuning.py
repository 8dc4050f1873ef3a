"""Fine-tuning in a run: the weights that it starts from, and layers that are frozen at first."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

from tf_graft import vocabulary
from tf_graft.core.errors import CheckpointError
from tf_graft.core.files import model_weights
from tf_graft.core.media import for_message
from tf_graft.core.spelling import suggest
from tf_graft.core.state import write
from tf_graft.fit import Unfreeze
from tf_graft.training.folder import RunFolder
from tf_graft.training.schema import FineTuning
from tf_graft.training.source import Key, reason

KEY = ("fine_tuning", "start_from")
ROWS = ("fine_tuning", "rows")
VOCABULARIES = ("former", "present")


def load(model: keras.Model, section: FineTuning) -> str:
    """Sets a new model's weights to those of a trained one that have their place and shape.

    Args:
        model: the model, which is not on a mesh yet.
        section: the config's section `fine_tuning`.

    Returns:
        A line for the user, which names the weights that stay as they are; empty without
        `start_from`.

    Raises:
        ConfigError: the weights cannot be read or are not finite, or none fits; or the model has
            no such layer.
    """
    check_layers(model, section)
    if section.start_from is None or section.rows:
        return ""
    file = _file(section.start_from, section)
    layers = [model.get_layer(name) for name in section.new_layers]
    kept = {id(weight) for layer in layers for weight in layer.weights}
    weights = [v for v in model.weights if keras.backend.is_float_dtype(v.dtype)]
    old = [v for v in weights if id(v) not in kept]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of weights that do not fit
            values = model_weights.read(model, old, file, partly=True)
    except CheckpointError as error:
        raise section.error(KEY, f"start_from: {error}") from None
    taken = {id(v): value for v, value in zip(old, values, strict=True) if value is not None}
    if not taken:
        raise section.error(KEY, f"start_from: no weight in {file} fits one of this model.")
    for variable in old:
        if id(variable) in taken:
            write.put_everywhere(variable, taken[id(variable)])
    new = [v for v in weights if id(v) not in taken]
    line = f"Starting from {file}: {len(taken)} of {len(weights)} weights"
    return f"{line}; new: {', '.join(v.path for v in new)}." if new else f"{line}."


def load_rows(model: keras.Model, section: FineTuning) -> str:
    """Takes over a model with other vocabularies, and its optimizer's state, if there are `rows`.

    Args:
        model: the model, compiled, whose optimizer is built; it is not on a mesh yet.
        section: the config's section `fine_tuning`.

    Returns:
        A line for the user; empty without `rows`.

    Raises:
        ConfigError: a vocabulary cannot be read, or the file does not fit.
    """
    if section.start_from is None or not section.rows:
        return ""
    file = _file(section.start_from, section)
    rows = {path: _rows(path, section) for path in section.rows}
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            vocabulary.load(model, file, rows)
    except CheckpointError as error:
        raise section.error(KEY, f"start_from: {error}") from None
    except (TypeError, ValueError) as error:
        named = [path for path in rows if f"'{path}'" in str(error)]
        raise section.error((*ROWS, *named[:1]), f"rows: {error}") from None
    line = f"Starting from {file}, with other rows of {', '.join(rows)}."
    return " ".join([line, *(str(each.message) for each in caught)])


def _rows(path: str, section: FineTuning) -> np.ndarray:
    """Returns the former rows of a table: those in the config, or those of its vocabularies."""
    given = section.rows[path]
    if isinstance(given, list):
        return np.array(given, np.int64)
    tokens = [_tokens(getattr(given, key), (*ROWS, path, key), section) for key in VOCABULARIES]
    try:
        return vocabulary.former_rows(*tokens)
    except ValueError as error:
        message = str(error).removeprefix("former_rows: ")
        raise section.error((*ROWS, path, message.partition(" ")[0]), message) from None


def _tokens(name: str, key: Key, section: FineTuning) -> list[str]:
    """Reads a vocabulary, a token in each line."""
    try:
        lines = Path(name).read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else "the file is not UTF-8 text"
        raise section.error(key, f"{key[-1]}: {for_message(name)}: {why}.") from None
    return lines[:-1] if lines[-1] == "" else lines


def check_layers(model: keras.Model, section: FineTuning) -> None:
    """Refuses names of layers that the model does not have.

    Raises:
        ConfigError: there is such a name.
    """
    known = [layer.name for layer in model.layers if layer.weights]
    named: dict[str, Sequence[str]] = {
        "new_layers": section.new_layers,
        "unfreeze": list(section.unfreeze),
    }
    for key, names in named.items():
        for name in names:
            if name not in known:
                message = f"{key}: the model has no layer '{for_message(name)}' with weights; "
                raise section.error(("fine_tuning", key), message + suggest(name, known))


def unfreezing(section: FineTuning) -> Unfreeze:
    """Returns the callback that freezes layers, and trains each after some epochs."""
    layers: dict[int, list[str]] = {}
    for name, epochs in section.unfreeze.items():
        layers.setdefault(epochs, []).append(name)
    return Unfreeze(layers)


def _file(given: str, section: FineTuning) -> Path:
    """Returns the file with the weights of a run or of that name."""
    path = Path(given)
    file = RunFolder(given).model if path.is_dir() else path
    if not file.is_file():
        advice = "; a run leaves it when it is finished" if path.is_dir() else ""
        raise section.error(KEY, f"start_from: there is no file {for_message(str(file))}{advice}.")
    if not file.name.endswith((".keras", ".weights.h5")):
        message = f"start_from: {for_message(str(file))} must be the folder of a run, or a file"
        raise section.error(KEY, f"{message} that ends in .keras or .weights.h5.")
    return file
