"""Runs `dtensor_cases.py` and others, each in a process of its own: see `test_mesh.py`.

By hand: `python -m pytest tests/programs/dtensor_cases.py`.
"""

import os
import socket
import subprocess
import sys

import pytest

from support.column_runs import ROOT, passed


@pytest.mark.slow
def test_models_on_a_mesh():
    assert passed("programs/dtensor_cases.py", marked="not slow") >= 60


@pytest.mark.rare
def test_models_on_a_mesh_in_every_case():
    """With models of several kinds, and under Keras' own distribution."""
    cases = "programs/dtensor_cases.py", "programs/keras_distribution_cases.py"
    assert passed(*cases, seconds=800) >= 91


@pytest.mark.slow
def test_tables_divided_by_rows():
    assert passed("programs/row_shard_cases.py", marked="not slow") >= 8


@pytest.mark.rare
def test_tables_divided_by_rows_in_every_case():
    assert passed("programs/row_shard_cases.py", marked="slow") >= 24


@pytest.mark.rare
def test_slots_divided_over_the_batch_dimension():
    assert passed("programs/slot_share_cases.py", marked="not slow") >= 14


LATE = """
import keras
from tensorflow.experimental import dtensor
mesh = dtensor.create_mesh([("batch", 1)], devices=["CPU:0"])
dtensor.call_with_layout(lambda: keras.ops.zeros(()), dtensor.Layout.replicated(mesh, 0))
import tf_graft as tg
import tf_graft.dtensor as td
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
td.distribute(model, td.LayoutMap(mesh))
"""


FIT = """
import keras
import numpy as np
import tf_graft as tg
def fitted(place):
    keras.utils.set_random_seed(7)
    Dense, Dropout = keras.layers.Dense, keras.layers.Dropout
    layers = [Dense(8, "relu", name="up"), Dropout(0.2, seed=1), Dense(4)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(tg.Adam(0.01), "mse", metrics=["mae"])
    place(model)
    x = np.random.default_rng(0).normal(size=(24, 8)).astype("float32")
    history = model.fit(x, x[:, :4], batch_size=8, epochs=2, verbose=0).history
    return [*history["loss"], *history["mae"], np.abs(model.predict(x, verbose=0)).sum()]
"""
ONE_OF_TWO = """
tg.dtensor.logical_cpus(2)
mesh = tg.dtensor.create_mesh({"batch": 2, "model": -1})
layout_map = tg.dtensor.LayoutMap(mesh, {"up/kernel": [None, "model"]})
print("FOUND", *fitted(lambda model: tg.dtensor.distribute(model, layout_map)))
"""


@pytest.mark.rare
def test_a_mesh_over_two_processes():
    """`create_mesh` finds the other process; all learn what one device learns."""
    with socket.socket() as first, socket.socket() as second:
        for free in (first, second):
            free.bind(("localhost", 0))
        jobs = ",".join(f"localhost:{free.getsockname()[1]}" for free in (first, second))
    cluster = {"DTENSOR_JOBS": jobs}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", FIT + ONE_OF_TWO],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | cluster | {"DTENSOR_CLIENT_ID": client, "PYTHONPATH": str(ROOT)},
        )
        for client in ("0", "1")
    ]
    names: dict = {}
    exec(FIT, names)
    try:
        expected = names["fitted"](lambda model: None)
        printed = [process.communicate(timeout=300)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    found = [[float(x) for x in text.partition("FOUND")[2].split()] for text in printed]
    assert found[0] == found[1]
    assert found[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.rare
def test_dtensor_used_before_tf_graft_is_imported():
    fresh = {name: value for name, value in os.environ.items() if not name.startswith("DTENSOR_")}
    done = subprocess.run(
        [sys.executable, "-c", LATE],
        cwd=ROOT,
        env=fresh,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "RuntimeError: Import tf_graft before you use DTensor" in done.stderr
