"""`fit` and all around it on a mesh of two processes.

A program: `python -m programs.clients_cases --out FOLDER` in each process, which writes a JSON line
a case. Run by `test_clients.py`, which trains the same on one device.
"""

import argparse
import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

import tf_graft as tg
from support import clients
from support.batch_logs import BatchLogs
from tf_graft import dtensor as td
from tf_graft.processes.cluster import end_with_launcher

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(24, 8)).astype("float32")
Y = RANDOM.integers(0, 4, 24)
LAYOUTS = {"up/kernel": [None, "model"], "up/bias": ["model"], "down/kernel": ["model", None]}
SHARES = 2
BATCH = 8


def network(seed=7, width=16):
    keras.utils.set_random_seed(seed)
    keras.backend.clear_session(free_memory=False)
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(width, activation="relu", name="up")(inputs)
    hidden = keras.layers.Dropout(0.25)(hidden)  # its seed is drawn
    model = keras.Model(inputs, keras.layers.Dense(4, name="down")(hidden), name="net")
    optimizer = tg.Adam(0.02, global_clipnorm=0.5, use_ema=True, ema_momentum=0.7, name="adam")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def distributed(mesh, **how):
    """A new model, on the mesh where there is one."""
    model = network()
    if mesh is not None:
        td.distribute(
            model, td.LayoutMap(mesh, LAYOUTS if "model" in mesh.dim_names else {}), **how
        )
    return model


def in_words_of_keras():
    """The mesh and the layouts, and that each client has its own share."""
    devices = [f"cpu:{i}" for _ in range(SHARES) for i in range(clients.DEVICES)]
    layout_map = keras.distribution.LayoutMap(
        keras.distribution.DeviceMesh((2, 2), ("batch", "model"), devices)
    )
    for path, axes in LAYOUTS.items():
        layout_map[path] = tuple(axes)
    return keras.distribution.ModelParallel(layout_map=layout_map, auto_shard_dataset=False)


def weights(model):
    return {v.path: v.numpy().tolist() for v in model.weights}


def whole_batches(mesh, folder, evaluates=True):
    """All clients are given the same batches, shuffled, the last one short, and save each epoch."""
    model, logs = distributed(mesh), BatchLogs()
    saving = keras.callbacks.ModelCheckpoint(folder / "{epoch}.keras")
    held_out = (X[:15], Y[:15]) if evaluates else None
    model.fit(*(X[:23], Y[:23], BATCH, 2, 0, [logs, saving]), validation_data=held_out)
    found = {
        "batches": logs.kept,
        "predicted": model.predict(X[:23], BATCH, 0).tolist(),
        "saved": weights(keras.models.load_model(folder / "2.keras")),
        "weights": weights(model),
    }
    if evaluates:
        found["history"] = model.history.history
        found["evaluated"] = model.evaluate(X, Y, BATCH, 0, return_dict=True)
    if mesh is not None:
        assert weights(td.collect(model)) == found["weights"]
    return found


def own_share(mesh, examples, distribution=None):
    """Each client has its own share of the examples, and of the short last batch."""
    if distribution is None:
        model = distributed(mesh, local_batches=True)
    else:
        model = td.distribute(network(), distribution)
    logs = BatchLogs()
    data = tf.data.Dataset.from_tensor_slices((X[:examples], Y[:examples]))
    each = BATCH // SHARES
    if mesh is None:  # one share of a batch after the other
        shares = [range(examples)[share::SHARES] for share in range(SHARES)]
        order = [
            i for k in range(0, examples, each) for share in shares for i in share[k : k + each]
        ]
        data = tf.data.Dataset.from_tensor_slices((X[order], Y[order])).batch(BATCH)
    else:
        data = data.shard(*td.client_share(mesh)).batch(each)
    history = model.fit(data, None, None, 2, 0, [logs], shuffle=False).history
    if distribution is not None:
        return {"history": history, "batches": logs.kept, "weights": weights(model)}
    evaluated = model.evaluate(data, verbose=0, return_dict=True)
    if mesh is not None:
        predicted = model.predict(data, verbose=0)
        mine = td.collect(model).predict(data, verbose=0)
        np.testing.assert_allclose(predicted, mine, rtol=1e-5, atol=1e-6)
    return {"history": history, "batches": logs.kept, "all": evaluated, "weights": weights(model)}


def packed(mesh):
    """In a loop of one's own."""
    mine = slice(0, 4) if td.client_share(mesh)[1] == 0 else slice(4, 8)
    batches = [(X[i : i + 8][mine], Y[i : i + 8][mine]) for i in (0, 8, 16)]
    seen = [td.from_mesh(x) for x, _ in td.DTensorDataset(batches, mesh, local_batches=True)]
    np.testing.assert_array_equal(np.concatenate(seen), X)
    whole = td.pack_batch({"x": X[:8], "factor": np.float32(2)}, mesh)
    np.testing.assert_array_equal(td.from_mesh(whole["x"]), X[:8])
    assert dtensor.fetch_layout(whole["x"]).sharding_specs[0] == "batch"
    return [x.shape.as_list() for x in seen]


def refusals(mesh):
    """What every client says where they do not match."""
    client = dtensor.client_id()
    whole, local = distributed(mesh), distributed(mesh, local_batches=True)
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    before = weights(whole)
    wrong = {
        "another seed": lambda: td.distribute(network(client), td.LayoutMap(mesh)),
        "another model": lambda: td.distribute(network(1, width=8 + client), td.LayoutMap(mesh)),
        "another batch": lambda: whole.fit(X + client, Y, BATCH, verbose=0),
        "another size": lambda: local.fit(data.batch(4 - client), verbose=0, shuffle=False),
        "uneven": lambda: td.pack_batch(X[:3], mesh, local_batches=True),
        "fewer batches": lambda: local.fit(
            data.take(8 + 4 * client).batch(4), epochs=2, verbose=0, shuffle=False
        ),
    }
    said = {}
    for what, call in wrong.items():
        try:
            call()
        except ValueError as error:
            said[what] = str(error)
    assert weights(whole) == before
    return said


def main():
    end_with_launcher()
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--out", type=pathlib.Path)
    folder = arguments.parse_args().out
    clients.join()
    both, examples = td.create_mesh({"batch": 2, "model": 2}), td.create_mesh({"batch": 4})
    across = td.create_mesh({"model": 2, "batch": 2})  # divides variables among the processes
    with open(folder / f"worker_{dtensor.client_id()}.jsonl", "w", buffering=1) as out:
        for found in (
            whole_batches(both, folder),
            whole_batches(across, folder, evaluates=False),
            own_share(both, 22),
            own_share(examples, 21),
            own_share(both, 22, in_words_of_keras()),
            packed(both),
            refusals(examples),
        ):
            out.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of a cluster would wait for one another
