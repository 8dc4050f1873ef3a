"""Slots: the variables that an optimizer keeps, with name, shape, precision and layout."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import keras_contract
from tf_graft.core.places import mesh_storage, replicas
from tf_graft.core.state.write import Part
from tf_graft.core.types import VariableLike

SHAPES = ("variable", "rows", "scalar")
NOT_NEGATIVE = (0.0, math.inf)
AVERAGED_WEIGHTS = "averaged_weights"  # the role of weights that are no state of a step
COUNTS = (0.0, 2.0**40)  # no run lasts longer: 35 years of a thousand steps a second


class Slot(NamedTuple):
    """The declaration of a variable that an optimizer keeps for each model variable.

    With a row-sparse gradient, `step` gets the touched rows of a slot whose first dimension is as
    long as the variable's, and all of any other slot. (A square variable has as many columns as
    rows: for a slot of its columns `whole` must be True.)

    On a mesh a dimension taken from the variable's shape has the layout of that dimension, or, with
    `distribute(..., shard_slots=True)`, that of its share; a dimension that a function computes is
    not divided. Therefore `lambda shape: shape[1:]` follows the columns, and
    `lambda shape: (shape[0], shape[0])` is divided by its rows.

    Args:
        fill: the value at the start: a number, or a function of the model variable that returns a
            tensor of the slot's shape.
        shape: `"variable"` for the variable's shape, `"rows"` for one entry per row, `"scalar"`; a
            shape of its own; or a function of the variable's shape that returns the slot's.
        dtype: the slot's dtype; None for the precision in which the variable's update is computed.
        within: the least and the largest value that the slot can have; loading another value is an
            error.
        rounds: whether `state_dtype` may round the slot, if it has the variable's shape and begins
            as a number. False for values whose small differences count.

    Example:
        >>> columns = Slot(shape=lambda shape: shape[1:])
        >>> columns.shape_for(tf.Variable(tf.zeros([4, 3])))
        (3,)
    """

    fill: float | Callable[[Any], tf.Tensor] = 0.0
    shape: (
        Literal["variable", "rows", "scalar"]
        | tuple[int, ...]
        | Callable[[tuple[int, ...]], tuple[int, ...]]
    ) = "variable"
    dtype: str | None = None
    within: tuple[float, float] = (-math.inf, math.inf)
    rounds: bool = True

    def halved(self) -> "Slot":
        """Returns the slot in bfloat16, if it may be rounded."""
        fits = self.shape == "variable" and self.dtype is None and not callable(self.fill)
        return self._replace(dtype="bfloat16") if fits and self.rounds else self

    @property
    def has_own_shape(self) -> bool:
        """Whether the shape does not follow from the variable's."""
        return isinstance(self.shape, tuple)

    def shape_for(self, variable: VariableLike | None) -> tuple[int, ...]:
        """Returns the slot's shape for a model variable; for None its own shape, or a scalar's.

        An entry that is taken from the variable's shape is a `Dimension`.
        """
        if isinstance(self.shape, tuple):
            return self.shape
        shape = () if variable is None else dimensions(variable)
        if callable(self.shape):
            return self.shape(shape)
        return {"variable": shape, "rows": shape[:1], "scalar": ()}[self.shape]

    def has_rows(self, variable: VariableLike) -> bool:
        """Returns whether each row of a model variable has its own part of the slot."""
        shape = self.shape_for(variable)
        axes = [getattr(length, "axis", None) for length in shape]
        return shape == tuple(variable.shape) or (axes[:1] == [0] and axes.count(0) == 1)


class Dimension(int):
    """The length of one dimension of a model variable; arithmetic on it gives a plain `int`.

    Attributes:
        axis: the number of the dimension.
    """

    axis: int


def dimensions(variable: VariableLike) -> tuple[Dimension, ...]:
    """Returns a variable's shape, each entry of which knows its axis."""
    shape = tuple(map(Dimension, variable.shape))
    for axis, dimension in enumerate(shape):
        dimension.axis = axis
    return shape


def create(
    scope: Sequence[str],
    name: str,
    slot: Slot,
    dtype: str,
    variable: VariableLike | None = None,
    mesh: dtensor.Mesh | None = None,
) -> keras.Variable:
    """Creates a variable of the optimizer, named `scope/.../name`.

    The variable is placed on the device of the model variable, or on the mesh: see `Slot`.
    """
    full_name = "/".join([*scope, name])
    scope, _, name = full_name.rpartition("/")
    shape = slot.shape_for(variable)

    def start(shape: tuple[int, ...], dtype: str) -> tf.Tensor:
        """Returns the first value; on a mesh one number for all entries, not a whole tensor."""
        value = _filled(slot.fill, variable, shape if mesh is None else (), dtype)
        if callable(slot.fill) and tuple(value.shape) != shape:
            raise ValueError(
                f"'{full_name}': its fill returns a tensor of shape {tuple(value.shape)}, and the "
                f"slot has the shape {shape}."
            )
        return value

    arguments = {
        "initializer": start,
        "shape": tuple(map(int, shape)),
        "dtype": slot.dtype or dtype,
        "trainable": False,
        "name": name,
    }
    with contextlib.ExitStack() as scopes:
        for part in scope.split("/"):
            scopes.enter_context(keras.name_scope(part))
        if mesh is None:
            scopes.enter_context(replicas.beside(variable))
            return keras_contract.OwnVariable(within=slot.within, **arguments)
        return on_mesh(_layout(mesh, variable, shape), within=slot.within, **arguments)


def on_mesh(layout: dtensor.Layout, **arguments: Any) -> keras.Variable:
    """Creates a `keras.Variable` with these arguments on a mesh."""
    store = functools.partial(mesh_storage.filled, layout)
    return keras_contract.StoredVariable(store=store, **arguments)


def first(slot: Slot, variable: VariableLike | None, dtype: tf.DType) -> tf.Tensor:
    """Returns a slot's value at the start, as a tensor."""
    shape = slot.shape_for(variable)
    return _filled(slot.fill, variable, shape, slot.dtype or dtype.name)


def shared_dtype(dtypes: Iterable[tf.DType]) -> tf.DType:
    """Returns the dtype of slots that do not belong to one of the variables of these dtypes."""
    return tf.float64 if tf.float64 in dtypes else tf.float32


def refill(held: keras.Variable, slot: Slot, variable: VariableLike | None, part: Part) -> None:
    """Resets a part of the calling replica's copy of a slot to its value at the start."""
    kept = replicas.local(held)
    start = _filled(slot.fill, variable, tf.shape(part.read(kept)), kept.dtype)
    if callable(slot.fill):
        storage = keras_contract.storage(held)
        on_mesh = isinstance(storage, mesh_storage.MeshStorage)
        start = part.read(storage.placed(start) if on_mesh else start)
    part.write(kept, start)


def _filled(
    fill: float | Callable[[Any], tf.Tensor],
    variable: VariableLike | None,
    shape: tuple[int, ...],
    dtype: str,
) -> tf.Tensor:
    if callable(fill):
        return tf.cast(fill(variable), dtype)
    return tf.fill(shape, np.asarray(fill, tf.as_dtype(dtype).as_numpy_dtype))


def mesh_of(variables: Sequence[VariableLike]) -> dtensor.Mesh | None:
    """Returns the mesh that holds the variables, if any of them is a `DVariable`."""
    for variable in variables:
        layout = layout_of(variable)
        if layout is not None:
            return layout.mesh
    return None


def layout_of(variable: VariableLike) -> dtensor.Layout | None:
    """Returns a variable's layout on its mesh; None for an ordinary variable."""
    raw = keras_contract.storage(variable)
    return raw.layout if isinstance(raw, dtensor.DVariable) else None


def slot_layout_of(variable: VariableLike) -> dtensor.Layout | None:
    """Returns the layout of an optimizer's slots for a variable, in which it is updated.

    It is the variable's own layout, unless `tf_graft.dtensor.distribute` divided the slots further.
    """
    return getattr(keras_contract.storage(variable), "slot_layout", layout_of(variable))


def _layout(
    mesh: dtensor.Mesh, variable: VariableLike | None, shape: tuple[int, ...]
) -> dtensor.Layout:
    """Lays out each dimension as the variable's it is taken from; a mesh dimension divides once."""
    like = None if variable is None else slot_layout_of(variable)
    if variable is None or like is None:
        return dtensor.Layout.replicated(mesh, len(shape))
    axes: list[int | None] = [getattr(length, "axis", None) for length in shape]
    if axes.count(None) == len(axes) and shape == tuple(variable.shape)[: len(shape)]:
        axes = list(range(len(shape)))
    specs: list[str] = []
    for axis in axes:
        spec = dtensor.UNSHARDED if axis is None else like.sharding_specs[axis]
        specs.append(dtensor.UNSHARDED if spec in specs else spec)
    return dtensor.Layout(specs, mesh)
