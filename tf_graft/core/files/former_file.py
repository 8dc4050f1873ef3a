"""Loads the file of a model whose tables had other rows."""

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import keras_contract
from tf_graft.core.errors import CheckpointError
from tf_graft.core.files.checked_state import Value
from tf_graft.core.files.model_weights import (
    KERAS,
    UNREADABLE,
    check_kinds,
    clause,
    described,
    files_of,
)
from tf_graft.core.files.row_map import RowMap
from tf_graft.core.state import write
from tf_graft.core.types import Entry, TensorLike

Found: TypeAlias = dict[int, Value]  # values in a file, by the ids of the variables
Maps: TypeAlias = Mapping[str, RowMap]  # by the paths of tables


def take_over(model: keras.Model, file: str | os.PathLike[str], maps: Maps) -> None:
    """Loads a file into a model; the weights are kept until all has been checked.

    Use it within `keras_contract.all_or_nothing`: the optimizer loads its state by itself.

    Args:
        model: a model that has been built.
        file: the name of a Keras file, or the prefix of a `tf.train.Checkpoint(model=model)`.
        maps: the maps of the tables that had other rows.

    Raises:
        CheckpointError: the file cannot be read or does not fit; the message names the file.
    """
    name, found = os.fspath(file), Found()
    staged = _of_keras if name.endswith(KERAS) else _of_checkpoint
    try:
        try:
            staged(model, name, found)
        except UNREADABLE:
            _check(model, found, maps)  # a variable's shape says more than the optimizer does
            raise
        _check(model, found, maps)
        if missing := [v for v in model.weights if id(v) not in found]:
            raise CheckpointError(f"it holds no {described(missing[0])}")
    except UNREADABLE as error:
        reason = clause(error).removeprefix("cannot be read: ")
        raise CheckpointError(f"{name} cannot be loaded: {reason}.") from None
    for variable in _held(model, found):
        value, rows = found.pop(id(variable)), maps.get(variable.path)
        value = np.asarray(value) if rows is None else rows.taken(value, variable)
        write.put_everywhere(variable, value)


def _held(model: keras.Model, found: Found) -> list[keras.Variable]:
    return [variable for variable in model.variables if id(variable) in found]


def _check(model: keras.Model, found: Found, maps: Maps) -> None:
    """Refuses values that their variables cannot have.

    Raises:
        CheckpointError: one is of another shape once it is mapped, or of another dtype.
    """
    for variable in _held(model, found):
        value, rows = found[id(variable)], maps.get(variable.path)
        shape, path = list(value.shape), variable.path
        if (shape if rows is None else rows.shape(shape)) != list(variable.shape):
            raise CheckpointError(
                f"its {path} is of shape {tuple(shape)}, and the model's is of shape "
                f"{tuple(variable.shape)}"
            )
        saved, present = tf.as_dtype(value.dtype).name, tf.as_dtype(variable.dtype).name
        if saved != present:
            raise CheckpointError(f"its {path} is of {saved}, and the model's is of {present}")


def _of_keras(model: keras.Model, name: str, found: Found) -> None:
    """Loads the optimizer's state, and finds the values of the other variables."""
    check_kinds([Path(name)])
    with _kept_apart(model.variables, found):
        model.load_weights(name)


@contextlib.contextmanager
def _kept_apart(variables: Iterable[keras.Variable], kept: Found) -> Iterator[None]:
    """A context in which values that are assigned to variables are kept, of whatever shape.

    The variables themselves stay as they are.
    """
    for variable in variables:
        variable.assign = functools.partial(_keep, kept, variable)
    try:
        yield
    finally:
        for variable in variables:
            del variable.assign  # its class has the method


def _keep(kept: Found, variable: keras.Variable, value: TensorLike) -> None:
    dtype = tf.as_dtype(variable.dtype).as_numpy_dtype  # Keras converts values to it, too
    kept[id(variable)] = np.asarray(value).astype(dtype, copy=False)


def _of_checkpoint(model: keras.Model, name: str, found: Found) -> None:
    """As `_of_keras`; the values are yet to be read."""
    check_kinds(files_of(Path(name)))
    optimizer = getattr(model, "optimizer", None)
    parts = {"model": model} | ({} if optimizer is None else {"optimizer": optimizer})
    with keras_contract.not_restored(model.variables):
        status = tf.train.Checkpoint(**parts).read(name).expect_partial()
    keys, reader = keras_contract.found_under(status), tf.train.load_checkpoint(name)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    for variable in model.variables:
        if (key := keys.get(id(variable))) is not None:
            read = functools.partial(reader.get_tensor, key)
            dtype = np.dtype(dtypes[key].as_numpy_dtype)
            found[id(variable)] = Entry(read, tuple(shapes[key]), dtype)
    if found and optimizer is not None and id(optimizer) not in keras_contract.restored(status):
        optimizer.saved.leave()
