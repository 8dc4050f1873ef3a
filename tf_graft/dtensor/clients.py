"""The processes that a mesh spans, which DTensor calls clients: each runs the same program.

TensorFlow reads from the environment which processes there are: `DTENSOR_JOBS` lists their
addresses, `DTENSOR_CLIENT_ID` says which of them this is.
"""

import json
import os

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

JOBS, NUMBER, COUNT = "DTENSOR_JOBS", "DTENSOR_CLIENT_ID", "DTENSOR_NUM_CLIENTS"
JOB = "worker"


def find() -> int:
    """Returns the number of processes, those of `DTENSOR_JOBS` or else the workers of `TF_CONFIG`.

    Call it before TensorFlow makes its first tensor.

    Raises:
        ValueError: the environment does not say which of them this is; `TF_CONFIG` is not JSON of
            'cluster' and 'task', or this process is no worker in it.
    """
    if os.environ.get(JOBS) and NUMBER not in os.environ:
        raise ValueError(
            f"create_mesh: {JOBS} names {dtensor.num_clients()} processes, and {NUMBER} must say "
            "which of them this is, counted from 0."
        )
    if not os.environ.get(JOBS) and "TF_CONFIG" in os.environ:
        _take_workers(os.environ["TF_CONFIG"])
    if os.environ.get(JOBS):
        os.environ[COUNT] = str(len(dtensor.jobs()))  # TensorFlow reads it, too
    return dtensor.num_clients()


def _take_workers(config: str) -> None:
    """Describes the workers of a `TF_CONFIG`, if there are several, as DTensor's clients."""
    try:
        described = json.loads(config)
        cluster = dict(described.get("cluster", {}))
        addresses = [*cluster.get("chief", ()), *cluster.get("worker", ())]
        task = described.get("task", {})
        kind, index = str(task.get("type", JOB)), int(task.get("index", 0))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            "create_mesh: TF_CONFIG in the environment is not JSON of 'cluster' and 'task': "
            f"{error}."
        ) from None
    if len(addresses) < 2:
        return
    number = index + (len(cluster.get("chief", ())) if kind == JOB else 0)
    if kind not in ("chief", JOB) or number >= len(addresses):
        raise ValueError(
            f"create_mesh: TF_CONFIG says that this process is {kind} {index}; a mesh is made by "
            f"workers, and there are {len(addresses)}."
        )
    os.environ |= {JOBS: ",".join(addresses), NUMBER: str(number)}


def told(mesh: dtensor.Mesh, mine: np.ndarray) -> np.ndarray:
    """Tells all clients the numbers of each.

    Every client must call it, at the same place of its program, with an array of the same shape.

    Returns:
        The arrays of the devices of the mesh, stacked: those of one client are equal.
    """
    part = tf.reshape(tf.constant(mine), [1] * len(mesh.dim_names) + list(np.shape(mine)))
    specs = [*mesh.dim_names, *[dtensor.UNSHARDED] * np.ndim(mine)]
    everyone = dtensor.pack([part] * mesh.num_local_devices(), dtensor.Layout(specs, mesh))
    whole = dtensor.relayout(everyone, dtensor.Layout.replicated(mesh, len(specs)))
    return dtensor.unpack(whole)[0].numpy().reshape(-1, *np.shape(mine))
