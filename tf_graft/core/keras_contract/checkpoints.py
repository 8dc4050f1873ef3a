"""Reads and guards what Keras and TensorFlow save of an optimizer."""

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.saving import saving_lib
from tensorflow.experimental import dtensor

from tf_graft.core.errors import CheckpointError
from tf_graft.core.keras_contract.models import layers_of, snapshot_of_tables
from tf_graft.core.keras_contract.variables import storage
from tf_graft.core.nesting import nested
from tf_graft.core.types import Entry, Store, VariableLike

# Bytes that a file of weights may declare without holding them: for each entry of the largest
# variable, in any dtype, and for small data. There is no limit if no model is known.
WIDEST, FLOOR = 16, 2**20
_largest: ContextVar[float] = ContextVar("largest", default=math.inf)
# Builds the optimizer of the model that is being loaded, if a model is known.
_build: ContextVar[Callable[[], None]] = ContextVar("build", default=lambda: None)


def author_of(store: Store) -> str | None:
    """Returns the name of the optimizer that wrote a Keras weights store, if the store has it."""
    group = getattr(store, "_h5_entry_group", None)
    return getattr(group, "attrs", {}).get("name")


def entry(store: Store, key: str) -> np.ndarray | Entry:
    """Returns an entry of a Keras weights store; in a file its value is read when it is used."""
    group = getattr(store, "_h5_entry_group", {})
    if key not in group:  # the entry is in a dict, or in another one of several files
        return np.asarray(store[key])
    held = _dataset(group, key)
    brain = held.attrs.get("dtype") == "bfloat16"
    dtype = np.dtype(tf.bfloat16.as_numpy_dtype if brain else held.dtype)
    return Entry(lambda: store[key], held.shape, dtype)


def build_for_loading() -> None:
    """Builds the optimizer of the model whose weights Keras is loading, if it is loading any."""
    _build.get()()


def held_by(trackable: Any) -> dict[str, Any]:
    """Returns the children that TensorFlow saves and restores with an object, by name."""
    return trackable._trackable_children()


class SavedAsTwin(dtensor.DVariable):
    """A variable on a mesh whose value TensorFlow saves and restores through a twin object."""

    def twin(self) -> dtensor.DVariable:
        """Returns another object for the same variable."""
        raise NotImplementedError

    def _serialize_to_tensors(self) -> dict[str, Any]:
        return self.twin()._serialize_to_tensors()

    def _restore_from_tensors(self, restored: dict[str, tf.Tensor]) -> Any:
        return self.twin()._restore_from_tensors(restored)


def take_for_restored(checkpoint: Any, node: int, trackable: Any) -> None:
    """Marks a node of a checkpoint that is being restored as restored into `trackable`."""
    checkpoint.object_by_proto_id[node] = trackable
    checkpoint.matched_proto_ids.add(node)
    trackable._update_uid = checkpoint.restore_uid


def restored(status: Any) -> set[int]:
    """Returns the ids of the objects for which a checkpoint that was read has values."""
    checkpoint = getattr(status, "_checkpoint", None)  # None for files without a graph of objects
    return set() if checkpoint is None else {*map(id, checkpoint.object_by_proto_id.values())}


@contextlib.contextmanager
def not_restored(variables: Iterable[keras.Variable]) -> Iterator[None]:
    """A context in which a checkpoint that is read finds variables, and leaves them as they are."""
    before = [(variable, variable._update_uid) for variable in variables]
    for variable, _ in before:
        variable._update_uid = math.inf
    try:
        yield
    finally:
        for variable, number in before:
            variable._update_uid = number


def found_under(status: Any) -> dict[int, str]:
    """Returns the keys of the values in a checkpoint that was read, by the ids of the variables."""
    checkpoint = getattr(status, "_checkpoint", None)
    if checkpoint is None:
        return {}
    nodes = checkpoint.object_graph_proto.nodes
    return {
        id(found): attribute.checkpoint_key
        for node, found in checkpoint.object_by_proto_id.items()
        for attribute in nodes[node].attributes
        if attribute.name == "VARIABLE_VALUE"
    }


@contextlib.contextmanager
def as_large_as(variables: Iterable[VariableLike]) -> Iterator[None]:
    """A context that refuses data in a file of weights that no variable is large enough for."""
    sizes = [WIDEST * math.prod(variable.shape) for variable in variables]
    token = _largest.set(max([FLOOR, *sizes]))
    try:
        yield
    finally:
        _largest.reset(token)


@contextlib.contextmanager
def all_or_nothing(model: keras.Model) -> Iterator[None]:
    """A context after whose error a model and its optimizers are as they were before."""
    ours = _of_this_package(model)
    put_back = [snapshot_of_tables(model), *(optimizer.saved.snapshot() for optimizer in ours)]
    others = [*model.variables, *_variables_of_other_optimizers(model)]
    before = [(v, tf.convert_to_tensor(v)) for v in map(storage, others)]

    def build() -> None:
        compiled: Any = getattr(model, "optimizer", None)
        if any(optimizer in ours for optimizer in nested(compiled)):
            compiled.build(model.trainable_variables)
            put_back.extend(optimizer.saved.snapshot() for optimizer in ours)

    undo_build = _build.set(build)
    try:
        yield
    except BaseException:
        for variable, value in before:
            variable.assign(value)
        for undo in reversed(put_back):  # the oldest values are put back last
            undo()
        raise
    finally:
        _build.reset(undo_build)


def _all_or_nothing(load: Callable[..., None]) -> Callable[..., None]:
    """Makes `load` load all of a model with an optimizer of this package, or change nothing.

    Keras alone changes the model's weights before it asks the optimizer, and continues with the
    next layer if a layer or the optimizer refuses its values.
    """

    @functools.wraps(load)
    def load_whole(model: keras.Model, *args: Any, **kwargs: Any) -> None:
        if not _of_this_package(model):
            load(model, *args, **kwargs)
            return
        with all_or_nothing(model), as_large_as(model.variables):
            load(model, *args, **kwargs)

    return load_whole


def _of_this_package(model: keras.Model) -> list[Any]:
    """Returns the optimizers of a model that are of this package, inner ones too."""
    return [optimizer for optimizer in _optimizers_of(model) if hasattr(optimizer, "saved")]


def _variables_of_other_optimizers(model: keras.Model) -> list[keras.Variable]:
    ours = {id(v) for optimizer in _of_this_package(model) for v in optimizer.variables}
    every = [v for optimizer in _optimizers_of(model) for v in optimizer.variables]
    return [v for v in every if id(v) not in ours]


def _optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Returns the optimizers that Keras saves with a model, and those within them.

    They are attributes of the model or of a layer, as the two of a GAN are, or in lists and dicts.
    """
    found: dict[int, keras.optimizers.Optimizer] = {}
    seen: set[int] = set()
    values: list[Any] = [vars(layer) for layer in layers_of(model)]
    while values:
        value = values.pop()
        if isinstance(value, keras.optimizers.Optimizer):
            found |= {id(each): each for each in nested(value)}
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            values.extend(value.values() if isinstance(value, dict) else value)
    return list(found.values())


def _as_large_as_told(get: Callable[..., Any]) -> Callable[..., Any]:
    """Refuses data that a file declares but does not hold, such as 10 GB of zeros, before reading.

    Keras does this only above 4 GiB, and compares shapes only once a layer's value is in memory.
    """

    @functools.wraps(get)
    def checked(group: Any, name: str) -> Any:
        found = get(group, name)
        declared, held = math.prod(found.shape) * found.dtype.itemsize, found.id.get_storage_size()
        if declared > max(_largest.get(), held):
            raise CheckpointError(
                f"'{found.name}' declares {declared:,} bytes, but the file holds only {held:,}, "
                "and no variable of the model is that large; use a file that Keras wrote."
            )
        return found

    return checked


def _before_it_is_read(get: Callable[..., Any]) -> Callable[..., Any]:
    """Makes Keras' reading of an entry from a file check the entry first."""

    @functools.wraps(get)
    def read(store: Any, key: str) -> Any:
        if key in store._h5_entry_group:
            _dataset(store._h5_entry_group, key)
        return get(store, key)

    return read


# Keras has a function for reading an entry since 3.12.
_dataset = _as_large_as_told(getattr(saving_lib, "safe_get_h5_dataset", operator.getitem))


@functools.cache
def guard_loading() -> None:
    """Makes Keras load a model with an optimizer of this package whole or not at all.

    The first such optimizer calls this; models without one are loaded as before.
    """
    if hasattr(saving_lib, "safe_get_h5_dataset"):
        saving_lib.safe_get_h5_dataset = _dataset
    else:
        saving_lib.H5IOStore.__getitem__ = _before_it_is_read(saving_lib.H5IOStore.__getitem__)
    saving_lib.load_weights_only = _all_or_nothing(saving_lib.load_weights_only)
