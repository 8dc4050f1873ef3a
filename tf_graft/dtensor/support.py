"""Early refusals of models that TensorFlow cannot run or train on a mesh."""

from collections.abc import Callable, Sequence

import keras
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
