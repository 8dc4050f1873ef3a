"""AGN on four replicas, with another worker where `TF_CONFIG` names one, or on a mesh.

A program, run by `test_agn.py` in processes of its own: `python -m programs.agn_cases [mesh]`.
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

import tf_graft as tg
from programs.strategy_cases import workers
from tf_graft import dtensor as meshes
from tf_graft.processes.cluster import end_with_launcher

REPLICAS = 4


def on_mesh():
    """Dense eagerly and row-sparse traced: bit for bit as on one device."""
    meshes.logical_cpus(REPLICAS)
    mesh = meshes.create_mesh({"x": 2, "y": 2})
    for graph, sparse in ((False, False), (True, True)):
        (w, count), (right, counted) = (moved(m, graph, sparse) for m in (mesh, None))
        np.testing.assert_array_equal(w, right)
        assert count == counted == 2
        print(f"mesh {graph} {sparse} right")


def moved(mesh, graph, sparse):
    """The weights after five steps, and the rounds."""
    start = np.arange(8.0).reshape(4, 2).astype("float32")

    def placed(value, *specs):
        return meshes.to_mesh(value, dtensor.Layout(specs, mesh)) if mesh else tf.constant(value)

    column = (dtensor.UNSHARDED, "y")
    make = dtensor.DVariable if mesh else tf.Variable
    w = make(placed(start, *column), name="w")
    optimizer = tg.AGN(tg.Adam(0.1), communication_period=2)
    optimizer.build([w])

    def step(g, *ids):
        optimizer.apply([tf.IndexedSlices(g, ids[0]) if ids else g], [w])

    step = tf.function(step) if graph else step
    random = np.random.default_rng(0)
    for _ in range(5):
        g = random.normal(size=(4, 2)).astype("float32")
        if sparse:
            step(placed(g, "x", dtensor.UNSHARDED), placed(np.array([0, 1, 1, 3]), "x"))
        else:
            step(placed(g, *column))
    read = meshes.from_mesh if mesh else tf.convert_to_tensor
    return read(w.read_value()).numpy(), int(read(optimizer.rounds.value.read_value()).numpy())


def main():
    end_with_launcher()
    if sys.argv[1:] == ["mesh"]:
        on_mesh()
        return
    first = 0
    if "TF_CONFIG" in os.environ:
        first = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        strategy = workers()
    else:
        meshes.logical_cpus(REPLICAS)
        strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(REPLICAS)])
    from support.agn_replicas import assert_replicas_follow

    together = "TF_CONFIG" in os.environ
    for form, graph in (("dense", together), ("rows", not together)):
        assert_replicas_follow(strategy, form, graph, period=3, first=first)
        print(f"{form} {'graph' if graph else 'eager'} right", flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of a cluster would wait for one another
