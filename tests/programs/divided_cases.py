"""Optimizers of matrices on several devices that divide the work; and what each device multiplies.

A program: `python -m programs.divided_cases 2_replicas --out FOLDER` (or `mesh`, or `2_workers` as
one task of a cluster) writes a JSON line for each optimizer. Run by `test_divided.py`, which takes
the same steps on one device.
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

import tf_graft as tg
from programs.strategy_cases import workers
from tf_graft.core import keras_contract
from tf_graft.processes.cluster import end_with_launcher

RANDOM = np.random.default_rng(0)
SIZES = [(6, 6), (6, 6), (6,), (5, 5), (6, 6)]  # three of one size for two devices
WEIGHTS = [RANDOM.normal(size=size) for size in SIZES]
GRADIENTS = [[RANDOM.normal(size=size) for size in SIZES] for _ in range(4)]


def small(optimizer):
    """Has replicas divide the work on matrices that are too small for it by default."""
    optimizer.divided_from = 1
    return optimizer


def optimizers():
    plain = {"others": "sgd", "nonfinite": "apply"}  # then products are in no branch
    roots = {"precondition_frequency": 2, "others": "sgd"}
    return {
        "muon": tg.Muon(0.1, **plain),
        "undivided": tg.Muon(0.1, divide=False, **plain),
        "shampoo": tg.AdaGraft(
            tg.Adam(0.1), small(tg.Shampoo(**roots, epsilon=1e-3, block_size=4))
        ),
        "one_side": small(tg.Shampoo(0.1, sides="smaller", **roots)),
        "soap": small(tg.SOAP(0.1, nonfinite="apply", **roots)),
        "soap_too_small": tg.SOAP(0.1, nonfinite="apply", **roots),
        "kl_shampoo": small(tg.KLShampoo(0.1, **roots)),
        "kl_soap": small(tg.KLSOAP(0.1, **roots)),
        # whose replicas take steps of their own, which they must not divide
        "own_steps": tg.AGN(tg.Muon(0.1, others="sgd"), communication_period=9),
        "own_steps_undivided": tg.AGN(
            tg.Muon(0.1, divide=False, others="sgd"), communication_period=9
        ),
    }


def multiplied(shapes):
    """The multiplications of matrices, from the shapes of the first factors and of the products."""
    return sum(math.prod(product) * first[-1] for first, product in shapes)


def by_name(weights):
    return {f"w{i}": w.numpy().tolist() for i, w in enumerate(weights)}


def stepped(optimizer, strategy):
    """The weights after all steps, and how much the first device multiplies."""
    with strategy.scope():
        variables = [tf.Variable(w, name=f"w{i}") for i, w in enumerate(WEIGHTS)]
        optimizer.build(variables)
    parts = [0.25, 0.75] if strategy.num_replicas_in_sync == 2 else [1.0]

    @tf.function(autograph=False)
    def step(gradients):
        def on_replica(gradients):
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            part = tf.constant(parts, tf.float64)[replica]
            optimizer.apply([g * part for g in gradients], variables)

        strategy.run(on_replica, args=(gradients,))

    for gradients in GRADIENTS:
        step([tf.constant(g) for g in gradients])
    graph = step.get_concrete_function([tf.constant(g) for g in GRADIENTS[0]]).graph
    found = [op for op in graph.get_operations() if op.type == "BatchMatMulV2"]
    device = min((op.device for op in found), default="")
    shapes = [(op.inputs[0].shape, op.outputs[0].shape) for op in found if op.device == device]
    held = [strategy.experimental_local_results(v)[0] for v in variables]
    return {"weights": by_name(held), "multiplied": multiplied(shapes)}


def stepped_on_mesh(optimizer, mesh):
    """The same on a mesh."""

    def everywhere(x):
        return dtensor.copy_to_mesh(tf.constant(x), dtensor.Layout.replicated(mesh, x.ndim))

    variables = [dtensor.DVariable(everywhere(w), name=f"w{i}") for i, w in enumerate(WEIGHTS)]
    optimizer.build(variables)

    @tf.function(autograph=False)
    def step(gradients):
        optimizer.apply(gradients, variables)

    for gradients in GRADIENTS:
        step([everywhere(g) for g in gradients])
    gradients = [everywhere(g) for g in GRADIENTS[0]]
    program = keras_contract.program_on_mesh(step.get_concrete_function(gradients))
    shapes = list(_products(program))
    held = [dtensor.unpack(tf.convert_to_tensor(v))[0] for v in variables]
    return {"weights": by_name(held), "multiplied": multiplied(shapes)}


def _products(program):
    """The shapes of the first factors and of the products, in a program and what it calls."""
    nodes = {node.name: node for node in program.node_def}
    for node in nodes.values():
        if node.op == "BatchMatMulV2":
            yield _shape(nodes[node.input[0].partition(":")[0]]), _shape(node)
        for value in node.attr.values():
            if value.func.name:
                yield from _products(keras_contract.function_named(value.func.name))


def _shape(node):
    return [d.size for d in node.attr["_output_shapes"].list.shape[0].dim]


def main():
    end_with_launcher()
    arguments = argparse.ArgumentParser()
    arguments.add_argument("place")
    arguments.add_argument("--out", type=pathlib.Path)
    given = arguments.parse_args()
    task = "worker_0"
    if given.place == "2_workers":
        place, steps = workers(), stepped
        task = "{type}_{index}".format(**json.loads(os.environ["TF_CONFIG"])["task"])
    elif given.place == "mesh":
        tg.dtensor.logical_cpus(4)
        place, steps = tg.dtensor.create_mesh({"a": 2, "b": 2}), stepped_on_mesh
    else:
        tg.dtensor.logical_cpus(2)
        place, steps = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), stepped
    with contextlib.closing(open(given.out / f"{task}.jsonl", "w")) as out:
        for name, optimizer in optimizers().items():
            if "own_steps" not in name or given.place == "2_replicas":
                out.write(json.dumps({"name": name} | steps(optimizer, place)) + "\n")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of a cluster would wait for one another
