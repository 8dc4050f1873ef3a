"""Puts each client's batches on a mesh: whole batches, or the client's own share of them."""

import weakref
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core.places.mesh_tensors import from_mesh, packed, to_mesh
from tf_graft.core.types import Structure
from tf_graft.dtensor import clients


class Feed:
    """Puts a client's batches on a mesh, one after the other.

    Args:
        owner: the caller's name for error messages.
        mesh: the mesh.
        batch_dim: the mesh dimension that shards the examples; None replicates them.
        local: whether a batch holds the examples of this client's devices only.
        shortens: whether a shorter last batch that cannot be divided is replicated; otherwise it is
            refused.
    """

    def __init__(
        self,
        owner: str,
        mesh: dtensor.Mesh,
        batch_dim: str | None,
        local: bool,
        shortens: bool = False,
    ):
        self.owner, self.mesh, self.batch_dim, self.shortens = owner, mesh, batch_dim, shortens
        self.shares, self.share = clients.client_share(mesh, batch_dim) if local else (1, 0)
        parts = 1 if batch_dim is None else mesh.dim_size(batch_dim)
        self.parts = parts // self.shares  # of a client's share
        self.counts: list[int] = []  # examples of each share of the last batch
        self.largest = 0
        self.number = 0
        self._source: Callable[[], object] = lambda: None

    def begin(self, source: object) -> None:
        """Numbers the batches from 0, unless they come from the same source as those before."""
        if source is None or self._source() is not source:
            self.number = 0
            self._source = (lambda: None) if source is None else weakref.ref(source)

    def next(self, batch: Structure) -> Structure:
        """Returns the next batch on the mesh."""
        self.number += 1
        return self(batch, self.number - 1)

    def __call__(self, batch: Structure, number: int | None = None) -> Structure:
        """Returns a batch on the mesh.

        Args:
            batch: see `pack_batch`.
            number: its number; the clients compare batch 0, and always compare shares.
        """
        batch = tf.nest.map_structure(self._on_host, batch)
        self.counts = self._compared(batch, number)
        short = self.shortens and sum(self.counts) < self.largest
        self.largest = max(self.largest, sum(self.counts))
        alike = len(set(self.counts)) == 1
        if short and not (alike and self.counts[0] % self.parts == 0):
            return tf.nest.map_structure(self._replicated, batch)
        if not alike:
            raise ValueError(
                f"{self.owner}: the clients' shares of a batch have "
                f"{', '.join(map(str, self.counts))} examples; all must have the same number."
            )
        return tf.nest.map_structure(self._divided, batch)

    @property
    def mine(self) -> slice:
        """Returns where the examples of this client's share are in the last batch."""
        first = sum(self.counts[: self.share])
        return slice(first, first + self.counts[self.share])

    def _on_host(self, value: Structure) -> np.ndarray | tf.Tensor | None:
        if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
            raise TypeError(
                f"{self.owner}: a {type(value).__name__} cannot lie on a mesh; make it dense first."
            )
        return value if value is None or dtensor.is_dtensor(value) else np.asarray(value)

    def _compared(self, batch: Structure, number: int | None) -> list[int]:
        """Returns the number of examples of each share; refuses batches that do not match."""
        given = [value for value in tf.nest.flatten(batch) if isinstance(value, np.ndarray)]
        count = next((len(value) for value in given if value.ndim), 0)
        if not clients.several(self.mesh) or (self.shares == 1 and number != 0):
            return [count]
        first = clients.digest(*(value[:1] if value.ndim else value for value in given))
        rows = clients.gathered(self.mesh, [number or 0, self.share, count, first])
        shares = {row[1]: row for row in reversed(rows)}
        for client, row in enumerate(rows):
            if row[0] != rows[0][0]:
                raise ValueError(
                    f"{self.owner}: client {client} is at batch {row[0]}, client 0 at batch "
                    f"{rows[0][0]}; each client must be given as many batches in an epoch."
                )
            if row != shares[row[1]]:
                raise ValueError(
                    f"{self.owner}: client {client} is given another batch than client "
                    f"{rows.index(shares[row[1]])}, where both must be given the same; call "
                    "keras.utils.set_random_seed with the same number on every client, so that all "
                    "shuffle alike, or pass local_batches=True for clients with examples of their "
                    "own."
                )
        return [shares[share][2] for share in sorted(shares)]

    def _divided(self, value: np.ndarray | tf.Tensor | None) -> tf.Tensor | None:
        """Gives each device its part of the examples."""
        if not isinstance(value, np.ndarray):
            return value
        if self.batch_dim is None or value.ndim == 0:
            return to_mesh(value, dtensor.Layout.replicated(self.mesh, value.ndim))
        each, rest = divmod(len(value), self.parts)
        if rest:
            raise ValueError(
                f"{self.owner}: a batch of {len(value)} examples cannot be divided evenly over the "
                f"{self.parts} devices of '{self.batch_dim}'"
                f"{' on this client' if self.shares > 1 else ''}."
            )
        dim, before = self.batch_dim, self.share * self.parts

        def shard(place: dict[str, int]) -> np.ndarray:
            part = place[dim] - before
            return value[part * each : (part + 1) * each]

        return packed(dtensor.Layout.batch_sharded(self.mesh, dim, value.ndim), shard)

    def _replicated(self, value: np.ndarray | tf.Tensor | None) -> tf.Tensor | None:
        """Gives every device the examples of all clients."""
        if not isinstance(value, np.ndarray):
            return value
        if self.shares > 1 and value.ndim:
            padded = np.zeros([1, max(self.counts), *value.shape[1:]], value.dtype)
            padded[0, : len(value)] = value
            layout = dtensor.Layout.batch_sharded(self.mesh, self.batch_dim, padded.ndim)
            every = from_mesh(packed(layout, lambda _: padded)).numpy()[:: self.parts]
            value = np.concatenate([x[:n] for x, n in zip(every, self.counts, strict=True)])
        return to_mesh(value, dtensor.Layout.replicated(self.mesh, value.ndim))
