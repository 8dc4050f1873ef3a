"""Compiles HLO modules for TPUs that are not there; needs `jax` and `libtpu`."""

import functools
import re

import numpy as np
from jax._src.interpreters import mlir
from jax._src.lib import hlo, xla_client
from jax._src.lib.mlir import ir
from jax.experimental import topologies

from tpu import hlo_text


@functools.cache
def chips(topology):
    """The chips of a slice, as `v5e:2x2`."""
    return topologies.get_topology_desc(platform="tpu", topology_name=topology).devices


def options(replicas):
    """One program, and a replica of it on each chip."""
    made = xla_client.CompileOptions()
    made.num_replicas, made.num_partitions = replicas, 1
    made.device_assignment = xla_client.DeviceAssignment.create(
        np.arange(replicas, dtype=np.int32).reshape(-1, 1)
    )
    return made


def without_copies(module):
    """Takes out TensorFlow's copies of results, an operation that StableHLO does not have."""
    found = []

    def collect(operation):
        if operation.name == "mhlo.copy":
            found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(collect)
    for operation in found:
        operation.result.replace_all_uses_with(operation.operands[0])
        operation.erase()
    return module


def read(file):
    """The serialized module in a file, and its text."""
    with open(file, "rb") as opened:
        serialized = opened.read()
    return serialized, hlo.HloModule.from_serialized_hlo_module_proto(serialized).to_string()


def module_of(serialized):
    """A serialized module in the form in which jax hands programs to XLA."""
    stable = xla_client._xla.mlir.hlo_to_stablehlo(serialized)
    with mlir.make_ir_context():
        return without_copies(ir.Module.parse(stable))


def described(executable, entries):
    """What a compiled program needs, and its text; copies are those of at least so many entries."""
    memory = executable.get_compiled_memory_stats()
    (module,) = executable.hlo_modules()
    text = module.to_string()
    cost = executable.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    figures = {
        "arguments": memory.argument_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "accessed": int(cost["bytes accessed"]),
        "results": len(hlo_text.signature(text)[1]),
        "not_aliased": hlo_text.not_aliased(text),
        "copies": hlo_text.copies(text, entries),
        "all_reduces": hlo_text.all_reduces(text),
        "host": sorted(set(re.findall(r" (send|recv|infeed|outfeed)\(", text))),
    }
    return figures, text


def compiled(file, replicas, entries, topology, show=None):
    """The figures of the program in a file; or the compiler's error.

    Args:
        file: a serialized module.
        replicas: how many run it.
        entries: copies of at least so many are told.
        topology: a slice with at least as many chips.
        show: a file for the compiled program's text.
    """
    serialized, text = read(file)
    devices = chips(topology)[:replicas]
    try:
        made = devices[0].client.compile(
            module_of(serialized), xla_client.DeviceList(tuple(devices)), options(replicas)
        )
    except Exception as error:  # a compiler has many kinds
        return {"error": f"{type(error).__name__}: {error}"[:1000]}
    figures, compiled_text = described(made, entries)
    if show:
        with open(show, "w") as opened:
            opened.write(compiled_text)
    return figures | {"sums": hlo_text.sums(text)}
