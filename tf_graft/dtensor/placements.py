"""Remembers which models are on a mesh, and how they were distributed."""

import weakref
from typing import NamedTuple

import keras

from tf_graft.dtensor.layout_map import LayoutMap


class Placement(NamedTuple):
    """How a model was distributed."""

    layout_map: LayoutMap
    batch_dim: str | None
    local_batches: bool


PLACEMENTS: weakref.WeakKeyDictionary[keras.Model, Placement] = weakref.WeakKeyDictionary()


def placement_of(owner: str, model: keras.Model) -> Placement:
    """Returns how a model was distributed.

    Raises:
        ValueError: the model is not on a mesh.
    """
    if model not in PLACEMENTS:
        raise ValueError(f"{owner}: the model '{model.name}' is not on a mesh.")
    return PLACEMENTS[model]


def layout_map_of(model: keras.Model) -> LayoutMap | None:
    """Returns the layout map of a distributed model; None for other models."""
    placement = PLACEMENTS.get(model)
    return None if placement is None else placement.layout_map
