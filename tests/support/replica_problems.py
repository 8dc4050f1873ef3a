"""Optimizers on two replicas, whose gradients differ; what one device does with their sums.

Dense gradients, and row-sparse ones whose rows repeat within a replica and across replicas,
differ in number between the replicas.
"""

import contextlib
import functools

import keras
import numpy as np
import tensorflow as tf

from support import samples
from support.replicas import mirrored, per_replica

REPLICAS = 2
STEPS = 4
OPTIONS = {
    "plain": {},
    "clipnorm": {"clipnorm": 0.8},
    "global_clipnorm": {"global_clipnorm": 0.8},
    "accumulation": {"gradient_accumulation_steps": 2},
    "ema_overwrite": {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2},
    "weight_decay": {"weight_decay": 0.2},
    "loss_scale": {"loss_scale_factor": 8.0},
    "not_finite_on_0": {},
    "not_finite_on_1": {},
    "together": samples.OPTIONS["together"],
}
SHAPES = {"table": (6, 3), "kernel": (4, 3), "bias": (3,)}
IDS = ([1, 1, 4], [4, 0, 1, 4, 4])  # of each replica's slices


def forms_of(form: str) -> dict[str, tuple[int, ...]]:
    """The variables of a problem: with row-sparse gradients there is a table beside the dense."""
    return SHAPES if form == "rows" else {path: SHAPES[path] for path in ("kernel", "bias")}


def data(form: str, bad_replica: int | None = None, steps: int = STEPS):
    """For each step, for each replica, the values of the gradients; non-finite at step 2."""
    random = np.random.default_rng(7)
    result = []
    for step in range(steps):
        per_replica = []
        for replica in range(REPLICAS):
            shapes = dict(forms_of(form))
            if "table" in shapes:
                shapes["table"] = (len(IDS[replica]), 3)
            values = [random.normal(size=shape).astype(np.float32) for shape in shapes.values()]
            if replica == bad_replica and step == 1:
                values[-1][2] = np.inf  # the other replica's are finite
            per_replica.append(values)
        result.append(per_replica)
    return result


def as_gradients(form: str, values, ids):
    """Tensors, the first as the slices of a table where the problem has one."""
    values = [tf.convert_to_tensor(value) for value in values]
    if form == "rows":
        values[0] = tf.IndexedSlices(values[0], tf.convert_to_tensor(ids))
    return values


def summed(form: str, per_replica):
    """What one device is to be given for what the replicas get."""
    columns = list(zip(*per_replica, strict=True))
    if form != "rows":
        return [tf.constant(sum(column)) for column in columns]
    rows, position = np.unique(np.concatenate(IDS), return_inverse=True)
    table = np.zeros([len(rows), 3], np.float32)
    np.add.at(table, position, np.concatenate(columns[0]))  # each row once
    return as_gradients(form, [table, *(sum(column) for column in columns[1:])], rows)


def problem(name: str, option: str, form: str, scope=None, optimizer_scope=None):
    """An optimizer and its variables, each made under a scope of its own."""
    with scope or contextlib.nullcontext():
        model = list(samples.variables(samples.weights(forms_of(form))).values())
    with optimizer_scope or contextlib.nullcontext():
        optimizer = samples.BY_NAME[name].make(name="optimizer", **OPTIONS[option])
    return optimizer, model


def runner(optimizer, model, form: str):
    """A function of the values of all gradients and the ids that takes one step on each replica."""

    def step(values, ids):
        def on_replica(values, ids):
            optimizer.apply(as_gradients(form, values, ids), model)

        mirrored().run(on_replica, args=(values, ids))

    return step


def run_replicas(optimizer, model, form, steps, graph: bool) -> None:
    step = runner(optimizer, model, form)
    step = tf.function(step) if graph else step
    ids = per_replica([np.asarray(i, np.int64) for i in IDS])
    traced = 0
    for replicas in steps:
        step([per_replica(column) for column in zip(*replicas, strict=True)], ids)
        traced = traced or (graph and step.experimental_get_tracing_count())
    if graph:  # after the first call, which traces twice where it builds the optimizer
        assert step.experimental_get_tracing_count() == traced


def bad_replica(option: str) -> int | None:
    return int(option[-1]) if option.startswith("not_finite") else None


@functools.cache
def one_device(name: str, option: str, form: str):
    """The state after the same steps on one device, given the sums."""
    optimizer, model = problem(name, option, form)
    for replicas in data(form, bad_replica(option)):
        optimizer.apply(summed(form, replicas), model)
    return samples.state_of(optimizer, *model)


def copies(variable) -> list[np.ndarray]:
    """The value of each replica's own copy."""
    raw = variable.value if isinstance(variable, keras.Variable) else variable
    found = [copy.numpy() for copy in mirrored().experimental_local_results(raw)]
    assert len(found) == REPLICAS, f"{variable.path} is not mirrored"
    return found


def assert_equals_one(optimizer, model, expected) -> None:
    """Weights and all state within 1e-6, counters exactly; the replicas' copies bit for bit."""
    actual = samples.state_of(optimizer, *model)
    assert actual.keys() == expected.keys()
    for path, value in expected.items():
        assert actual[path].dtype == value.dtype
        if value.dtype.kind == "f":
            np.testing.assert_allclose(actual[path], value, rtol=1e-6, atol=1e-6, err_msg=path)
        else:
            np.testing.assert_array_equal(actual[path], value, err_msg=path)
    for variable in [*optimizer.variables, *model]:
        first, *rest = copies(variable)
        for other in rest:
            assert first.tobytes() == other.tobytes(), f"replicas differ in {variable.path}"


def assert_counted(optimizer, option: str) -> None:
    skipped = 0 if bad_replica(option) is None else 1
    updates = (STEPS - skipped) // OPTIONS[option].get("gradient_accumulation_steps", 1)
    assert int(optimizer.skipped_steps.numpy()) == skipped
    assert int(optimizer.iterations.numpy()) == updates
