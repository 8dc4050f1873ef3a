"""Batches on a mesh, each device its examples."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core.mesh_tensors import to_mesh


def pack_batch(batch: Any, mesh: dtensor.Mesh, batch_dim: str | None = "batch") -> Any:
    """Puts a batch on a mesh, its first dimension divided over a dimension of the mesh.

    Args:
        batch: arrays or ordinary tensors in any nesting of tuples, lists and dicts, each with the
            examples in its first dimension. None stays None, a scalar goes to every device, and
            what is on the mesh already stays as it is.
        mesh: the mesh.
        batch_dim: the mesh dimension the examples are divided over; None to give every device all
            of them.

    Returns:
        The same nesting of DTensors, of the whole batch's shapes.

    Raises:
        TypeError: ragged or sparse tensors.
        ValueError: the batch cannot be divided evenly; no such mesh dimension.

    Example:
        On a mesh with `"batch": 2`, a batch of shape (8, 3) puts 4 examples on each half.
    """
    check_batch_dim("pack_batch", mesh, batch_dim)
    return tf.nest.map_structure(lambda value: _packed(value, mesh, batch_dim), batch)


class DTensorDataset:
    """Batches of a data set on a mesh, one after the other, for a loop of one's own.

    `fit`, `evaluate` and `predict` of a distributed model take ordinary data. In place of
    `tf.experimental.dtensor.DTensorDataset`, which takes examples: this takes whole batches, and
    they need not come from `tf.data`.

    Args:
        batches: a batched `tf.data.Dataset` or any other iterable of batches; see `pack_batch`. A
            one-off iterator can be gone through once.
        mesh: the mesh.
        batch_dim: the mesh dimension that the examples are divided over; None to give every device
            all of them.

    Raises:
        TypeError: ragged or sparse tensors.
        ValueError: a batch that cannot be divided evenly (`drop_remainder=True` leaves out a short
            last one); no such mesh dimension.

    Example:
        ```python
        for x, y in tg.dtensor.DTensorDataset(dataset.batch(32, drop_remainder=True), mesh):
            train_step(x, y)
        ```
    """

    def __init__(self, batches: Iterable[Any], mesh: dtensor.Mesh, batch_dim: str | None = "batch"):
        check_batch_dim("DTensorDataset", mesh, batch_dim)
        self.batches = batches
        self.mesh = mesh
        self.batch_dim = batch_dim

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            yield pack_batch(batch, self.mesh, self.batch_dim)

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]


def check_batch_dim(owner: str, mesh: dtensor.Mesh, batch_dim: str | None) -> None:
    """Refuses a dimension that the mesh does not have."""
    if batch_dim is not None and batch_dim not in mesh.dim_names:
        raise ValueError(
            f"{owner}(batch_dim={batch_dim!r}): the mesh has no such dimension, only "
            f"{', '.join(map(repr, mesh.dim_names))}; None gives every device the whole batch."
        )


def examples(batch: Any) -> int | None:
    """How many examples a batch has; None where it has none to count."""
    for value in tf.nest.flatten(batch):
        if value is not None and np.ndim(value) > 0:
            return int(value.shape[0])
    return None


def _packed(value: Any, mesh: dtensor.Mesh, batch_dim: str | None) -> Any:
    if value is None or dtensor.is_dtensor(value):
        return value
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        raise TypeError(
            f"pack_batch: a {type(value).__name__} cannot lie on a mesh; make it dense first."
        )
    array = np.asarray(value)
    layout = dtensor.Layout.replicated(mesh, array.ndim)
    if array.ndim and batch_dim is not None:
        if len(array) % mesh.dim_size(batch_dim):
            raise ValueError(
                f"pack_batch: a batch of {len(array)} examples cannot be divided evenly over the "
                f"{mesh.dim_size(batch_dim)} devices of '{batch_dim}'."
            )
        layout = dtensor.Layout.batch_sharded(mesh, batch_dim, array.ndim)
    return to_mesh(array, layout)
