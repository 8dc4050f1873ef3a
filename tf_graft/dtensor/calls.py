"""Replacements for the calls of layers that would compute a different result on a mesh."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import keras_contract
from tf_graft.core.state import slots


class _OnMesh:
    """Replaces the `call` of one layer."""

    def __init__(self, layer: keras.Layer, mesh: dtensor.Mesh):
        self.call = layer.call
        self.mesh = mesh


class _SameDropout(_OnMesh):
    """Drops the same entries as one device: every device draws the whole mask.

    Otherwise each device would draw its shard of the mask from its own random numbers.
    """

    def __call__(self, inputs: tf.Tensor, training: bool | None = False) -> tf.Tensor:
        if not training:
            return self.call(inputs, training=training)
        whole = dtensor.Layout.replicated(self.mesh, inputs.shape.rank)
        ones = dtensor.relayout(tf.ones(tf.shape(inputs), inputs.dtype), whole)
        kept = dtensor.relayout(self.call(ones, training=training), whole)
        return tf.where(kept > 0, inputs * kept, tf.zeros((), inputs.dtype))


class _WholeEmbedding(_OnMesh):
    """Gathers the columns, and sums the rows, that an embedding's shards look up.

    If sharded columns met heads that are sharded over the same mesh dimension, TensorFlow would
    find no layout for the gradient.
    """

    def __init__(self, layer: keras.layers.Embedding, mesh: dtensor.Mesh):
        super().__init__(layer, mesh)
        self.layer = layer
        layouts = [slots.layout_of(weight) for weight in layer.weights]
        self.by_columns = any(x is not None and x.num_shards(x.rank - 1) > 1 for x in layouts)

    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        with keras_contract.gathering_from_storage(self.layer):
            found = self.call(*args, **kwargs)
        if not self.by_columns:
            return found
        return _whole(found, range(1, found.shape.rank), self.mesh)


class _WholeConcatenate(_OnMesh):
    """Keeps the joined axis whole.

    If a kernel that is divided by rows followed, TensorFlow would divide each input on its own and
    join the shards of a device, in a wrong order.
    """

    def __init__(self, layer: keras.layers.Concatenate, mesh: dtensor.Mesh):
        super().__init__(layer, mesh)
        self.axis = layer.axis

    def __call__(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        inputs = [_whole(x, [self.axis], self.mesh) for x in inputs]
        return _whole(self.call(inputs), [self.axis], self.mesh)


class _OfPacked(_OnMesh):
    """Says what to do if a model is given an array or an ordinary tensor."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.call(*args, **kwargs)
        except tf.errors.UnimplementedError as error:
            if "was expecting a DTensor" not in str(error):
                raise
            raise TypeError(
                "a model on a mesh was called with an array or an ordinary tensor; call it with "
                "tf_graft.dtensor.pack_batch(batch, mesh), or use model.predict."
            ) from error


def _whole(x: tf.Tensor, axes: Iterable[int], mesh: dtensor.Mesh) -> tf.Tensor:
    """Gathers some axes of a tensor, and leaves the others as they are."""
    specs = [dtensor.MATCH] * x.shape.rank
    for axis in axes:
        specs[axis] = dtensor.UNSHARDED
    return dtensor.relayout(x, dtensor.Layout(specs, mesh))


STAND_INS = {
    keras.layers.Concatenate: _WholeConcatenate,
    keras.layers.Dropout: _SameDropout,
    keras.layers.Embedding: _WholeEmbedding,
    keras.Model: _OfPacked,
}


def replace(model: keras.Model, mesh: dtensor.Mesh) -> None:
    """Replaces the calls of a model's layers where a mesh needs it."""
    for layer in keras_contract.layers_of(model):
        for kind, stand_in in STAND_INS.items():
            if isinstance(layer, kind):
                layer.call = stand_in(layer, mesh)


def restore(model: keras.Model) -> None:
    """Restores the calls of a model's layers."""
    for layer in keras_contract.layers_of(model):
        if isinstance(layer.call, _OnMesh):
            del layer.call
