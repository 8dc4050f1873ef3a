"""What an optimizer counts and its rates read as numbers, under every strategy."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import tf_graft
from support import tpu_traced
from support.replicas import mirrored
from tf_graft import dtensor as meshes

STRATEGIES = {
    "none": tf.distribute.get_strategy,
    "one_device": lambda: tf.distribute.OneDeviceStrategy("CPU:1"),
    "mirrored": mirrored,
    "multi_worker": tf.distribute.MultiWorkerMirroredStrategy,
    "tpu": tpu_traced.strategy,
}


def assert_readable(optimizer, applied):
    """The counters, the rates and what is printed; `applied` updates after the beginning."""
    assert int(optimizer.iterations) == applied
    assert int(optimizer.skipped_steps) == 0
    assert f"{float(optimizer.iterations):.1f}" == f"{applied}.0"
    assert float(optimizer.learning_rate) == 0.5
    assert round(float(optimizer.learning_rate), 1) == 0.5
    assert f"value={applied}>" in f"{optimizer.iterations}"
    assert "value=0.5>" in repr(optimizer.learning_rate)


def assert_readable_everywhere(scope, variable, can_run=True):
    """Before it is built, after it was built and after a step, within the scope and outside."""
    with scope():
        optimizer, wrapper = tf_graft.Adam(0.5), tf_graft.AGN(tf_graft.Adam(0.5))
        model = [variable("one")]
        assert_readable(optimizer, 0)
    for each in (optimizer, wrapper):
        each.build(model)
        assert_readable(each, 0)
        with scope():
            assert_readable(each, 0)
    assert int(wrapper.rounds) == 0
    if can_run:
        optimizer.apply([tf.ones([4, 2])], model)
        assert_readable(optimizer, 1)
    optimizer.learning_rate = 0.25
    assert float(optimizer.learning_rate) == 0.25
    with pytest.raises(TypeError, match=r"[Oo]nly scalar arrays"):
        int(optimizer.variables[-1])


@pytest.mark.parametrize("kind", STRATEGIES)
def test_scalars_read_as_numbers(kind):
    strategy = STRATEGIES[kind]()
    scope = contextlib.nullcontext if kind == "none" else strategy.scope
    assert_readable_everywhere(
        scope, lambda name: keras.Variable(np.ones([4, 2]), name=name), can_run=kind != "tpu"
    )


def test_scalars_read_as_numbers_on_a_mesh():
    mesh = meshes.create_mesh({"x": 2, "y": 2})
    layout = dtensor.Layout(["x", dtensor.UNSHARDED], mesh)

    def variable(name):
        return dtensor.DVariable(meshes.to_mesh(np.ones([4, 2], "float32"), layout), name=name)

    assert_readable_everywhere(contextlib.nullcontext, variable, can_run=False)


def test_scalars_read_as_numbers_in_a_replica():
    strategy, read = mirrored(), []
    with strategy.scope():
        optimizer = tf_graft.Adam(0.5)
    strategy.run(lambda: read.append((int(optimizer.iterations), float(optimizer.learning_rate))))
    assert read == [(0, 0.5)] * 2
