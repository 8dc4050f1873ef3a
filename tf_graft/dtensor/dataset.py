"""Batches on a mesh: each device holds a share of the examples."""

from collections.abc import Iterable, Iterator, Sized
from typing import cast

from tensorflow.experimental import dtensor

from tf_graft.core.checks import shown
from tf_graft.core.places.mesh_arguments import MeshLike, as_mesh
from tf_graft.core.types import Structure
from tf_graft.dtensor.feed import Feed


def pack_batch(
    batch: Structure,
    mesh: MeshLike,
    batch_dim: str | None = "batch",
    local_batches: bool = False,
) -> Structure:
    """Puts a batch on a mesh, and shards its first dimension over a dimension of the mesh.

    Args:
        batch: arrays or ordinary tensors in any nesting of tuples, lists and dicts, each with the
            examples in its first dimension. None stays None, a scalar is replicated, and DTensors
            are returned unchanged.
        mesh: the mesh, a `tf.experimental.dtensor.Mesh` or a `keras.distribution.DeviceMesh`.
        batch_dim: the mesh dimension that shards the examples; None replicates them.
        local_batches: False if every client of the mesh gives the same whole batch; True if each
            client gives only its own part (see `client_share`). With True, all clients must call
            `pack_batch` at the same time.

    Returns:
        The same nesting of DTensors, of the whole batch's shapes.

    Raises:
        TypeError: the batch has ragged or sparse tensors.
        ValueError: the batch cannot be divided evenly; the clients' shares differ in size; the mesh
            has no such dimension.

    Example:
        On a mesh with `"batch": 2`, a batch of shape (8, 3) puts 4 examples on each half.
    """
    mesh = as_mesh("pack_batch", mesh)
    check_batch_dim("pack_batch", mesh, batch_dim)
    return Feed("pack_batch", mesh, batch_dim, local_batches)(batch)


class DTensorDataset:
    """Iterates over the batches of a data set on a mesh, for a custom training loop.

    You do not need it for `fit`, `evaluate` and `predict`: a distributed model's methods take
    ordinary data. Difference from `tf.experimental.dtensor.DTensorDataset`: that class takes
    examples, and this one takes whole batches, which need not come from `tf.data`.

    Args:
        batches: a batched `tf.data.Dataset` or any other iterable of batches; see `pack_batch`. You
            can iterate over a one-off iterator only once.
        mesh: the mesh, a `tf.experimental.dtensor.Mesh` or a `keras.distribution.DeviceMesh`.
        batch_dim: the mesh dimension that shards the examples; None replicates them.
        local_batches: see `pack_batch`. Each client must have the same number of batches.

    Raises:
        TypeError: a batch has ragged or sparse tensors.
        ValueError: a batch cannot be divided evenly (`drop_remainder=True` drops a short last one);
            the clients' batches do not match; the mesh has no such dimension.

    Example:
        ```python
        for x, y in tg.dtensor.DTensorDataset(dataset.batch(32, drop_remainder=True), mesh):
            train_step(x, y)
        ```
    """

    def __init__(
        self,
        batches: Iterable[Structure],
        mesh: MeshLike,
        batch_dim: str | None = "batch",
        local_batches: bool = False,
    ):
        self.mesh = as_mesh("DTensorDataset", mesh)
        check_batch_dim("DTensorDataset", self.mesh, batch_dim)
        self.batches = batches
        self.batch_dim = batch_dim
        self.local_batches = local_batches

    def __iter__(self) -> Iterator[Structure]:
        feed = Feed("DTensorDataset", self.mesh, self.batch_dim, self.local_batches)
        for batch in self.batches:
            yield feed.next(batch)

    def __len__(self) -> int:
        return len(cast(Sized, self.batches))


def check_batch_dim(owner: str, mesh: dtensor.Mesh, batch_dim: str | None) -> None:
    """Refuses the name of a dimension that the mesh does not have."""
    if batch_dim is not None and batch_dim not in mesh.dim_names:
        raise ValueError(
            f"{owner}(batch_dim={shown(batch_dim)}): the mesh has no such dimension, only "
            f"{', '.join(map(repr, mesh.dim_names))}; None gives every device the whole batch."
        )
