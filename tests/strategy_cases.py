"""Fills one column of the matrix: every optimizer and option asked for, in one execution.

A program: `python strategy_cases.py COLUMN --samples adam,sgd --options plain,ema --out FOLDER`,
with `--through model` for `fit` of a compiled model in place of the optimizer's `apply` alone. It
writes a JSON line a cell to the folder, in a file named after its task, with the digest of all that
was computed, so that workers can be compared; with `--every 4` it takes one cell in four. Columns
of several processes take their task from `TF_CONFIG`. Run by `test_strategies.py` and `matrix.py`,
each column in processes of its own, as an aborted collective poisons those that come later.
"""

import argparse
import functools
import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import tensorflow as tf
from column_runs import TASKS

from tf_graft import dtensor as meshes
from tf_graft.training.processes import end_with_launcher

DEVICES = 4
COLUMNS = (
    *("eager", "function", "xla", "one_device"),
    *("2_replicas", "2_replicas_function", "4_replicas", "4_replicas_function"),
    *("mesh", "tpu", *TASKS),
)


def strategy_of(column):
    """The strategy of a column, before anything else; a server's task does not come back."""
    meshes.logical_cpus(1 if column in TASKS else DEVICES)
    if column == "one_device":
        return tf.distribute.OneDeviceStrategy("CPU:1")
    if "replicas" in column:
        return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(int(column[0]))])
    if column.startswith("2_workers"):
        return tf.distribute.MultiWorkerMirroredStrategy()
    if column in TASKS:
        return parameter_servers(2 if column == "shards" else 1)
    return None


def parameter_servers(shards):
    """The coordinator's strategy; the other tasks serve until they are ended."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
        )
        server.join()
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(shards)
    return tf.distribute.ParameterServerStrategy(resolver, partitioner if shards > 1 else None)


def place_of(column, strategy):
    """Where the cells through `apply` are computed."""
    import columns  # makes tensors

    if column in ("parameter_server", "shards"):
        return columns.Servers(strategy, 2 if column == "shards" else 1)
    if strategy is not None:
        graph = column == "one_device" or column.endswith("function")
        return columns.Replicas(strategy, *([tf.function] if graph else []))
    if column == "mesh":
        return columns.Mesh()
    wraps = {"function": tf.function, "xla": functools.partial(tf.function, jit_compile=True)}
    return columns.OneDevice(*([wraps[column]] if column in wraps else []))


def model_place_of(column, strategy):
    """Where the cells through a compiled model are computed."""
    import model_columns

    if column in ("parameter_server", "shards"):
        return model_columns.Servers(strategy, 2 if column == "shards" else 1)
    if column.endswith("workers"):
        return model_columns.Workers(strategy, jit_compile=False)
    if strategy is not None:
        return model_columns.Replicas(strategy, jit_compile=False)
    if column in ("mesh", "tpu"):
        return (model_columns.Mesh if column == "mesh" else model_columns.Traced)(jit_compile=False)
    eager = column == "eager"
    return model_columns.OneDevice(run_eagerly=eager, jit_compile=column == "xla")


def lines_of(given, place):
    """What is written: a cell each."""
    import cells
    import columns
    import model_columns
    import samples

    names = given.samples.split(",") if given.samples else list(samples.BY_NAME)
    options = given.options.split(",") if given.options else list(cells.OPTIONS)
    for name, chosen in samples.spread(names, options, given.every).items():
        if given.through == "model":
            filled = model_columns.filled(place, name, chosen)
        else:
            filled = columns.filled(place, samples.BY_NAME[name], chosen)
        for found, digest in filled:
            for column, cell in found.items():
                yield cell._asdict() | {"column": column or given.column, "digest": digest}


def main():
    end_with_launcher()
    arguments = argparse.ArgumentParser()
    arguments.add_argument("column", choices=COLUMNS)
    arguments.add_argument("--through", choices=["apply", "model"], default="apply")
    arguments.add_argument("--samples")
    arguments.add_argument("--options")
    arguments.add_argument("--every", type=int, default=1)
    arguments.add_argument("--out", type=pathlib.Path, required=True)
    given = arguments.parse_args()
    tf.get_logger().setLevel("ERROR")
    made = model_place_of if given.through == "model" else place_of
    place = made(given.column, strategy_of(given.column))
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
    file = f"{task.get('type', 'chief')}_{task.get('index', 0)}.jsonl"
    with open(given.out / file, "w", buffering=1) as out:
        for line in lines_of(given, place):
            out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of a cluster would wait for one another
