"""What Keras and TensorFlow save of an optimizer, and how a file of weights is loaded."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.saving import saving_lib
from tensorflow.experimental import dtensor

from tf_graft.core.keras_contract.variables import storage
from tf_graft.core.nesting import nested
from tf_graft.core.types import Store


def author_of(store: Store) -> str | None:
    """The name of the optimizer that wrote a Keras weights store, if the store says it."""
    group = getattr(store, "_h5_entry_group", None)
    return getattr(group, "attrs", {}).get("name")


def held_by(trackable: Any) -> dict[str, Any]:
    """What TensorFlow saves and restores with an object, by name."""
    return trackable._trackable_children()


class SavedAsTwin(dtensor.DVariable):
    """A variable on a mesh whose value TensorFlow saves and restores by a twin of it."""

    def twin(self) -> dtensor.DVariable:
        """Another object for the same variable."""
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


def _all_or_nothing(load: Callable[..., None]) -> Callable[..., None]:
    """Makes `load` whole: it loads a model with an optimizer of this package, or changes nothing.

    By the time Keras asks the optimizer it has changed the model's weights, and it goes on with the
    next layer when a layer, or the optimizer, refuses what it is given.
    """

    @functools.wraps(load)
    def load_whole(model: keras.Model, *args: Any, **kwargs: Any) -> None:
        inner = nested(getattr(model, "optimizer", None))
        ours = [optimizer for optimizer in inner if hasattr(optimizer, "snapshot")]
        if not ours:
            load(model, *args, **kwargs)
            return
        put_back = [optimizer.snapshot() for optimizer in ours]
        before = [(v, tf.convert_to_tensor(v)) for v in map(storage, model.variables)]
        try:
            load(model, *args, **kwargs)
        except BaseException:
            for variable, value in before:
                variable.assign(value)
            for undo in put_back:
                undo()
            raise

    return load_whole


saving_lib.load_weights_only = _all_or_nothing(saving_lib.load_weights_only)
