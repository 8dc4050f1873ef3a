"""Fine-tuning in a run: the weights that it starts from, and layers that are frozen at first."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import keras

from tf_graft.core.errors import CheckpointError
from tf_graft.core.files import model_weights
from tf_graft.core.media import for_message
from tf_graft.core.spelling import suggest
from tf_graft.core.state import write
from tf_graft.fit import Unfreeze
from tf_graft.training.folder import RunFolder
from tf_graft.training.schema import FineTuning

KEY = ("fine_tuning", "start_from")


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
    if section.start_from is None:
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
