"""Reads a model's `keras.distribution`, which Keras ignores on TensorFlow."""

from typing import NamedTuple, TypeAlias

import keras

from tf_graft.core import keras_contract
from tf_graft.core.checks import shown
from tf_graft.core.places.mesh_arguments import as_mesh
from tf_graft.dtensor.layout_map import LayoutMap

DistributionLike: TypeAlias = (
    LayoutMap
    | keras.distribution.LayoutMap
    | keras.distribution.DataParallel
    | keras.distribution.ModelParallel
)
DISTRIBUTIONS = (keras.distribution.DataParallel, keras.distribution.ModelParallel)


class Distribution(NamedTuple):
    """A distribution as arguments of `distribute`."""

    layout_map: LayoutMap
    batch_dim: str | None
    local_batches: bool


def in_own_words(
    model: keras.Model, given: DistributionLike, batch_dim: str | None, local_batches: bool
) -> Distribution:
    """Returns a model's distribution; Keras finds each variable's layout by its own rules.

    Args:
        model: the model.
        given: a layout map, or a distribution of Keras, which also says how batches are divided.
        batch_dim: as given to `distribute`.
        local_batches: as given to `distribute`.

    Raises:
        TypeError: `given` is of another type.
        ValueError: `given` has no mesh, shards nothing, or contradicts `batch_dim`; the
            distribution that is set has layouts for what layers return.
    """
    _refuse_output_layouts(model)
    if isinstance(given, LayoutMap):
        return Distribution(given, batch_dim, local_batches)
    if isinstance(given, keras.distribution.LayoutMap):
        if given.device_mesh is None:
            raise ValueError("distribute: the keras.distribution.LayoutMap has no device_mesh.")
        found = _found(model, keras.distribution.ModelParallel(layout_map=given))
        return Distribution(found, batch_dim, local_batches)
    if not isinstance(given, DISTRIBUTIONS):
        raise TypeError(
            f"distribute(layout_map={shown(given)}): layout_map must be a LayoutMap, tf_graft's or "
            "Keras', or a keras.distribution.DataParallel or ModelParallel."
        )
    if batch_dim not in ("batch", given.batch_dim_name):
        raise ValueError(
            f"distribute(batch_dim={shown(batch_dim)}): the {type(given).__name__} divides batches "
            f"over {shown(given.batch_dim_name)}; leave out batch_dim."
        )
    local_batches = local_batches or not given.auto_shard_dataset
    return Distribution(_found(model, given), given.batch_dim_name, local_batches)


def _found(model: keras.Model, distribution: keras.distribution.ModelParallel) -> LayoutMap:
    """Returns the layout of each weight, by its path."""
    mesh = as_mesh("distribute", distribution.device_mesh)
    layouts = {v.path: distribution.get_variable_layout(v) for v in model.weights}
    whole = all(name is None for layout in layouts.values() for name in layout.axes)
    if layouts and whole and isinstance(distribution, keras.distribution.ModelParallel):
        raise ValueError(
            f"distribute: the layouts of Keras shard no weight of '{model.name}', which has "
            f"{', '.join(list(layouts)[:20])}{' ...' if len(layouts) > 20 else ''}; in Keras "
            "3.15 an expression must match the whole path ('.*dense/kernel'). To shard none, give "
            "a tg.dtensor.LayoutMap(mesh) without layouts."
        )
    return LayoutMap(mesh, layouts)


def _refuse_output_layouts(model: keras.Model) -> None:
    """Refuses layouts of what layers return, which Keras looks up at each call of a layer."""
    current = keras.distribution.distribution()
    for layer in keras_contract.layers_of(model) if current is not None else ():
        if current.get_tensor_layout(f"{layer.path}/output") is not None:
            raise ValueError(
                f"distribute: keras.distribution.set_distribution was given a layout of "
                f"'{layer.path}/output', and Keras cannot lay out what a layer returns on "
                "TensorFlow; delete it from its LayoutMap, DTensor finds one itself."
            )
