"""`tf-graft` on a mesh of processes; the first one stops itself while a state is saved.

    python -m programs.stopped_while_saving train CONFIG [KEY=VALUE ...]

No process may wait at a barrier of TensorFlow's coordination service: nothing ends such a wait if
the first process is stopped.
"""

import os
import signal

from tensorflow.experimental import dtensor
from tensorflow.python.eager import context

from tf_graft import cli
from tf_graft.dtensor import clients


def refuse(self, name, timeout):
    raise AssertionError(f"waits at the barrier {name}")


def stop_the_first(mesh, meet=clients.meet):
    if dtensor.client_id() == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    meet(mesh)


if __name__ == "__main__":
    context.Context.wait_at_barrier = refuse
    clients.meet = stop_the_first
    cli.main()
