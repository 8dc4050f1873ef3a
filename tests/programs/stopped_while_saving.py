"""`tf-graft` on a mesh of processes; the first one stops itself while a state is saved.

    python -m programs.stopped_while_saving train CONFIG [KEY=VALUE ...]

No process may wait at a barrier of TensorFlow's coordination service: nothing ends such a wait if
the first process is stopped.
"""

import os
import signal

from tensorflow.python.eager import context

from tf_graft import cli
from tf_graft.dtensor import clients


def refuse(self, name, timeout):
    raise AssertionError(f"waits at the barrier {name}")


def stop(mesh):
    os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    context.Context.wait_at_barrier = refuse
    if '"index": 0' in os.environ["TF_CONFIG"]:
        clients.meet = stop
    cli.main()
