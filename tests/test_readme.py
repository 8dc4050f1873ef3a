"""What README shows is run: its Python as it stands, and its commands by `.ci/run`."""

import re
from pathlib import Path

import keras
import numpy as np

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def test_its_python_runs():
    (block,) = re.findall(r"```python\n(.*?)```", README, re.S)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Activation("softmax")]
    )
    x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
    exec(block, {"model": model, "x": x, "y": x[:, :3].argmax(axis=1)})
    assert int(model.optimizer.iterations) == 30


def test_what_it_links_to_is_there():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert len(links) > 10
    for link in links:
        assert (ROOT / link).is_file(), link
