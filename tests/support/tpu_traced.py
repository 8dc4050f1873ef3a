"""A TPU by trace: functions are traced under a `TPUStrategy` of devices that do not exist.

They are never run. What a TPU would refuse while tracing is found (merge calls in control flow, an
eager `strategy.run`, slices without a dense shape), and what a trace shows: operations that XLA
cannot compile, and float64, which a TPU emulates.

    python -m support.tpu_traced [--samples adam,lars] [--options plain,ema]

traces every optimizer with every option, and prints what was not traced.
"""

import argparse
import contextlib
import functools
import sys

import tensorflow as tf
from tensorflow.python.client import session
from tensorflow.python.distribute import distribute_lib, tpu_strategy
from tensorflow.python.eager import def_function
from tensorflow.python.framework import kernels
from tensorflow.python.tpu import tpu_system_metadata

import tf_graft
from support import cells, samples
from support.cells import known_refusal

REPLICAS = 2
ROWS = 3  # of each replica's slices


# What wraps others; on rows and dense like every optimizer.
def agn(sample, mixed=False, mode="gradients", **options):
    """AGN around an optimizer, which averages at the center where it is to average."""
    averages = {name: options.pop(name) for name in list(options) if "ema" in name}
    center = tf_graft.SGD(0.5, **averages)
    local = mixed_precision(sample, **options) if mixed else sample.make(**options)
    return tf_graft.AGN(
        local,
        communication_period=2,
        center_optimizer=center,
        mode=mode,
        reset_local_state=mode == "gradients",
    )


def mixed_precision(sample, loss_scale_factor="logmax", **options):
    return tf_graft.MixedPrecision(sample.make(**options), loss_scale_factor)


MORE = {
    "agn": agn,
    "agn_updates": functools.partial(agn, mode="updates"),
    "mixed_precision": mixed_precision,
    "agn_mixed_precision": functools.partial(agn, mixed=True),
}
WRAPPED = ("adam", "lars", "graft_schedules_global", "wrapped_nadam")
OPTIONS = cells.OPTIONS
# The operations of a step that are a TPU's own, and have no kernel elsewhere.
OF_TPUS = {"CrossReplicaSum", "TPUReplicateMetadata", "TPUReplicatedInput", "TPUReplicatedOutput"}


class Invented:
    """A cluster resolver for devices that do not exist."""

    task_type = task_id = None

    def __init__(self, replicas):
        self.replicas = replicas

    def get_tpu_system_metadata(self):
        prefix = "/job:localhost/replica:0/task:0/device:"
        kinds = [("CPU:0", "CPU")] + [(f"TPU:{i}", "TPU") for i in range(self.replicas)]
        return tpu_system_metadata.TPUSystemMetadata(
            num_cores=self.replicas,
            num_hosts=1,
            num_of_cores_per_host=self.replicas,
            topology=None,
            devices=[session._DeviceAttributes(prefix + name, kind, 1, 0) for name, kind in kinds],
        )

    def master(self):
        return ""

    def cluster_spec(self):
        return tf.train.ClusterSpec({})


def strategy(replicas=REPLICAS) -> tf.distribute.TPUStrategy:
    """Its variables lie on the CPU, as nothing else is there: they can be read."""
    made = tpu_strategy.TPUStrategyV2.__new__(tpu_strategy.TPUStrategyV2)
    extended = tpu_strategy.TPUExtended(made, Invented(replicas), device_assignment=None)
    distribute_lib.Strategy.__init__(made, extended)
    made._enable_packed_variable_in_eager_mode = False
    return made


def step_of(makes, under, rows=ROWS):
    """The graph of one step of several optimizers: row-sparse for the table, dense for the others.

    Args:
        makes: functions that make an optimizer.
        under: a strategy.
        rows: of each replica's slices; None where they are to be known at run time only.
    """
    built = []
    with under.scope():
        for make in makes:
            model = list(samples.variables(cells.weights()).values())
            built.append((make(), model))
            built[-1][0].build(model)

    def on_replica(ids, *values):
        for optimizer, model in built:
            optimizer.apply(cells.as_gradients(values, ids), model)

    def step(*args):  # a name that is a scope's name: a lambda has none
        under.run(on_replica, args=args)

    ids, values = tf.TensorSpec([rows], tf.int64), []
    for path, shape in cells.SHAPES.items():
        values.append(tf.TensorSpec([rows, *shape[1:]] if cells.row_sparse(path) else shape))
    return graph_of(tf.function(step, autograph=False).get_concrete_function(ids, *values))


def graph_of(concrete):
    return concrete.graph.as_graph_def()


@contextlib.contextmanager
def never_run():
    """Within it, a `tf.function` that is called eagerly is only traced; gives the traces."""
    traces, call = [], def_function.Function.__call__

    def trace_alone(function, *args, **kwargs):
        if not tf.executing_eagerly():  # within another one, which is traced
            return call(function, *args, **kwargs)
        traces.append(function.get_concrete_function(*args, **kwargs))
        return tf.experimental.Optional.empty(tf.TensorSpec([]))  # Keras: no more data

    def_function.Function.__call__ = trace_alone
    try:
        yield traces
    finally:
        def_function.Function.__call__ = call


@functools.cache
def compiled_operations():
    """By operation what XLA has kernels for: a list of allowed types by attribute."""
    tf.function(lambda: tf.constant(0) + 1, jit_compile=True)()  # registers them
    found = {}
    for kernel in kernels.get_all_registered_kernels().kernel:
        if kernel.device_type == "XLA_CPU_JIT":
            types = {c.name: set(c.allowed_values.list.type) for c in kernel.constraint}
            found.setdefault(kernel.op, []).append(types)
    return found


def refused_by_xla(node):
    """Whether XLA has no kernel for an operation, or none for its types."""
    known = compiled_operations().get(node.op, [])
    return node.op not in OF_TPUS and not any(
        all(set(types_of_attribute(node.attr[name])) <= types for name, types in kernel.items())
        for kernel in known
    )


def on_tpu(graph):
    """The operations that run on a TPU: those of `strategy.run`, and of the functions it calls."""
    functions = {f.signature.name: f.node_def for f in graph.library.function}
    bodies = (graph.node, *functions.values())
    waiting = [node for body in bodies for node in body if "_tpu_replicate" in node.attr]
    while waiting:
        node = waiting.pop()
        yield node
        for value in node.attr.values():
            for called in (value.func, *value.list.func):
                waiting.extend(functions.pop(called.name, ()))


def types_of_attribute(value):
    return [value.type] if value.type else list(value.list.type)


def types_of(node):
    return {t for value in node.attr.values() for t in types_of_attribute(value)}


def found_wrong(graph):
    """What a TPU could not compile, or would emulate; None for nothing."""
    nodes = list(on_tpu(graph))
    if not nodes:
        return "nothing of it runs on a TPU"
    unknown = sorted({node.op for node in nodes if refused_by_xla(node)})
    if unknown:
        return f"XLA has no kernel for {', '.join(unknown)}"
    double = sorted({node.op for node in nodes if tf.float64.as_datatype_enum in types_of(node)})
    if double:
        return f"float64 in {', '.join(double)}"
    return None


def traced(*makes, under=None, rows=ROWS):
    """Traces a step of optimizers; None, or the reason why a TPU would not run it."""
    try:
        graph = step_of(makes, under or strategy(), rows)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return found_wrong(graph)


def trace(sample, option, how=None):
    """One cell of the matrix: None where a step is traced, or the reason.

    Args:
        sample: a row of `samples.py`.
        option: the name of an option there.
        how: the name of what wraps it, of `MORE`; None for nothing.
    """
    options = OPTIONS[option]
    make = functools.partial(MORE[how], sample) if how else sample.make
    return traced(lambda: make(**options))


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--samples")
    arguments.add_argument("--options")
    given = arguments.parse_args()
    names = given.samples.split(",") if given.samples else list(samples.BY_NAME)
    options = given.options.split(",") if given.options else list(OPTIONS)
    wrong = count = 0
    for name in names:
        for how in (None, *(MORE if name in WRAPPED else ())):
            for option in options:
                reason = trace(samples.BY_NAME[name], option, how)
                count += 1
                if reason and not known_refusal(reason):
                    wrong += 1
                    print(f"{name}, {option}{f', {how}' if how else ''}: {reason}", flush=True)
    print(f"{count} cells, {wrong} not traced.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
