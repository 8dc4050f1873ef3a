"""Clients: processes that hold the devices of one mesh together."""

import functools
import json
import os
from unittest import mock

from tensorflow.experimental import dtensor
from tensorflow.python.eager import context

from tf_graft import dtensor as meshes

DEVICES = 2  # of a client
HEARTBEAT = 120_000  # milliseconds; 10 s are usual


def patient():
    """Within it a cluster is formed whose heartbeats may be late: in tests the machine is busy."""
    made = context.Context.configure_coordination_service
    late = functools.partialmethod(made, heartbeat_timeout_in_ms=HEARTBEAT)
    return mock.patch.object(context.Context, "configure_coordination_service", late)


def join():
    """Makes this process the client that `TF_CONFIG` says; before TensorFlow makes a tensor."""
    config = json.loads(os.environ["TF_CONFIG"])
    jobs = config["cluster"]["worker"]
    os.environ |= {
        "DTENSOR_CLIENT_ID": str(config["task"]["index"]),
        "DTENSOR_NUM_CLIENTS": str(len(jobs)),
        "DTENSOR_JOB_NAME": "worker",
        "DTENSOR_JOBS": ",".join(jobs),
    }
    meshes.logical_cpus(DEVICES)
    with patient():
        dtensor.initialize_accelerator_system("CPU")


def mesh(dims):
    """A mesh of all devices, of one process or of several."""
    if dtensor.num_clients() == 1:
        return meshes.create_mesh(dims)
    return dtensor.create_distributed_mesh(list(dims.items()), device_type="CPU")
