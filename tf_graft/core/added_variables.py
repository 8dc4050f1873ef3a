"""`add_variable` and `add_variable_from_reference`: as Keras', on a mesh where the optimizer is."""

from collections.abc import Sequence
from typing import Any, Protocol

import keras
from tensorflow.experimental import dtensor

from tf_graft.core import slots
from tf_graft.core.building import Builder
from tf_graft.core.parameters import paths
from tf_graft.core.types import VariableLike


class Adds(Protocol):
    """What the two methods ask of their optimizer."""

    mesh: dtensor.Mesh | None

    @property
    def builder(self) -> Builder:
        """Creates variables."""


def add_variable(
    self: Adds,
    shape: Sequence[int],
    initializer: Any = "zeros",
    dtype: Any = None,
    aggregation: str | None = "none",
    layout: Any = None,
    name: str | None = None,
) -> keras.Variable:
    """As Keras'. Where the optimizer is on a mesh it is, too, replicated if no
    `tf.experimental.dtensor.Layout` is given.
    """
    if not isinstance(layout, dtensor.Layout):
        if self.mesh is None:
            of_keras = keras.optimizers.Optimizer.add_variable
            return of_keras(self, shape, initializer, dtype, aggregation, layout, name)
        layout = dtensor.Layout.replicated(self.mesh, len(shape))
    return self.builder.laid_out(layout, shape, initializer, dtype, name)


def add_variable_from_reference(
    self: Adds,
    reference_variable: VariableLike,
    name: str | None = None,
    initializer: Any = "zeros",
) -> keras.Variable:
    """As Keras'. It is laid out as the reference variable's slots where that is on a mesh."""
    layout = slots.slot_layout_of(reference_variable)
    if layout is None:
        of_keras = keras.optimizers.Optimizer.add_variable_from_reference
        return of_keras(self, reference_variable, name, initializer)
    (path,) = paths([reference_variable])
    name = f"{path.replace('/', '_')}_{name or 'var'}"
    like = reference_variable
    return self.builder.laid_out(layout, like.shape, initializer, like.dtype, name)
