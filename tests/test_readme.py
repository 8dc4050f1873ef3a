"""What README shows is run: its Python as it stands, and its commands by .ci/run."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.fixture
def names():
    """What README's reader has: a model and data."""
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Activation("softmax")]
    )
    x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
    return {"model": model, "x": x, "y": x[:, :3].argmax(axis=1), "keras": keras, "tf": tf}


def test_its_python_runs(names):
    assert len(BLOCKS) == 3
    for block in BLOCKS:
        exec(block, names)
    assert int(names["model"].optimizer.iterations) == 30
    w, g = tf.Variable([1.0]), [tf.constant([0.3])]
    names["Adagrad"](0.5).apply(g, [w])
    np.testing.assert_allclose(w.numpy(), 1 - 0.5 * 0.3 / np.sqrt(0.1 + 0.09), rtol=1e-6)


def test_its_configs_are_the_configs_there_are():
    section = README.partition("## Train something")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", section, re.M)
    assert sorted(named) == sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
