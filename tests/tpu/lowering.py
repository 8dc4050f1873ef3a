"""Lowers a step of an optimizer to HLO, as one replica of a `TPUStrategy` would run it.

No TPU is there: the devices are invented (`tpu_traced.py`), and sums over the replicas are XLA's
own operation. TensorFlow lowers with the kernels that it has for XLA on CPUs.
"""

import contextlib
import functools
import unittest.mock

import keras
import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.distribute import tpu_strategy, tpu_util
from tensorflow.python.ops import gen_tpu_ops

from support import cells, samples, tpu_traced
from tpu.programs import SLICES


class FirstCopy:
    """In the place of a TPU's context: each variable is the copy of the first replica."""

    @staticmethod
    def get_replicated_var_handle(name, handle_id, copies, *_):
        return copies[0].handle


class Sums:
    """The sums over the replicas, of which one may be left out.

    Args:
        left_out: whether the first is.
    """

    def __init__(self, left_out=False):
        self.left_out = left_out

    def __call__(self, x, groups, name=None):
        if self.left_out:
            self.left_out = False
            return tf.identity(x)
        return gen_xla_ops.xla_all_reduce(x, groups, "Add", "CrossReplica", name=name)


@contextlib.contextmanager
def on_replica(strategy, sums):
    """Within it, one traces what each replica of a TPU runs."""

    def context():
        return FirstCopy, tf.compat.v1.get_default_graph()

    groups = [list(range(strategy.num_replicas_in_sync))]
    patch = unittest.mock.patch.object
    with (
        patch(tpu_util, "enclosing_tpu_context_and_graph", context),
        patch(gen_tpu_ops, "cross_replica_sum", sums),
        patch(tpu_strategy.tpu_ops, "_create_default_group_assignment", lambda: groups),
        tpu_strategy._TPUReplicaContext(strategy, gen_xla_ops.xla_replica_id()),
    ):
        yield


class Step:
    """An optimizer's step, and the state that it reads and writes.

    Args:
        make: makes the optimizer.
        weights: where the model starts, by path; the table's gradient is row-sparse.
        replicas: how many run it.
        slices: rows of each replica's gradient of the table.
        dense: whether that gradient is dense.
        control: what is broken, of `programs.CONTROLS`; None for nothing.
    """

    def __init__(self, make, weights, replicas=1, slices=2, dense=False, control=None):
        self.replicas, self.dense, self.control = replicas, dense, control
        self.strategy = (
            tpu_traced.strategy(replicas) if replicas > 1 else tf.distribute.get_strategy()
        )
        with self.strategy.scope():
            self.model = samples.variables(weights)
            self.optimizer = make()
            self.optimizer.build(list(self.model.values()))
            copied = control == "a copy put in"
            self.before = tf.Variable(tf.zeros_like(self.model["table"])) if copied else None
        self.specs = [] if dense else [tf.TensorSpec([slices], tf.int64)]
        for path, value in weights.items():
            by_rows = cells.row_sparse(path) and not dense
            shape = [slices, *value.shape[1:]] if by_rows else value.shape
            self.specs.append(tf.TensorSpec(shape, value.dtype))

    def lowered(self, stage="hlo_serialized"):
        """The program: serialized, or with the stage "hlo" as text."""
        return self._function.experimental_get_compiler_ir(*self.specs)(stage, platform_name="CPU")

    @functools.cached_property
    def _function(self):
        return tf.function(self._step, jit_compile=True, autograph=False)

    def _step(self, *values):
        sums = Sums(self.control == "a sum left out")
        with on_replica(self.strategy, sums) if self.replicas > 1 else contextlib.nullcontext():
            if self.before is not None:
                self.before.assign(self.model["table"].value)
            self.optimizer.apply(self._gradients(values), list(self.model.values()))

    def _gradients(self, values):
        if self.dense:
            return list(values)
        ids, *values = values
        table, *others = cells.as_gradients(values, ids, self.model)
        if self.control == "a table made dense":
            shape = tf.shape(self.model["table"], tf.int64)
            table = tf.convert_to_tensor(tf.IndexedSlices(table.values, table.indices, shape))
        return [table, *others]

    def captured(self):
        """By the number of its parameter, each tensor that the program is not given."""
        function = self._function.get_concrete_function(*self.specs)
        return dict(enumerate(function.captured_inputs, len(self.specs)))

    def variables(self):
        """Each variable by its path."""
        every = {variable.path: variable for variable in self.optimizer.variables}
        every |= {f"model/{path}": variable for path, variable in self.model.items()}
        return every if self.before is None else every | {"before": self.before}

    def paths(self):
        """By the number of its parameter, the path of each variable that the step knows."""
        by_handle = {id(copies(v)[0].handle): path for path, v in self.variables().items()}
        return {
            number: by_handle[id(tensor)]
            for number, tensor in self.captured().items()
            if tensor.dtype == tf.resource
        }

    def state(self):
        """By the number of its parameter, what each replica starts with."""
        paths, variables = self.paths(), self.variables()
        return {
            number: np.stack([copy.numpy() for copy in copies(variables[paths[number]])])
            if number in paths
            else np.stack([tensor.numpy()] * self.replicas)
            for number, tensor in self.captured().items()
        }

    def release(self):
        """Frees the memory of the variables.

        TensorFlow keeps the graph of a step that sums over replicas, and what it reads, for ever.
        """
        for variable in self.variables().values():
            for copy in copies(variable):
                nothing = tf.zeros([0], copy.dtype)
                tf.raw_ops.AssignVariableOp(resource=copy.handle, value=nothing)


def copies(variable):
    """The copy of each replica of a variable."""
    raw = variable.value if isinstance(variable, keras.Variable) else variable
    return getattr(raw, "values", [raw])


def lowered(program):
    """One of `programs.py`, serialized; its weights are one."""
    weights = {path: np.ones(shape, "float32") for path, shape in program.shapes.items()}
    step = Step(program.make, weights, program.replicas, SLICES, program.dense, program.control)
    try:
        return step.lowered()
    finally:
        step.release()
