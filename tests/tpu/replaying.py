"""Runs a program of several replicas on so many CPU devices of XLA; needs `jax` alone."""

import jax
import numpy as np
from jax._src.lib import xla_client
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpu import compiling, hlo_text

# Of an entry.
BYTES = {"pred": 1, "s32": 4, "u32": 4, "s64": 8, "u64": 8, "f32": 4, "f64": 8}


class Replicas:
    """The devices, one for each replica; an array has a value of its own on each."""

    def __init__(self, count):
        self.devices = jax.devices("cpu")[:count]
        self.everywhere = NamedSharding(Mesh(np.array(self.devices), ("r",)), PartitionSpec())

    def placed(self, values):
        """An array of the value of each replica."""
        each = [jax.device_put(v, d) for v, d in zip(values, self.devices, strict=True)]
        return self.joined(each)

    def joined(self, each):
        """An array of arrays that are where they belong."""
        make = jax.make_array_from_single_device_arrays
        return make(each[0].shape, self.everywhere, each)

    def under(self, prefix, given):
        """The arrays whose names are a prefix and a number, by that number."""
        names = [name for name in given.files if name.startswith(prefix)]
        return {int(name.removeprefix(prefix)): self.placed(given[name]) for name in names}

    @staticmethod
    def values(array):
        """The values of all replicas."""
        return np.stack([np.asarray(shard.data) for shard in array.addressable_shards])

    def program(self, serialized):
        """A program, compiled."""
        module = compiling.module_of(serialized)
        devices = xla_client.DeviceList(tuple(self.devices))
        options = compiling.options(len(self.devices))
        return self.devices[0].client.compile_and_load(module, devices, options)


def matching(arrays, text):
    """Arrays by the number of a parameter, in order; each must be what the program takes."""
    parameters, _ = hlo_text.signature(text)
    given = [(arrays[number].dtype.itemsize, arrays[number].shape) for number in sorted(arrays)]
    taken = [(BYTES[kind], shape) for kind, shape in parameters]
    assert given == taken, f"given {given}, the program takes {taken}"
    return [arrays[number] for number in sorted(arrays)]


def replayed(file, inputs, left, replicas, steps):
    """Takes steps, and writes what state each replica has after them.

    Args:
        file: the program.
        inputs: an `.npz` that has, for each replica, `state/N` for the parameter N that is state,
            and `given/S/N` for one that is given in step S.
        left: the `.npz` to be written, with `state/N`.
        replicas: how many there are.
        steps: how many are taken.
    """
    serialized, text = compiling.read(file)
    on, given = Replicas(replicas), np.load(inputs)
    replaces = hlo_text.aliases(text)
    program = on.program(serialized)
    state = on.under("state/", given)
    for step in range(steps):
        arrays = state | on.under(f"given/{step}/", given)
        results = program.execute_sharded(matching(arrays, text))
        for number, each in enumerate(results.disassemble_into_single_device_arrays()):
            state[replaces[number]] = on.joined(each)
    np.savez(left, **{f"state/{number}": on.values(array) for number, array in state.items()})
    return {"left": left}
