"""Clients: processes that hold the devices of one mesh together."""

import json
import os

from tensorflow.experimental import dtensor

from tf_graft import dtensor as meshes

DEVICES = 2  # of a client


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
    dtensor.initialize_accelerator_system("CPU")


def mesh(dims):
    return dtensor.create_distributed_mesh(list(dims.items()), device_type="CPU")
