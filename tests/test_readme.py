"""What README shows is run: its Python as it stands, and its commands by .ci/run."""

import os
import re
import subprocess
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from support import forked
from tf_graft.processes.cluster import Cluster

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)
ON_MESH = [block for block in BLOCKS if "logical_cpus" in block]  # before any tensor is made
ON_WORKERS = [block for block in BLOCKS if "MultiWorker" in block]  # likewise
READER = """
import keras, numpy as np, tensorflow as tf
import tf_graft as tg
x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
"""


@pytest.fixture
def names():
    """What README's reader has: a model and data."""
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Activation("softmax")]
    )
    x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
    return {"model": model, "x": x, "y": x[:, :3].argmax(axis=1), "keras": keras, "tf": tf}


@pytest.mark.usefixtures("names_forgotten")
def test_its_python_runs(names):
    blocks = [block for block in BLOCKS if block not in [*ON_MESH, *ON_WORKERS]]
    assert len(blocks) == 4
    for block in blocks:
        exec(block, names)
        if block is blocks[0]:
            assert int(names["model"].optimizer.iterations) == 30
    names["model"].fit(names["x"], names["y"], verbose=0)
    child = names["model"].optimizer.direction_optimizer.optimizer
    assert isinstance(child, keras.optimizers.Lion)
    w, g = tf.Variable([1.0]), [tf.constant([0.3])]
    names["PlainAdagrad"](0.5).apply(g, [w])
    np.testing.assert_allclose(w.numpy(), 1 - 0.5 * 0.3 / np.sqrt(0.1 + 0.09), rtol=1e-6)


@pytest.mark.slow
def test_its_python_on_a_mesh_runs():
    (block,) = ON_MESH
    check = "assert int(model.optimizer.iterations) == 3"
    subprocess.run(
        [forked.python(), "-c", f"{READER}\n{block}\n{check}"],
        check=True,
        timeout=180,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
    )


@pytest.mark.slow
def test_its_python_on_workers_runs():
    (block,) = ON_WORKERS
    check = "assert int(model.optimizer.iterations.numpy()) == 3\nimport os; os._exit(0)"
    command = [forked.python(), "-c", f"{READER}\n{block}\n{check}"]
    with Cluster(command, {"worker": 2}, {"TF_CPP_MIN_LOG_LEVEL": "2"}) as cluster:
        assert cluster.wait(cluster.tasks, 180)
        assert set(cluster.ended().values()) == {0}, cluster.output(("worker", 1))


def test_its_configs_are_the_configs_there_are():
    section = README.partition("## Train something")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", section, re.M)
    assert sorted(named) == sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
