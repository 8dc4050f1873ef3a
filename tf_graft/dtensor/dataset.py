"""Batches on a mesh: each device holds a share of the examples."""

from collections.abc import Iterable, Iterator, Sized
from typing import cast

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core.mesh_tensors import to_mesh
from tf_graft.core.types import Structure


def pack_batch(batch: Structure, mesh: dtensor.Mesh, batch_dim: str | None = "batch") -> Structure:
    """Puts a batch on a mesh, its first dimension sharded over a dimension of the mesh.

    Args:
        batch: arrays or ordinary tensors in any nesting of tuples, lists and dicts, each with the
            examples in its first dimension. None stays None, a scalar is replicated, and DTensors
            are returned unchanged.
        mesh: the mesh.
        batch_dim: the mesh dimension that shards the examples; None replicates them.

    Returns:
        The same nesting of DTensors, of the whole batch's shapes.

    Raises:
        TypeError: the batch has ragged or sparse tensors.
        ValueError: the batch cannot be divided evenly; the mesh has no such dimension.

    Example:
        On a mesh with `"batch": 2`, a batch of shape (8, 3) puts 4 examples on each half.
    """
    check_batch_dim("pack_batch", mesh, batch_dim)
    return tf.nest.map_structure(lambda value: _packed(value, mesh, batch_dim), batch)


class DTensorDataset:
    """Iterates over the batches of a data set on a mesh, for a custom training loop.

    `fit`, `evaluate` and `predict` of a distributed model take ordinary data. Differs from
    `tf.experimental.dtensor.DTensorDataset`, which takes examples: this takes whole batches, which
    need not come from `tf.data`.

    Args:
        batches: a batched `tf.data.Dataset` or any other iterable of batches; see `pack_batch`. A
            one-off iterator can be iterated once.
        mesh: the mesh.
        batch_dim: the mesh dimension that shards the examples; None replicates them.

    Raises:
        TypeError: a batch has ragged or sparse tensors.
        ValueError: a batch cannot be divided evenly (`drop_remainder=True` drops a short last one);
            the mesh has no such dimension.

    Example:
        ```python
        for x, y in tg.dtensor.DTensorDataset(dataset.batch(32, drop_remainder=True), mesh):
            train_step(x, y)
        ```
    """

    def __init__(
        self, batches: Iterable[Structure], mesh: dtensor.Mesh, batch_dim: str | None = "batch"
    ):
        check_batch_dim("DTensorDataset", mesh, batch_dim)
        self.batches = batches
        self.mesh = mesh
        self.batch_dim = batch_dim

    def __iter__(self) -> Iterator[Structure]:
        for batch in self.batches:
            yield pack_batch(batch, self.mesh, self.batch_dim)

    def __len__(self) -> int:
        return len(cast(Sized, self.batches))


def check_batch_dim(owner: str, mesh: dtensor.Mesh, batch_dim: str | None) -> None:
    """Refuses the name of a dimension that the mesh does not have."""
    if batch_dim is not None and batch_dim not in mesh.dim_names:
        raise ValueError(
            f"{owner}(batch_dim={batch_dim!r}): the mesh has no such dimension, only "
            f"{', '.join(map(repr, mesh.dim_names))}; None gives every device the whole batch."
        )


def examples(batch: Structure) -> int | None:
    """Returns the number of examples in a batch; None if it has only scalars."""
    for value in tf.nest.flatten(batch):
        if value is not None and np.ndim(value) > 0:
            return int(value.shape[0])
    return None


def _packed(value: Structure, mesh: dtensor.Mesh, batch_dim: str | None) -> tf.Tensor | None:
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
