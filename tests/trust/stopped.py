"""A run that was stopped in the middle, whose folder is changed before it goes on."""

import numpy as np
import pytest
import tensorflow as tf

import tf_graft
from support.stopping import stopping_at
from tf_graft.grafting import records
from tf_graft.report import ReportError
from tf_graft.training import config, loop, run
from tf_graft.training.folder_errors import FolderError
from tf_graft.training.source import ConfigError
from trust import damage, made_once
from trust.operations import content, put

CONFIG = """
data: {name: digits, batch_size: 32, train: "train[:224]", test: "test[:50]"}
model: {name: mlp, units: [6], dropout: 0.3}
optimizer:
  name: adagraft
  diagnostic: true
  magnitude_optimizer: {name: adam, learning_rate: 0.01}
  direction_optimizer: {name: sgd, learning_rate: 1.0, momentum: 0.9}
run: {epochs: 3, checkpoint_every: 2, progress: none, tensorboard: false}
"""
STOP = 17  # of 21 steps, 7 an epoch; the states of 14, 16 and 17 are there
LOGS = ("steps.csv", "metrics.csv", records.FILE)
SENTENCES = (ConfigError, FolderError, tf_graft.CheckpointError, ReportError)


class Stopped:
    """Runs the config in a folder again and again, with one model, made and traced once.

    Attributes:
        whole: what the folder holds after an undisturbed run, a file's bytes by its name.
        now: what it holds after one that was stopped.
        other: the same of another run.
    """

    def __init__(self, folder):
        self.folder, self._config = folder / "run", folder / "tiny.yaml"
        self._config.write_text(CONFIG)
        self._models = made_once.models()

    def __enter__(self):
        self._made = self._models.__enter__()
        self._train()
        self.whole, self._end = content(self.folder), self._state()
        self.other, self.now = self._until_stop("run.seed=1"), self._until_stop()
        return self

    def __exit__(self, *error):
        self._models.__exit__(*error)

    @property
    def model(self):
        """The model of all runs."""
        ((model, _),) = self._made.values()
        return model

    def wrong(self, found, *names):
        """What is wrong with how a run goes on; None where nothing is.

        Args:
            found: what it finds in its folder.
            names: of the files that are not as they were.
        """
        put(self.folder, found)
        said = []
        try:
            self._train(said=said)
        except SENTENCES as error:
            changed = content(self.folder) != found
            return "refused, and a file was changed" if changed else unlike_a_sentence(error)
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:200]}"
        if self._state() != self._end:
            return "ends with other numbers"
        left = content(self.folder)
        altered = [name for name in LOGS if left.get(name) != self.whole[name]]
        if all(any(str(self.folder / name) in line for line in said) for name in altered):
            return next(filter(None, map(self._other_rows, altered)), None)
        return f"{altered} are other than those of an undisturbed run, and nothing was said"

    def _other_rows(self, name):
        """What is wrong with a log whose first rows are lost."""
        split = damage.records if name == records.FILE else damage.lines
        ours, expected = (split((folder)[name])[1] for folder in (content(self.folder), self.whole))
        seal = (lambda row: row[:-4]) if name == records.FILE else lambda r: r.rpartition(b",")[0]
        tail = [seal(row) for row in expected[len(expected) - len(ours) :]]
        return None if [seal(row) for row in ours] == tail else f"{name} holds other rows"

    def _train(self, *overrides, said=None):
        parsed = config.load(self._config, [f"run.dir={self.folder}", *overrides])
        run.train(parsed, say=lambda line: said is not None and said.append(line))

    def _until_stop(self, *overrides):
        put(self.folder, {})
        with stopping_at(STOP), pytest.raises(loop.Stopped):
            self._train(*overrides)
        return content(self.folder)

    def _state(self):
        variables = (*self.model.variables, *self.model.optimizer.variables)
        return [np.asarray(v).tobytes() for v in variables]


def unlike_a_sentence(error):
    """What is wrong with the message of an error; None where nothing is."""
    said = str(error)
    return None if "\n" not in said and len(said) > 20 else f"says {said!r}"


def rewritten(prefix, change=lambda values: None):
    """Writes a checkpoint again, with its checksums, after a change to its values by key."""
    reader = tf.train.load_checkpoint(str(prefix))
    values = {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}
    change(values)
    tensors = [tf.constant(value) for value in values.values()]
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=tensors,
    )
