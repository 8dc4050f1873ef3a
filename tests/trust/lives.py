"""The lives of a run, and what it looks like when nothing disturbs it."""

import io
import json
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from tf_graft.grafting import records
from tf_graft.training import config, run
from trust import made_once, operations

CONFIG = """
data: {name: digits, batch_size: 32, train: "train[:96]", test: "test[:32]"}
model: {name: mlp, units: [4], dropout: 0.3}
optimizer:
  name: adagraft
  diagnostic: true
  magnitude_optimizer: {name: adam, learning_rate: 0.01}
  direction_optimizer: {name: sgd, learning_rate: 1.0, momentum: 0.9}
run: {epochs: 2, checkpoint_every: 2, keep_checkpoints: 2, progress: none, tensorboard: false}
"""


class Life(NamedTuple):
    """A command, and the folder it finds.

    Args:
        found: what `operations.content` returns of it; None for no folder.
        overrides: of the command.
        again: the overrides of the commands that are to go on, should it be killed.
        end: what the folder holds in the end.
    """

    found: dict | None
    overrides: tuple
    again: tuple
    end: dict


class Runs:
    """Runs a command in a folder, again and again, with models made and traced once."""

    def __init__(self, folder):
        self.folder = Path(folder) / "run"
        self._config = Path(folder) / "tiny.yaml"
        self._config.write_text(CONFIG)
        self._ended, self._models = {}, made_once.models()

    def __enter__(self):
        self._models.__enter__()
        return self

    def __exit__(self, *error):
        self._models.__exit__(*error)

    def arguments(self, overrides=()):
        """What the terminal is given."""
        return [str(self._config), f"run.dir={self.folder}", *overrides]

    def __call__(self, overrides=()):
        """Runs; returns what was said."""
        said = []
        path, *given = self.arguments(overrides)
        run.train(config.load(path, given), say=said.append)
        return said

    def lives(self):
        """Each of a run's lives, by name."""
        first, longer = ("run.epochs=2",), ("run.epochs=3",)
        end = self.end_of(None, first)
        end_of_longer = self.end_of(None, longer)
        other = 'data.train="train[32:128]"'
        old = self.end_of(None, (other,)) | {"tensorboard": None, "tensorboard/old": b"1"}
        half = {}

        def keep(operation, path):
            if operation == "rename" and path.startswith("metrics.csv.part"):
                half.clear()
            if operation == "checkpoint" and path.endswith("ckpt-5"):
                half.update(operations.content(self.folder))

        operations.put(self.folder, None)
        with operations.watched(self.folder, keep):
            self(first)
        fresh = (*first, "run.fresh=true")
        return {
            "first": Life(None, first, (first,), end),
            "fresh": Life(old, fresh, (fresh, first), end),
            "resumed": Life(half, first, (first,), end),
            "longer": Life(end, longer, (longer,), end_of_longer),
        }

    def end_of(self, found, overrides):
        """What the folder holds after a command that nothing disturbs."""
        operations.put(self.folder, found)
        self(overrides)
        return operations.content(self.folder)

    def wrong(self, found, overrides, end):
        """What is wrong with the end of a command in a folder; None where it is as `end`."""
        key = overrides, frozenset(found.items()) if found is not None else None, id(end)
        if key not in self._ended:
            operations.put(self.folder, found)
            try:
                said = self(overrides)
                left = operations.content(self.folder)
                if " is finished. " in said[-1]:
                    for name in ("run.lock", "summary.json.part"):  # which count for nothing
                        left.pop(name, None)
                self._ended[key] = difference(left, end)
            except Exception as error:
                self._ended[key] = f"{overrides} raises {type(error).__name__}: {error}"
        return self._ended[key]


def difference(found, end):
    """How what a folder holds differs from what it should; None where it does not."""
    if found.keys() != end.keys():
        return f"there is {sorted(found.keys() ^ end.keys())} too much or missing"
    for name, value in end.items():
        if name.startswith("checkpoints/ckpt-"):
            continue  # what is in the last one is in the model's file too
        same = ALIKE.get(name, lambda content: content)
        if same(found[name]) != same(value):
            return f"{name} has another content"
    return None


def _numbers(text):
    return {k: v for k, v in json.loads(text).items() if k not in ("seconds", "checksum")}


def _weights(archive):
    """Every array of a model file, the optimizer's too."""
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        weights = h5py.File(io.BytesIO(files.read("model.weights.h5")))
    arrays = {}
    weights.visititems(
        lambda name, item: (
            arrays.update({name: np.asarray(item).tobytes()})
            if isinstance(item, h5py.Dataset)
            else None
        )
    )
    return arrays


def _records(content):
    """The numbers of a file of records: its names depend on earlier models of the process."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return [numbers.tobytes() for numbers in records.read(file.name)[1:]]


# What is to be alike, where not all of a file is.
ALIKE = {
    "summary.json": _numbers,
    "model.keras": _weights,
    "graft.records": _records,
}
