"""Functions that all clients of a mesh run together; a client is a process that holds devices.

Every client runs the same program. All clients must call these functions, in the same order; a
client that does not call one leaves the others waiting.
"""

import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
from tensorflow.experimental import dtensor

from tf_graft.core.places.mesh_arguments import MeshLike, as_mesh
from tf_graft.core.places.mesh_tensors import from_mesh, packed


def several(mesh: dtensor.Mesh) -> bool:
    """Tells whether other processes hold devices of the mesh, too."""
    return mesh.num_local_devices() < mesh.size


def client_share(mesh: MeshLike, batch_dim: str | None = "batch") -> tuple[int, int]:
    """Returns how many shares the clients divide each batch into, and which is this client's.

    A client is a process that holds devices of the mesh. Clients whose devices are in the same part
    of `batch_dim` have the same share. Call `client_share` in every process, like `create_mesh`; it
    does not wait for other clients.

    Args:
        mesh: the mesh.
        batch_dim: the mesh dimension that shards the examples; None for one share.

    Returns:
        The number of shares, and the number of this client's share, from 0.

    Raises:
        ValueError: the clients' devices do not divide the dimension into equal parts.

    Example:
        On a mesh with `"batch": 4` over 2 processes of 2 devices the second client gets `(2, 1)`,
        and `dataset.shard(*tg.dtensor.client_share(mesh)).batch(16)` gives it every second example,
        16 of each 32.
    """
    mesh = as_mesh("client_share", mesh)
    if batch_dim is None:
        return 1, 0
    axis, devices = mesh.dim_names.index(batch_dim), mesh.num_local_devices()
    places = np.indices(mesh.shape())[axis].reshape(-1, devices)  # of each client's devices
    shares = sorted({tuple(sorted(set(row))) for row in places.tolist()})
    if sum(map(len, shares)) != mesh.dim_size(batch_dim) or len(set(map(len, shares))) > 1:
        raise ValueError(
            f"client_share(batch_dim='{batch_dim}'): {len(places)} clients of {devices} devices do "
            f"not divide its {mesh.dim_size(batch_dim)} places into equal parts; give every client "
            "the whole batches."
        )
    mine = {place[batch_dim] for place in mesh.local_device_locations()}
    return len(shares), shares.index(tuple(sorted(mine)))


def gathered(mesh: dtensor.Mesh, numbers: Sequence[int]) -> list[list[int]]:
    """Returns the numbers of every client; each gives equally many."""
    layout = dtensor.Layout([*mesh.dim_names, dtensor.UNSHARDED], mesh)
    mine = np.reshape(np.array(numbers, "int64"), [1] * len(mesh.dim_names) + [-1])
    every = from_mesh(packed(layout, lambda _: mine)).numpy().reshape(mesh.size, -1)
    return every[:: mesh.num_local_devices()].tolist()


def meet(mesh: dtensor.Mesh) -> None:
    """Waits until every client has called this function.

    TensorFlow ends this wait with an error if a client is lost. It does not end `dtensor.barrier`,
    which also keeps Python's other threads and its signal handlers from running.
    """
    gathered(mesh, [0])


def digest(*values: np.ndarray) -> int:
    """Returns a number that differs if the values differ."""
    found = 0
    for value in values:
        text = value.dtype == object  # the bytes of objects are addresses
        found = zlib.crc32(repr(value.tolist()).encode() if text else value.tobytes(), found)
    return found


def odd_one(rows: Sequence[Sequence[int]]) -> int | None:
    """Returns the first client whose numbers are not those of client 0; None if all are alike."""
    return next((client for client, row in enumerate(rows) if row != rows[0]), None)


def check_same_start(owner: str, mesh: dtensor.Mesh, variables: Sequence[keras.Variable]) -> None:
    """Refuses variables that do not begin with the same values on every client."""
    if not several(mesh):
        return
    values = [digest(variable.numpy()) for variable in variables]
    names = digest(np.array([f"{v.path} {tuple(v.shape)}" for v in variables]))
    client = odd_one(gathered(mesh, [names]))
    if client is not None:
        raise ValueError(
            f"{owner} has other variables on client {client} than on client 0; every client must "
            "make the same model."
        )
    rows = gathered(mesh, values)
    client = odd_one(rows)
    if client is not None:
        pairs = zip(variables, rows[0], rows[client], strict=True)
        path = next(variable.path for variable, first, its in pairs if first != its)
        raise ValueError(
            f"{owner}: '{path}' begins with other values on client {client} than on client 0; call "
            "keras.utils.set_random_seed with the same number on every client before you make the "
            "model."
        )


def written_by_one(mesh: dtensor.Mesh, save: Callable[..., None]) -> Callable[..., None]:
    """Makes a method that saves a model write the file of client 0 alone.

    All clients gather the values to save. They continue once the file is there.
    """

    def saved(filepath: str | Path, *args: object, **kwargs: object) -> None:
        if not several(mesh) or dtensor.client_id() == 0:
            save(filepath, *args, **kwargs)
        else:
            with tempfile.TemporaryDirectory() as folder:
                save(Path(folder) / Path(filepath).name, *args, **kwargs)
        if several(mesh):
            meet(mesh)

    return saved
