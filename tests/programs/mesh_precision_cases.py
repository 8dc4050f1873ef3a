"""`MixedPrecision` and row-sparse gradients on a DTensor mesh. Run by `test_mesh.py`."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import tf_graft
from programs.mesh_cases import (
    SHAPES,
    SPECS,
    assert_equals_one_device,
    laid_out,
    mesh,
    on_mesh,
    run,
    state_on_mesh,
    whole,
)
from support import samples
from tf_graft import MixedPrecision

pytestmark = pytest.mark.slow
SCALE = 64.0
# A corner of "both", which is divided among all four devices.
CORNERS = {"device 0": (0, 0), "device 1": (0, 5), "device 2": (3, 0), "device 3": (3, 5)}
OPTIONS = {
    "plain": {},
    "together": {
        "use_ema": True,
        "ema_momentum": 0.7,
        "global_clipnorm": 0.8,
        "gradient_accumulation_steps": 2,
    },
}


def make(scale="backoff", **options):
    return MixedPrecision(tf_graft.Adam(0.1, **options), scale, name="optimizer")


def assert_no_trace(after, before):
    assert after.pop("skipped_steps") == before.pop("skipped_steps") + 1
    assert after.pop("loss_scale/scale") == before.pop("loss_scale/scale") / 2
    for state in (after, before):
        state.pop("loss_scale/iteration")
        state.pop("loss_scale/last_overflow_iteration")
    samples.assert_same_state(after, before)


@pytest.mark.parametrize(("device", "graph"), [(each, each == "device 3") for each in CORNERS])
def test_an_infinity_on_each_device_leaves_no_trace(device, graph):
    variables = list(on_mesh().values())
    optimizer = make(use_ema=True)
    steps = samples.gradients(2, SHAPES)
    steps[1]["both"][CORNERS[device]] = np.inf
    steps = [[laid_out(g[p], SPECS[p]) for p in SHAPES] for g in steps]
    run(optimizer, variables, steps[:1], graph)
    before = state_on_mesh(optimizer, variables)
    run(optimizer, variables, steps[1:], graph)
    assert_no_trace(state_on_mesh(optimizer, variables), before)


@pytest.mark.parametrize(("option", "dtype"), [("plain", "float16"), ("together", "float32")])
def test_steps_equal_one_device(option, dtype):
    values, steps = samples.weights(SHAPES, dtype), samples.gradients(4, SHAPES, dtype)
    variables = list(on_mesh(dtype).values())
    optimizer, one = make(SCALE, **OPTIONS[option]), make(SCALE, **OPTIONS[option])
    on_devices = [[laid_out(g[p] * SCALE, SPECS[p]) for p in SHAPES] for g in steps]
    run(optimizer, variables, on_devices, graph=False)
    alone = [tf.Variable(value, name=path) for path, value in values.items()]
    run(one, alone, [[tf.constant(g[p] * SCALE) for p in SHAPES] for g in steps], graph=False)
    assert_equals_one_device(optimizer, variables, one, alone)


def slices_on_mesh(ids, values):
    """Made by a gather on the mesh, as a gradient of one is."""
    replicated = dtensor.Layout.replicated(mesh(), 1)
    return tf.IndexedSlices(
        laid_out(values, [dtensor.UNSHARDED] * 2),
        dtensor.copy_to_mesh(tf.constant(ids, tf.int64), replicated),
    )


@pytest.mark.parametrize(
    ("spec", "option", "bad"),
    [
        ("rows", "together", np.inf),
        ("both", "plain", np.inf),
        ("both", "together", None),
        ("replicated", "plain", None),
    ],
)
def test_rows_equal_one_device(spec, option, bad):
    ids, random = [1, 3, 1], np.random.default_rng(4)
    values = random.normal(size=(4, 3, 6)).astype(np.float32)
    if bad is not None:
        values[1, 2, 5] = bad
    start = samples.weights(SHAPES)[spec]
    table = dtensor.DVariable(laid_out(start, SPECS[spec]), name=spec)
    alone = tf.Variable(start, name=spec)
    optimizer, one = make(SCALE, **OPTIONS[option]), make(SCALE, **OPTIONS[option])
    for step in values:
        optimizer.apply([slices_on_mesh(ids, step)], [table])
        one.apply([samples.slices(ids, step)], [alone])
    for each in (optimizer, one):
        if each.use_ema:  # on one device the averages of idle rows are made up for when read
            each.synchronized_averages()
    assert_equals_one_device(optimizer, [table], one, [alone])
    idle = [0, 2]
    np.testing.assert_array_equal(whole(table)[idle], start[idle])
    assert int(whole(optimizer.skipped_steps)) == (bad is not None)
