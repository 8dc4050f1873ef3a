"""Meshes of devices."""

import math
from collections.abc import Mapping, Sequence

import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import checks
from tf_graft.core.places import mesh_processes


def logical_cpus(count: int) -> list[str]:
    """Divides the CPU into logical devices, for a mesh on one machine, and returns their names.

    Call it before TensorFlow makes its first tensor. It changes nothing if `count` devices exist
    already.

    Args:
        count: the number of devices, at least 1.

    Raises:
        ValueError: `count` is not a positive whole number.
        RuntimeError: TensorFlow has started with another number of CPU devices.

    Example:
        `tg.dtensor.logical_cpus(8)` at the top of a script returns `["CPU:0", ..., "CPU:7"]`.
    """
    _check_size("logical_cpus", "count", count)
    physical = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(
            physical, [tf.config.LogicalDeviceConfiguration()] * count
        )
    except RuntimeError:  # TensorFlow has started
        present = len(tf.config.list_logical_devices("CPU"))
        if present != count:
            raise RuntimeError(
                f"logical_cpus({count}): TensorFlow has started with {present} CPU device(s) "
                "already; call it before anything that makes a tensor or a model."
            ) from None
    return [f"CPU:{i}" for i in range(count)]


def create_mesh(
    dims: Mapping[str, int], devices: Sequence[str] | None = None, device_type: str | None = None
) -> dtensor.Mesh:
    """Arranges devices in a grid with named dimensions.

    The devices may be those of several processes, on one machine or several. Each process runs the
    same program and makes the mesh of all processes: those that `DTENSOR_JOBS` lists
    (`"host1:2222,host2:2222"`; `DTENSOR_CLIENT_ID` is the number of this one), or else the workers
    of `TF_CONFIG`. All processes have the same number of devices, which follow one another in the
    mesh in row-major order. Call `keras.utils.set_random_seed` first, so that all start with the
    same values.

    For GPUs, TPUs and several processes, call `create_mesh` before you make a tensor or a model: it
    calls `tf.experimental.dtensor.initialize_accelerator_system`.

    Args:
        dims: sizes by name, in order: `{"batch": 2, "model": 4}`. One size may be -1: it is
            computed from the number of devices.
        devices: the names of this process's devices (`["CPU:0", "CPU:1"]`) in row-major order; None
            for all of `device_type`.
        device_type: `"CPU"`, `"GPU"` or `"TPU"`; None for that of `devices`, or else
            `tf.experimental.dtensor.preferred_device_type()`.

    Returns:
        A `tf.experimental.dtensor.Mesh`.

    Raises:
        TypeError: `dims` is not a mapping, or `devices` not a list of names.
        ValueError: a size is not positive; the product of the sizes is not the number of devices; a
            device does not exist or is given twice; the environment does not say which of several
            processes this is.
        RuntimeError: TensorFlow started before its accelerators, or the connection to other
            processes, were initialized.

    Example:
        With 8 devices `create_mesh({"batch": 2, "model": -1})` makes 2 rows of 4.
    """
    checks.instance("create_mesh", "dims", dims, Mapping)
    given = None if devices is None else _checked_devices(devices)
    kind = (device_type or (given[0].split(":")[0] if given else None)) or (
        dtensor.preferred_device_type()
    )
    processes = mesh_processes.find()
    _initialize(kind.upper(), processes)
    present = [_short(device.to_string()) for device in dtensor.local_devices(kind.upper())]
    names = given or present
    missing = [name for name in names if name not in present]
    if missing:
        advice = " (tg.dtensor.logical_cpus(n) makes CPUs)" if kind.upper() == "CPU" else ""
        raise ValueError(
            f"create_mesh(devices={list(devices or ())}): there is no {missing[0]}, only "
            f"{', '.join(present) or f'no {kind} at all'}{advice}."
        )
    sizes = list(_sizes(dict(dims), len(names), processes, kind.upper()).items())
    if processes == 1:
        return dtensor.create_mesh(sizes, devices=names)
    own = None if kind.upper() == "TPU" else names  # TensorFlow knows the order of a pod's cores
    return dtensor.create_distributed_mesh(sizes, local_devices=own, device_type=kind.upper())


def _checked_devices(devices: Sequence[str]) -> list[str]:
    listed = checks.listed("create_mesh(devices={}): devices must be a list of names.", devices)
    names = [_short(checks.instance("create_mesh", "devices", name, str)) for name in listed]
    twice = [name for name in names if names.count(name) > 1]
    if twice or not names:
        what = f"{twice[0]} is given twice" if twice else "no device is given"
        raise ValueError(f"create_mesh(devices={list(devices)}): {what}.")
    return names


def _short(name: str) -> str:
    """Returns `CPU:0` for `/device:CPU:0`, `cpu:0` and the like."""
    return ":".join(name.upper().split("/")[-1].removeprefix("DEVICE:").split(":")[-2:])


def _initialize(kind: str, processes: int) -> None:
    """Initializes devices for use in a mesh; a second call does nothing."""
    if kind == "CPU" and processes == 1:
        return
    try:
        dtensor.initialize_accelerator_system(kind)
    except ValueError as error:
        if "Accelerator system has already" in str(error):
            return
        raise RuntimeError(
            f"create_mesh: the {kind}s cannot be initialized ({error}) Call create_mesh before "
            "anything that makes a tensor or a model."
        ) from error


def _sizes(dims: dict[str, int], each: int, processes: int, kind: str) -> dict[str, int]:
    """Checks the sizes against the devices of each process; returns them with -1 resolved."""
    owner = f"create_mesh({checks.shown(dims)})"
    if not dims:
        raise ValueError(f"{owner}: a mesh has at least one dimension.")
    open_ended = [name for name, size in dims.items() if size == -1]
    for name, size in dims.items():
        if size != -1:
            _check_size(owner, name, size)
    if len(open_ended) > 1:
        raise ValueError(f"{owner}: only one size can be -1.")
    count, known = each * processes, math.prod(size for size in dims.values() if size != -1)
    if (count % known if open_ended else count != known) or count < known:
        advice = " Name fewer with `devices`." if count > known else ""
        if kind == "CPU" and count < known:
            enough = -(-known // processes)
            advice = f" Call tg.dtensor.logical_cpus({enough}) at the start to have enough."
        takes = f"a multiple of {known}" if open_ended else f"{known}"
        there = f"{count}" + (f", {each} in each of {processes} processes" if processes > 1 else "")
        raise ValueError(f"{owner}: it takes {takes} devices, and there are {there}.{advice}")
    return {name: count // known if size == -1 else size for name, size in dims.items()}


def _check_size(owner: str, name: str, size: object) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size < 2**31:
        raise ValueError(
            f"{owner}: {name} is {checks.shown(size)}; it must be a whole number of at least 1, "
            "below 2^31."
        )
