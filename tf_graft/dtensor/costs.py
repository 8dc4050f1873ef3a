"""Counts the bytes that a step sends between a mesh's devices, and that each device holds."""

import collections
import math
from collections.abc import Iterator
from typing import NamedTuple

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import keras_contract
from tf_graft.core.state import write
from tf_graft.core.types import Structure
from tf_graft.dtensor.feed import Feed
from tf_graft.dtensor.model import follow
from tf_graft.dtensor.placements import placement_of
from tf_graft.dtensor.training import Step

# The kind of each collective, and how often a ring of n devices sends (n - 1) / n of its tensor.
KINDS = {
    "CollectiveReduceV2": ("all-reduce", 2),
    "CollectiveGatherV2": ("all-gather", 1),
    "CollectiveReduceScatterV2": ("reduce-scatter", 1),
    "CollectiveAllToAllV2": ("all-to-all", 1),
}
BRANCHING = ("If", "StatelessIf", "Case", "StatelessCase")


class Collective(NamedTuple):
    """One collective operation of a step.

    Attributes:
        name: the operation's name; it begins with that of the layer or of the optimizer.
        kind: `"all-reduce"`, `"all-gather"`, `"reduce-scatter"` or `"all-to-all"`.
        devices: the number of devices that take part in it together.
        size: the bytes of the whole tensor, before a scatter or after a gather.
        sent: the bytes that each device sends, and receives, around a ring.
    """

    name: str
    kind: str
    devices: int
    size: int
    sent: float


class Traffic(tuple[Collective, ...]):
    """The collective operations of one training step, on each device."""

    @property
    def sent(self) -> float:
        """The bytes that each device sends, and receives."""
        return sum(each.sent for each in self)

    def by_kind(self) -> dict[str, float]:
        """The bytes that each device sends, by kind of operation."""
        sums: dict[str, float] = collections.defaultdict(float)
        for each in self:
            sums[each.kind] += each.sent
        return dict(sums)


def traffic(model: keras.Model, batch: Structure) -> Traffic:
    """Counts the bytes that a training step of a distributed model sends between devices.

    `traffic` reads the program that TensorFlow made of the step for each device, including the
    layouts that TensorFlow chose for intermediate tensors. It assumes a ring: with n devices, an
    all-reduce sends 2 (n - 1) / n of its tensor, any other operation (n - 1) / n. If a step
    contains a condition (a skipped update, or gradient accumulation), `traffic` counts the branch
    that sends more, the update.

    On CPUs TensorFlow uses an all-reduce for both gathering and scattering, so these operations
    send twice as much as necessary.

    `traffic` runs the step, then restores everything that the step changed. On a mesh of several
    processes, all of them must call it.

    Args:
        model: a compiled model on a mesh of CPUs or GPUs.
        batch: a batch as `fit` passes it to a step: `(x, y)` or `(x, y, sample_weight)`.

    Returns:
        A tuple of the collective operations, with their sums in `sent` and `by_kind()`.

    Raises:
        ValueError: the model is not on a mesh, is on TPUs, whose programs cannot be read, is not
            compiled, or runs eagerly.

    Example:
        `tg.dtensor.traffic(model, (x[:32], y[:32])).by_kind()` is `{"all-reduce": 6144.0}` for a
        model of 1024 float32 weights on 4 devices that divide the batch.
    """
    _check_readable(model)
    layout_map, batch_dim, local = placement_of("traffic", model)
    feed = Feed("traffic", layout_map.mesh, batch_dim, local)
    step = Step(model, model.train_step, feed, lambda: follow(model))
    packed = step.packed(batch)
    optimizer = []
    if model.optimizer is not None:
        model.optimizer.build(model)
        optimizer = model.optimizer.variables
    put_back = write.snapshot([*model.variables, *model.metrics_variables, *optimizer])
    try:
        step(packed)
    finally:
        put_back()
    function = step.run.get_concrete_function(packed)
    return Traffic(_collectives(keras_contract.program_on_mesh(function)))


def memory(model: keras.Model) -> dict[str, int]:
    """Returns the bytes of variables that each device of a distributed model's mesh holds.

    Args:
        model: a model on a mesh.

    Returns:
        `"model"`: its weights, seeds and metrics; `"optimizer"`: all that its optimizer keeps so
        far (see `Optimizer.build`). The numbers are the sizes of the shards on the first device;
        all devices hold the same amount.

    Raises:
        ValueError: the model is not on a mesh.
    """
    placement_of("memory", model)
    optimizer = model.optimizer if model.compiled else None
    groups = {
        "model": [*model.variables, *(model.metrics_variables if model.compiled else [])],
        "optimizer": [] if optimizer is None else optimizer.variables,
    }
    return {
        group: sum({id(v): _held(v) for v in variables}.values())
        for group, variables in groups.items()
    }


def _check_readable(model: keras.Model) -> None:
    owner, mesh = f"traffic: the model '{model.name}'", placement_of("traffic", model)[0].mesh
    if mesh.device_type() == "TPU":
        raise ValueError(f"{owner} is on TPUs, whose programs cannot be read.")
    if not model.compiled or model.run_eagerly:
        raise ValueError(f"{owner} must be compiled, with run_eagerly=False.")


def _held(variable: keras.Variable) -> int:
    shard = dtensor.unpack(tf.convert_to_tensor(variable))[0]
    return math.prod(shard.shape) * shard.dtype.size


def _collectives(program: keras_contract.FunctionDef) -> Iterator[Collective]:
    nodes = {node.name: node for node in program.node_def}
    for node in nodes.values():
        if node.op in KINDS:
            yield _collective(node, nodes)
        called = [
            list(_collectives(keras_contract.function_named(function.name)))
            for value in node.attr.values()
            for function in (value.func, *value.list.func)
            if function.name
        ]
        if called and node.op in BRANCHING:
            called = [max(called, key=lambda found: Traffic(found).sent)]
        for found in called:
            yield from found


def _collective(
    node: keras_contract.NodeDef, nodes: dict[str, keras_contract.NodeDef]
) -> Collective:
    kind, rounds = KINDS[node.op]
    group_size = nodes[node.input[1].partition(":")[0]].attr["value"].tensor
    devices = int(tf.make_ndarray(group_size))
    (shape,) = node.attr["_output_shapes"].list.shape
    size = math.prod(d.size for d in shape.dim) * tf.as_dtype(node.attr["T"].type).size
    if kind == "reduce-scatter":
        size *= devices
    return Collective(node.name, kind, devices, size, rounds * size * (devices - 1) / devices)
