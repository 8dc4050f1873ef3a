"""Reads the weights of a model from a file, and checks all of them before any is used."""

import glob
import math
import os
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import keras_contract
from tf_graft.core.errors import CheckpointError
from tf_graft.core.files.checked_state import misfit
from tf_graft.core.files.whole_files import kind
from tf_graft.core.state import write

KERAS = (".h5", ".keras")
OF_LAYER = ":\n\n"  # in Keras' messages, before the error of the first layer that has one
UNBOUNDED = (-math.inf, math.inf)

# The errors of Keras and TensorFlow for files that are missing, damaged or of another model.
UNREADABLE = (
    *(tf.errors.OpError, AssertionError, LookupError, OSError, RuntimeError, TypeError),
    *(ValueError, zipfile.BadZipFile),
)


def read(
    model: keras.Model,
    weights: Sequence[keras.Variable],
    file: str | os.PathLike[str],
    partly: bool = False,
) -> list[np.ndarray | None]:
    """Returns the values that a file has for weights of a model; all variables stay as they are.

    Args:
        model: a model that has been built.
        weights: the weights to read; the state of the model's optimizer is never read.
        file: the name of a Keras file, or the prefix of a `tf.train.Checkpoint(model=model)`.
        partly: whether a Keras file may lack weights, or have others in their place; None stands
            for the value of such a weight.

    Raises:
        CheckpointError: the file cannot be read, lacks one of the weights, or has an infinite or
            NaN in it; the message names the file.
    """
    name = os.fspath(file)
    reading = _of_keras if name.endswith(KERAS) else _of_checkpoint
    optimizer, model.optimizer = getattr(model, "optimizer", None), None
    try:
        found = reading(model, weights, name, partly)
        for variable, value in zip(weights, found, strict=True):
            if value is not None:
                check(variable, value)
            elif not partly:
                raise CheckpointError(f"cannot be read: it holds no {described(variable)}")
    except UNREADABLE as error:
        raise CheckpointError(f"{name} {clause(error)}.") from None
    finally:
        model.optimizer = optimizer
    return found


def check(variable: keras.Variable, value: np.ndarray, loose: bool = False) -> None:
    """Refuses a value that a variable cannot have after a step.

    Args:
        variable: the variable, with its bounds if it has any.
        value: the value, of the variable's shape.
        loose: whether it may be infinite or NaN.

    Raises:
        CheckpointError: it is not finite, or not within the bounds; the message is a clause.
    """
    if wrong := misfit(value, getattr(variable, "within", UNBOUNDED), loose):
        raise CheckpointError(f"cannot be read: its {variable.path} {wrong}")


def described(variable: keras.Variable) -> str:
    """Returns a variable's path and shape."""
    return f"{variable.path} of shape {tuple(variable.shape)}"


def clause(error: Exception) -> str:
    """Describes an error of reading a file as a clause that follows the file's name."""
    _, _, of_layer = str(error).partition(OF_LAYER)
    reason = (of_layer or str(error)).strip().partition("\n")[0].rstrip(".")
    return reason if isinstance(error, CheckpointError) else f"cannot be read: {reason}"


def check_kinds(paths: Iterable[Path]) -> None:
    """Refuses what is not a file: reading a FIFO would wait for its writer.

    Raises:
        CheckpointError: there is such a path; the message is a clause.
    """
    for path in paths:
        if (what := kind(path)) not in ("file", None):
            raise CheckpointError(f"cannot be read: {path.name} is a {what}")


def files_of(prefix: Path) -> list[Path]:
    """Returns the files of a TensorFlow checkpoint."""
    return [
        *prefix.parent.glob(f"{glob.escape(prefix.name)}.index"),
        *prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*"),
    ]


def _of_keras(
    model: keras.Model, weights: Sequence[keras.Variable], name: str, partly: bool
) -> list[np.ndarray | None]:
    check_kinds([Path(name)])
    with keras.StatelessScope() as scope, keras_contract.as_large_as(model.variables):
        model.load_weights(name, skip_mismatch=partly)
    values = map(scope.get_current_value, weights)
    return [None if value is None else np.asarray(value) for value in values]


def _of_checkpoint(
    model: keras.Model, weights: Sequence[keras.Variable], name: str, _: bool
) -> list[np.ndarray | None]:
    check_kinds(files_of(Path(name)))
    put_back = write.snapshot(model.variables)
    try:
        status = tf.train.Checkpoint(model=model).read(name).expect_partial()
        restored = keras_contract.restored(status)
        return [v.numpy() if id(v) in restored else None for v in weights]
    finally:
        put_back()
