"""Where an optimizer's variables of its own live: anywhere, or on a mesh."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import keras_contract, slots
from tf_graft.core.parameters import paths
from tf_graft.core.rates import Rates
from tf_graft.core.slots import Slot


class Placed(Rates):
    """What `Optimizer` knows of the place of its counters, rates and added variables."""

    def settle(self, mesh: dtensor.Mesh | None, moved: bool = False) -> None:
        """Makes what there is anew where the model's variables live, if that is elsewhere.

        Args:
            mesh: their mesh, if they are on one.
            moved: whether everything is elsewhere, such as under another strategy.
        """
        self.mesh = mesh
        if mesh is not None:
            keras_contract.check_order_on_mesh()
        for variable in self.variables:
            if moved or (mesh is not None and slots.layout_of(variable) is None):
                keras_contract.set_storage(variable, self._copy(variable))

    def _copy(self, variable: keras.Variable) -> keras.Variable:
        """A variable of the same value where new ones are made."""
        value = variable.numpy()
        start = Slot(lambda _: value, value.shape, value.dtype.name)
        return slots.create((self.name,), variable.name, start, "float32", mesh=self.mesh)

    def join(self, parent: "Placed") -> None:
        """Makes this optimizer a child: its rate moves to where the parent's is, and it counts by
        the parent's `iterations`.
        """
        with tf.init_scope():
            self.settle(parent.mesh, moved=True)
        keras_contract.set_storage(self.iterations, parent.iterations)

    def add_variable(
        self,
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
                return super().add_variable(shape, initializer, dtype, aggregation, layout, name)
            layout = dtensor.Layout.replicated(self.mesh, len(shape))
        with keras.name_scope(self.name):
            return self._keep(
                slots.on_mesh(
                    layout,
                    initializer=keras.initializers.get(initializer),
                    shape=tuple(shape),
                    dtype=dtype,
                    trainable=False,
                    name=name,
                )
            )

    def add_variable_from_reference(
        self, reference_variable: Any, name: str | None = None, initializer: Any = "zeros"
    ) -> keras.Variable:
        """As Keras'. It is laid out as the reference variable where that is on a mesh."""
        layout = slots.layout_of(reference_variable)
        if layout is None:
            return super().add_variable_from_reference(reference_variable, name, initializer)
        (path,) = paths([reference_variable])
        return self.add_variable(
            reference_variable.shape,
            initializer,
            reference_variable.dtype,
            layout=layout,
            name=f"{path.replace('/', '_')}_{name or 'var'}",
        )
