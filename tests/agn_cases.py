"""AGN on four replicas, or in lockstep with another worker where `TF_CONFIG` names one.

A program, run by `test_agn.py` in processes of its own: `python agn_cases.py`.
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import tensorflow as tf

from tf_graft import dtensor as meshes
from tf_graft.training.processes import end_with_launcher

REPLICAS = 4


def main():
    end_with_launcher()
    first = 0
    if "TF_CONFIG" in os.environ:
        first = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        meshes.logical_cpus(REPLICAS)
        strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(REPLICAS)])
    import test_agn

    for graph in (False, True):
        for form in ("dense", "rows"):
            test_agn.assert_replicas_follow(strategy, form, graph, period=3, first=first)
            print(f"{form} {'graph' if graph else 'eager'} right", flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of a cluster would wait for one another
