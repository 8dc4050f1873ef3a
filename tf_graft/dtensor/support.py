"""Early refusals of models that TensorFlow cannot run or train on a mesh."""

from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import keras_contract

ADVICE = (
    "TensorFlow could not shard an operation of this model over the mesh (it is named above). "
    "Sharding fewer variables often helps: keep the activations between layers whole by sharding "
    "the first of two matrices by columns and the second by rows."
)
DEPTHWISE = (
    keras.layers.DepthwiseConv1D,
    keras.layers.DepthwiseConv2D,
    keras.layers.SeparableConv1D,
    keras.layers.SeparableConv2D,
)
CONVOLUTIONS = (
    *(keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D),
    *(keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose, keras.layers.Conv3DTranspose),
)


def check_layouts(
    model: keras.Model,
    specs_of: Callable[[keras.Variable], Sequence[str]],
    batch_dim: str | None,
) -> None:
    """Refuses layers that TensorFlow cannot run with the given layouts.

    Args:
        model: the model.
        specs_of: returns the sharding specs of a weight.
        batch_dim: the mesh dimension that divides a batch.

    Raises:
        ValueError: there is such a layer; the message names it and says how to change it.
    """
    for layer in keras_contract.layers_of(model):
        owner = f"distribute: layer '{layer.name}', {type(layer).__name__}"
        if isinstance(layer, keras.layers.RNN) and not layer.unroll:
            raise ValueError(
                f"{owner}: TensorFlow cannot run its loop on a mesh; make it with unroll=True."
            )
        for weight in layer.weights:
            specs = specs_of(weight)
            divided = any(name != dtensor.UNSHARDED for name in specs)
            columns = any(name != dtensor.UNSHARDED for name in specs[1:])
            if isinstance(layer, keras.layers.Embedding) and specs[0] == batch_dim and columns:
                raise ValueError(
                    f"{owner}: TensorFlow cannot divide the rows of '{weight.path}' over the batch "
                    f"dimension and its columns, too; leave its columns whole: ['{batch_dim}', "
                    "None]."
                )
            if isinstance(layer, CONVOLUTIONS) and divided:
                raise ValueError(
                    f"{owner}: TensorFlow cannot divide a convolution's weights; leave "
                    f"'{weight.path}' out of the layout map."
                )


def check_trainable(model: keras.Model) -> None:
    """Refuses layers that TensorFlow can run but not train on a mesh.

    Raises:
        ValueError: there is such a layer; the message names it and says how to change it.
    """
    for layer in keras_contract.layers_of(model):
        if isinstance(layer, DEPTHWISE) and layer.trainable_weights:
            raise ValueError(
                f"fit: layer '{layer.name}', {type(layer).__name__}: TensorFlow has no gradient of "
                "a depthwise convolution on a mesh; freeze it (layer.trainable = False), or use "
                "Conv2D."
            )


def guard_operations(graph: tf.Graph) -> None:
    """Prevents TensorFlow from computing wrong numbers on a mesh without an error.

    If an axis is divided that a concatenation extends, or that a slice reverses, each device only
    orders its own shard. TensorFlow refuses such a concatenation if its axis is not negative.
    Therefore, this function counts the axes of all concatenations from 0. It refuses all slices
    that reverse an axis.

    Args:
        graph: the function being traced.

    Raises:
        ValueError: a slice reverses an axis; the message names it.
    """
    for operation in graph.get_operations():
        if operation.type == "ConcatV2":
            axis, rank = operation.inputs[-1], operation.outputs[0].shape.rank
            number = tf.get_static_value(axis)
            if number is not None and number < 0 and rank is not None:
                counted = tf.constant(number + rank, axis.dtype)
                keras_contract.replace_input(operation, len(operation.inputs) - 1, counted)
        elif operation.type == "StridedSlice":
            strides = tf.get_static_value(operation.inputs[3])
            if strides is not None and np.any(strides < 0):
                raise ValueError(
                    f"'{operation.name}': TensorFlow cannot reverse an axis on a mesh; gather its "
                    "entries in place of a slice with a negative step, as in "
                    "tf.gather(x, tf.range(n - 1, -1, -1), axis=1)."
                )
