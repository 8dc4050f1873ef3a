"""Clients: processes that hold the devices of one mesh together."""

import functools
from unittest import mock

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
    """Makes this process one of the clients in `TF_CONFIG`; before TensorFlow makes a tensor."""
    meshes.logical_cpus(DEVICES)
    with patient():
        meshes.create_mesh({"any": -1})
