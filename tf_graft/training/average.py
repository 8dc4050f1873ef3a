"""The mean of the weights in a run's last saved states."""

from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from tf_graft.averages import recompute_batch_normalization
from tf_graft.core.errors import CheckpointError
from tf_graft.core.files.model_weights import clause
from tf_graft.core.files.whole_files import whole
from tf_graft.core.state import write
from tf_graft.training import config as configs
from tf_graft.training import data as data_sets
from tf_graft.training import models, run
from tf_graft.training.folder import RunFolder
from tf_graft.training.origin import parsed
from tf_graft.training.run_checkpoints import number, states
from tf_graft.training.saved_state import UNREADABLE, SavedState
from tf_graft.training.source import ConfigError

Values = list[np.ndarray]  # of a model's variables, in order


class Averaged(NamedTuple):
    """What averaging did.

    Args:
        steps: the steps of the states, the last one first.
        before: the metrics on the test data with the weights of the last state.
        after: those with the mean.
        file: the model with the mean as its weights.
    """

    steps: list[int]
    before: dict[str, float]
    after: dict[str, float]
    file: Path


def average(folder: RunFolder, last: int) -> Averaged:
    """Averages the weights of the last states, and writes the model with them into the folder.

    It computes the statistics of batch normalization anew, for an epoch of the training data. It
    uses one device, whatever the config's strategy or mesh. With averages in the optimizer
    (`use_ema`) and with an `AGN`, it takes the weights that the run trains.

    Args:
        folder: the folder of a run.
        last: the number of states.

    Raises:
        ConfigError: it is no folder of a run, or its data cannot be used.
        CheckpointError: there are fewer states, or one cannot be read.
    """
    config = configs.load(folder.config, own=True)
    _last(folder, last)  # before the work of making the model
    with run.environment(config):
        data = data_sets.load(config.data, config.run.steps_per_execution)
        keras.utils.set_random_seed(config.run.seed + 1)
        model = models.build(config.model, data)
        judged = keras.Model(model.input, model.output)
        judged.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=models.metrics(data),
        )
        chosen, newest, means = _read(model, folder, last)
        _set(model, newest)
        before = judged.evaluate(data.test, verbose=0, return_dict=True)
        _set(model, means)
        batches = data.stream(config.run.seed, 0).take(data.steps_per_epoch)
        recompute_batch_normalization(model, batches)
        after = judged.evaluate(data.test, verbose=0, return_dict=True)
        with whole(folder.averaged) as part:
            model.save(part)
    return Averaged([number(path) for path in chosen], before, after, folder.averaged)


def _last(folder: RunFolder, last: int) -> list[Path]:
    """Returns the last states, the newest first."""
    found = states(folder.checkpoints)
    if len(found) >= last:
        return found[:last]
    if not found:
        raise ConfigError(f"{folder.path} has no saved state yet; train the run first.")
    raise ConfigError(
        f"{folder.path} keeps {len(found)} of its states, and --last {last} needs {last}; train "
        f"with run.keep_checkpoints={last}, or take --last {len(found)}."
    )


def _read(model: keras.Model, folder: RunFolder, last: int) -> tuple[list[Path], Values, Values]:
    """Returns the last states, the values in the newest of them, and the means of all.

    A run that trains beside this may remove the oldest state while it is read; the last ones are
    then others.
    """
    while True:
        chosen, each = _last(folder, last), []
        try:
            for path in chosen:
                each.append(_values(model, path))
        except CheckpointError:
            if chosen == _last(folder, last):
                raise
            continue
        return (
            chosen,
            each[0],
            [np.mean(values, axis=0, dtype=float) for values in zip(*each, strict=True)],
        )


def _set(model: keras.Model, values: Values) -> None:
    for variable, value in zip(model.variables, values, strict=True):
        if keras.backend.is_float_dtype(variable.dtype):  # others are states of random generators
            write.put_everywhere(variable, value)


def _values(model: keras.Model, path: Path) -> Values:
    try:
        state = SavedState(path)
        paths = parsed(state.origin())[1].paths
        return state.values("model", model.variables, paths["model"])
    except UNREADABLE as error:
        raise CheckpointError(f"{path} {clause(error)}.") from None
