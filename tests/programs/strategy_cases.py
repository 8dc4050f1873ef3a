"""Fills columns of the matrix: every optimizer and option asked for, in one execution each.

A program:
`python -m programs.strategy_cases '["4_replicas", ["adam"], ["plain"], 1, "model"]' --out .`, with
a JSON list for each part (see `column_runs.Part`). It writes a JSON line a cell to the folder, in a
file named after its task, with the digest of all that was computed, so that workers can be
compared. Columns of several processes take their task from `TF_CONFIG`. `test_strategies.py` and
`matrix.py` run it in processes of its own, as an aborted collective poisons those that come later.
Parts share processes where they can, as each start of TensorFlow takes seconds.
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

from support import clients
from support.column_runs import TASKS, Part
from tf_graft import dtensor as meshes
from tf_graft.processes.cluster import end_with_launcher

DEVICES = 4


def strategy_of(column):
    """The strategy of a column, before anything else; a server's task does not come back."""
    return strategy_named(column.removesuffix("_function"))


@functools.cache
def strategy_named(kind):
    """One for all the columns of a process."""
    if kind == "one_device":
        return tf.distribute.OneDeviceStrategy("CPU:1")
    if kind.endswith("replicas"):
        return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(int(kind[0]))])
    if kind == "2_workers":
        return workers()
    if kind == "2_clients":
        return clients.join()
    if kind in TASKS:
        return parameter_servers(2 if kind == "shards" else 1)
    return None


def workers():
    """That of workers."""
    with clients.patient():
        return tf.distribute.MultiWorkerMirroredStrategy()


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
    from support import columns  # makes tensors

    if column in ("parameter_server", "shards"):
        return columns.Servers(strategy, 2 if column == "shards" else 1)
    if strategy is not None:
        graph = column == "one_device" or column.endswith("function")
        return columns.Replicas(strategy, *([tf.function] if graph else []))
    if column in ("mesh", "2_clients"):
        return columns.Mesh() if column == "mesh" else columns.Clients()
    wraps = {"function": tf.function, "xla": functools.partial(tf.function, jit_compile=True)}
    return columns.OneDevice(*([wraps[column]] if column in wraps else []))


def model_place_of(column, strategy):
    """Where the cells through a compiled model are computed."""
    from support import model_columns

    if column in ("parameter_server", "shards"):
        return model_columns.Servers(strategy, 2 if column == "shards" else 1)
    if column.endswith("workers"):
        return model_columns.Workers(strategy, jit_compile=False)
    if strategy is not None:
        return model_columns.Replicas(strategy, jit_compile=False)
    compiled_not = {
        "mesh": model_columns.Mesh,
        "2_clients": model_columns.Clients,
        "tpu": model_columns.Traced,
    }
    if column in compiled_not:
        return compiled_not[column](jit_compile=False)
    eager = column == "eager"
    return model_columns.OneDevice(run_eagerly=eager, jit_compile=column == "xla")


def cells_of(part):
    """The cells of a part, by the name of their column; and their digest."""
    strategy = strategy_of(part.column)
    from support import cells, columns, model_columns, samples

    place = (model_place_of if part.through == "model" else place_of)(part.column, strategy)
    names, options = part.names or list(samples.BY_NAME), part.options or list(cells.OPTIONS)
    for name, chosen in samples.spread(names, options, part.every).items():
        if part.through == "model":
            yield from model_columns.filled(place, name, chosen)
        else:
            yield from columns.filled(place, samples.BY_NAME[name], chosen)


def main():
    end_with_launcher()
    arguments = argparse.ArgumentParser()
    arguments.add_argument("parts", nargs="+", type=lambda text: Part(*json.loads(text)))
    arguments.add_argument("--out", type=pathlib.Path, required=True)
    given = arguments.parse_args()
    tf.get_logger().setLevel("ERROR")
    first = given.parts[0].column
    if first != "2_clients":  # which divides its own
        meshes.logical_cpus(1 if first in TASKS else DEVICES)
    strategy_of(first)
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
    file = f"{task.get('type', 'chief')}_{task.get('index', 0)}.jsonl"
    with open(given.out / file, "w", buffering=1) as out:
        for number, part in enumerate(given.parts):
            for found, digest in cells_of(part):
                for column, cell in found.items():
                    more = {"part": number, "column": column or part.column, "digest": digest}
                    out.write(json.dumps(cell._asdict() | more) + "\n")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of a cluster would wait for one another
