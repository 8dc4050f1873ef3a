"""Finds the processes that a mesh spans, which DTensor calls clients.

TensorFlow reads the processes from the environment: `DTENSOR_JOBS` lists their addresses, and
`DTENSOR_CLIENT_ID` says which of them this process is.
"""

import os

from tensorflow.experimental import dtensor

from tf_graft.core.places.tf_config import VARIABLE, parsed

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
    if not os.environ.get(JOBS) and VARIABLE in os.environ:
        _take_workers(os.environ[VARIABLE])
    if os.environ.get(JOBS):
        os.environ[COUNT] = str(len(dtensor.jobs()))  # TensorFlow reads it, too
    return dtensor.num_clients()


def _take_workers(config: str) -> None:
    """Describes the workers of a `TF_CONFIG`, if there are several, as DTensor's clients."""
    try:
        tasks = parsed(config)
    except ValueError as error:
        raise ValueError(f"create_mesh: {error}.") from None
    cluster, kind, index = tasks.cluster, tasks.kind or JOB, tasks.number or 0
    addresses = [*cluster.get("chief", ()), *cluster.get("worker", ())]
    if len(addresses) < 2:
        return
    number = index + (len(cluster.get("chief", ())) if kind == JOB else 0)
    if kind not in ("chief", JOB) or not 0 <= number < len(addresses):
        raise ValueError(
            f"create_mesh: TF_CONFIG says that this process is {kind} {index}; a mesh is made by "
            f"workers, and there are {len(addresses)}."
        )
    os.environ |= {JOBS: ",".join(addresses), NUMBER: str(number)}
