"""Finds the processes that a mesh spans, which DTensor calls clients.

TensorFlow reads the processes from the environment: `DTENSOR_JOBS` lists their addresses, and
`DTENSOR_CLIENT_ID` says which of them this process is.
"""

import json
import os

from tensorflow.experimental import dtensor

JOBS, NUMBER, COUNT = "DTENSOR_JOBS", "DTENSOR_CLIENT_ID", "DTENSOR_NUM_CLIENTS"
JOB = "worker"


def find() -> int:
    """Returns the number of processes in `DTENSOR_JOBS`, or else of workers in `TF_CONFIG`.

    Call it before TensorFlow makes its first tensor.

    Raises:
        ValueError: the environment does not say which process this is; `TF_CONFIG` is not JSON of
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
    if kind not in ("chief", JOB) or not 0 <= number < len(addresses):
        raise ValueError(
            f"create_mesh: TF_CONFIG says that this process is {kind} {index}; a mesh is made by "
            f"workers, and there are {len(addresses)}."
        )
    os.environ |= {JOBS: ",".join(addresses), NUMBER: str(number)}
