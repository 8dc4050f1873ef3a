"""AGN on four replicas, in a process of its own: `python agn_cases.py`. Run by `test_agn.py`."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import tensorflow as tf

from tf_graft import dtensor as meshes

REPLICAS = 4

if __name__ == "__main__":
    meshes.logical_cpus(REPLICAS)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(REPLICAS)])
    import test_agn

    for graph in (False, True):
        for form in ("dense", "rows"):
            test_agn.assert_replicas_follow(strategy, form, graph, period=3)
            print(f"{form} {'graph' if graph else 'eager'} right")
