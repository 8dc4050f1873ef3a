"""Meshes, layouts and distributions of Keras do what tf_graft's own do, to the bit.

Run by `test_dtensor.py`, in a process of its own.
"""

import contextlib
import functools

import keras
import numpy as np
import pytest
from tensorflow.experimental import dtensor

import tf_graft as tg
from tf_graft import dtensor as td

kd = keras.distribution
X = np.random.default_rng(0).normal(size=(20, 8)).astype("float32")  # 4 left of batches of 8
LAYOUTS = {"up/kernel": (None, "model"), "up/bias": ("model",), "down/kernel": ("model", None)}


def device_mesh():
    return kd.DeviceMesh((2, 2), ("batch", "model"))


def own_mesh():
    return td.create_mesh({"batch": 2, "model": 2})


def keras_map(layouts=LAYOUTS, prefix=".*", mesh=None):
    layout_map = kd.LayoutMap(mesh or device_mesh())
    for path, axes in layouts.items():
        layout_map[prefix + path] = axes
    return layout_map


def model_parallel():
    """As written for another backend, with an expression for layers that this model has not."""
    layout_map = keras_map(LAYOUTS | {"conv.*/kernel": (None, None, None, "model")})
    return kd.ModelParallel(layout_map=layout_map, batch_dim_name="batch")


def data_parallel():
    return kd.DataParallel(devices=["cpu:0", "cpu:1"])


def network():
    keras.utils.set_random_seed(7)
    keras.backend.clear_session(free_memory=False)
    inputs = keras.Input((8,))
    hidden = keras.layers.Dropout(0.2, seed=1)(keras.layers.Dense(8, "relu", name="up")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(4, name="down")(hidden), name="net")
    model.compile(tg.Adam(0.01, global_clipnorm=0.5, name="adam"), "mse", metrics=["mae"])
    return model


def trained(layout_map, scope=contextlib.nullcontext):
    with scope():
        model = td.distribute(network(), layout_map)
        history = model.fit(X, X[:, :4], 8, 2, 0, validation_data=(X[:8], X[:8, :4])).history
        predicted = model.predict(X, verbose=0).tolist()
    variables = (*model.variables, *model.optimizer.variables)
    state = {v.path: (v.numpy().tolist(), v.value.layout.sharding_specs) for v in variables}
    return {"history": history, "predicted": predicted, "state": state}


def with_tensor_layouts():
    layouts = {path: kd.TensorLayout(axes, device_mesh()) for path, axes in LAYOUTS.items()}
    return td.LayoutMap(device_mesh(), layouts | {"down/kernel": kd.TensorLayout(("model", None))})


@functools.cache
def in_our_words():
    ours = trained(td.LayoutMap(own_mesh(), LAYOUTS))
    assert ours["state"]["up/kernel"][1] == [dtensor.UNSHARDED, "model"]
    return ours


@pytest.mark.parametrize("make", [model_parallel, keras_map, with_tensor_layouts])
def test_a_model_in_the_words_of_keras_trains_as_in_ours(make):
    given = make()
    scope = given.scope if isinstance(given, kd.ModelParallel) else contextlib.nullcontext
    assert trained(given, scope) == in_our_words()


def test_data_parallel():
    mesh = td.create_mesh({"batch": 2}, ["CPU:0", "CPU:1"])
    assert trained(data_parallel()) == trained(td.LayoutMap(mesh))


def test_the_batch_dimension_is_that_of_the_distribution():
    layout_map = keras_map({"up/kernel": (None, "m")}, mesh=kd.DeviceMesh((2, 2), ("m", "rows")))
    model = td.distribute(network(), kd.ModelParallel(layout_map=layout_map, batch_dim_name="rows"))
    batches = []
    model.test_step = lambda data: batches.append(data[0]) or {}
    model.run_eagerly = True
    model.evaluate(X[:8], X[:8, :4], verbose=0)
    assert dtensor.fetch_layout(batches[-1]).sharding_specs == ["rows", dtensor.UNSHARDED]


def test_a_layout_of_the_weight_itself_comes_first():
    distribution = data_parallel()

    class Own(keras.layers.Layer):
        def build(self, shape):
            layout = kd.TensorLayout((None, "batch"), distribution.device_mesh)
            self.kernel = keras.Variable(np.ones((8, 4), "float32"), layout=layout, name="kernel")

        def call(self, inputs):
            return inputs @ self.kernel

    model = keras.Sequential([keras.Input((8,)), Own(name="own")])
    td.distribute(model, distribution)
    assert model.layers[0].kernel.value.layout.sharding_specs == [dtensor.UNSHARDED, "batch"]


def test_meshes_and_layouts_of_keras_in_a_loop_of_ones_own():
    given, own = device_mesh(), own_mesh()
    batch = td.pack_batch(X, given)
    assert dtensor.fetch_layout(batch) == dtensor.Layout.batch_sharded(own, "batch", 2)
    assert td.DTensorDataset([X], given).mesh == own
    assert td.client_share(given) == (1, 0)
    seen = td.replicate(keras.Variable(0.0), given)
    assert seen.value.layout == dtensor.Layout.replicated(own, 0)
    layout = kd.TensorLayout(("model", None), given)
    moved = td.to_mesh(X, layout)
    assert dtensor.fetch_layout(moved) == dtensor.Layout(["model", dtensor.UNSHARDED], own)
    np.testing.assert_array_equal(td.from_mesh(moved), X)
    assert tg.Adam(mesh=given).mesh == own


def of_no_such_device():
    return kd.DeviceMesh((2, 2), ("batch", "model"), ["cpu:0", "cpu:1", "cpu:2", "gpu:0"])


def with_outputs():
    layout_map = keras_map(LAYOUTS | {"up/output": ("batch", "model")}, prefix="")
    return kd.ModelParallel(layout_map=layout_map)


def distributed(layout_map, *arguments, scope=contextlib.nullcontext):
    model = network()
    with scope():
        td.distribute(model, layout_map, *arguments)


REFUSED = {
    "a device that does not exist": (
        lambda: td.LayoutMap(of_no_such_device()),
        r"^LayoutMap\(mesh=<DeviceMesh .*there is no GPU:0, only CPU:0, CPU:1, CPU:2, CPU:3 ",
    ),
    "such a device in a distribution": (
        lambda: distributed(keras_map(mesh=of_no_such_device())),
        r"^distribute\(mesh=<DeviceMesh .*there is no GPU:0",
    ),
    "a device twice": (
        lambda: tg.SGD(mesh=kd.DeviceMesh((2,), ("batch",), ["cpu:0", "cpu:0"])),
        r"^SGD\(mesh=<DeviceMesh .*CPU:0 is given twice\.$",
    ),
    "no mesh": (
        lambda: td.pack_batch(X, 3),
        r"^pack_batch\(mesh=3\): mesh must be a Mesh or DeviceMesh",
    ),
    "a layout without a mesh": (
        lambda: td.to_mesh(X, kd.TensorLayout(("model", None))),
        r"^to_mesh\(layout=<TensorLayout .*the layout has no mesh; make it with device_mesh\.$",
    ),
    "no layout": (
        lambda: td.to_mesh(X, ["model", None]),
        r"^to_mesh\(layout=\['model', None\]\): ",
    ),
    "a dimension twice": (
        lambda: td.to_mesh(X, kd.TensorLayout(("model", "model"), device_mesh())),
        "'model' can divide one dimension only",
    ),
    "a layout of another mesh": (
        lambda: td.LayoutMap(
            own_mesh(),
            {"w": kd.TensorLayout(("x",), kd.DeviceMesh((2,), ("x",), ["cpu:0", "cpu:1"]))},
        ),
        r"^LayoutMap\['w'\]: the layout is on another mesh\.$",
    ),
    "an axis that the mesh has not": (
        lambda: td.LayoutMap(own_mesh(), {"w": kd.TensorLayout(("rows",))}),
        r"^LayoutMap\['w'\] = \['rows'\]: the mesh has no dimension 'rows'",
    ),
    "a map of Keras in ours": (
        lambda: td.LayoutMap(device_mesh(), keras_map()),
        "matches by Keras' rules, .* give it to tg.dtensor.distribute as it is",
    ),
    "a map without a mesh": (
        lambda: distributed(kd.LayoutMap(None)),
        "the keras.distribution.LayoutMap has no device_mesh",
    ),
    "expressions that match nothing": (
        lambda: distributed(kd.ModelParallel(layout_map=keras_map(prefix="net/"))),
        "the layouts of Keras shard no weight of 'net', which has up/kernel, up/bias, down/kernel",
    ),
    "expressions that both match": (
        lambda: distributed(keras_map(LAYOUTS | {"kernel": (None, None)})),
        "Path '.*/?kernel' matches multiple",
    ),
    "a layout that does not fit": (
        lambda: distributed(keras_map({"up/kernel": ("model",)})),
        r"^LayoutMap\['up/kernel'\] = \['model'\]: 'up/kernel' has shape \(8, 8\), of rank 2",
    ),
    "another batch dimension": (
        lambda: distributed(model_parallel(), None),
        r"^distribute\(batch_dim=None\): the ModelParallel divides batches over 'batch'; leave",
    ),
    "what layers return": (
        lambda: distributed(td.LayoutMap(own_mesh()), scope=with_outputs().scope),
        "was given a layout of 'up/output', and Keras cannot lay out what a layer returns",
    ),
    "a mesh for a layout map": (
        lambda: distributed(device_mesh()),
        r"^distribute\(layout_map=<DeviceMesh .*layout_map must be a LayoutMap, tf_graft's or",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case):
    refused, message = REFUSED[case]
    with pytest.raises((ValueError, TypeError), match=message):
        refused()
    assert kd.distribution() is None


def test_layouts_of_what_layers_return_have_no_effect_where_they_are_not_set():
    assert trained(with_outputs()) == trained(td.LayoutMap(own_mesh(), LAYOUTS))
