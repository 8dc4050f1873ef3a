"""Layers whose call is another on a mesh, so that its results are those of one device."""

from typing import Any

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import keras_contract


class _OnMesh:
    """Stands in for the `call` of one layer."""

    def __init__(self, layer: keras.Layer, mesh: dtensor.Mesh):
        self.call = layer.call
        self.mesh = mesh


class _SameDropout(_OnMesh):
    """Drops what one device drops: the mask is drawn whole on every device.

    Left alone, each share of the mask would have random numbers of its own.
    """

    def __call__(self, inputs: Any, training: bool | None = False) -> Any:
        if not training:
            return self.call(inputs, training=training)
        whole = dtensor.Layout.replicated(self.mesh, inputs.shape.rank)
        ones = dtensor.relayout(tf.ones(tf.shape(inputs), inputs.dtype), whole)
        kept = dtensor.relayout(self.call(ones, training=training), whole)
        return tf.where(kept > 0, inputs * kept, tf.zeros((), inputs.dtype))


class _WholeEmbedding(_OnMesh):
    """Puts the columns that an embedding's shares look up together.

    Left divided they meet heads divided over the same mesh dimension, whose gradient TensorFlow
    cannot lay out.
    """

    def __call__(self, inputs: Any) -> Any:
        found = self.call(inputs)
        specs = [dtensor.MATCH] + [dtensor.UNSHARDED] * (found.shape.rank - 1)
        return dtensor.relayout(found, dtensor.Layout(specs, self.mesh))


STAND_INS = {keras.layers.Dropout: _SameDropout, keras.layers.Embedding: _WholeEmbedding}


def replace(model: keras.Model, mesh: dtensor.Mesh) -> None:
    """Gives the layers of a model the calls that they need on a mesh."""
    for layer in keras_contract.layers_of(model):
        for kind, stand_in in STAND_INS.items():
            if isinstance(layer, kind):
                layer.call = stand_in(layer, mesh)


def restore(model: keras.Model) -> None:
    """Gives the layers of a model their own calls again."""
    for layer in keras_contract.layers_of(model):
        if isinstance(layer.call, _OnMesh):
            del layer.call
