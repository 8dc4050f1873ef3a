"""Averages of the weights during training and from files, and their batch normalization."""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import checks, keras_contract
from tf_graft.core.arguments.averages import EMA, SWA, Averages
from tf_graft.core.files import model_weights
from tf_graft.core.files.checked_state import misfit

__all__ = ["EMA", "SWA", "Averages", "average_files", "recompute_batch_normalization"]


def average_files(model: keras.Model, files: Iterable[str | os.PathLike[str]]) -> None:
    """Sets a model's weights to the mean of those in several files, for example of the last epochs.

    The optimizer's state in the files is ignored, and the model's optimizer stays as it is. So do
    weights that are not floating-point numbers, such as the states of random generators. The ids of
    a `DynamicLookup` become those of the last file. If a file cannot be read, nothing changes.

    Args:
        model: a model that has been built.
        files: names of files with the weights of such a model: `.weights.h5` or `.keras`, or the
            prefix of a `tf.train.Checkpoint(model=model)`.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: `files` is empty.
        CheckpointError: a file cannot be read, lacks a weight, or has an infinite or NaN in one.

    Example:
        >>> import pathlib, tempfile
        >>> model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = [pathlib.Path(folder) / f"{number}.weights.h5" for number in (1, 2)]
        ...     for number, file in enumerate(files):
        ...         model.set_weights([np.float32([[number]])])
        ...         model.save_weights(file)
        ...     average_files(model, files)
        >>> model.get_weights()[0].tolist()
        [[0.5]]
    """
    owner = "average_files"
    checks.instance(owner, "model", model, keras.Model)
    names = checks.listed(f"{owner}: the files are {{}}; they must be a list of names.", files)
    for name in names:
        checks.instance(owner, "file", name, str, os.PathLike)
    if not names:
        raise ValueError(f"{owner}: there is no file.")
    weights = [v for v in model.weights if tf.as_dtype(v.dtype).is_floating]
    sums = [np.zeros(v.shape) for v in weights]
    put_back = keras_contract.snapshot_of_tables(model)
    try:
        for name in names:
            values = model_weights.read(model, weights, name)
            sums = [total + value for total, value in zip(sums, values, strict=True)]
    except BaseException:
        put_back()
        raise
    for variable, total in zip(weights, sums, strict=True):
        variable.assign(total / len(names))


def recompute_batch_normalization(model: keras.Model, data: Iterable[Any]) -> None:
    """Computes the moving statistics of batch normalization anew, for the present weights.

    Call this after you average weights: the old statistics belong to the activations of the old
    weights. The new mean and variance are averages over the batches, each with the same weight. For
    a layer that the model calls several times, they are averages over all of its calls. Everything
    else stays as it is. A model without batch normalization needs no data.

    Args:
        model: a model that has been built, with the averages as its weights.
        data: batches, such as a `tf.data.Dataset` or a list: inputs, or tuples that begin with
            them.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: there is no batch, or one that makes a statistic infinite or NaN: a batch
            without examples, or whose inputs are not finite.

    Example:
        >>> import tensorflow as tf
        >>> layer = keras.layers.BatchNormalization()
        >>> model = keras.Sequential([keras.Input([1]), layer])
        >>> recompute_batch_normalization(model, [tf.constant([[1.0], [3.0]])])
        >>> layer.moving_mean.numpy().tolist(), layer.moving_variance.numpy().tolist()
        ([2.0], [1.0])

    Reference:
        Izmailov et al., 2018, "Averaging weights leads to wider optima and better generalization"
        (arXiv 1803.05407), section 3.2; `torch.optim.swa_utils.update_bn`, which takes the unbiased
        variance of each batch.
    """
    owner = "recompute_batch_normalization"
    checks.instance(owner, "model", model, keras.Model)
    layers = keras_contract.batch_normalizations(model)
    if not layers:
        return
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise TypeError(f"{owner}: the data are {checks.shown(data)}; they must be batches.")
    statistics, empty = keras_contract.moving_statistics(model), True
    with _cumulative(layers), _kept(model, statistics):
        for batch in data:
            model(batch[0] if isinstance(batch, tuple) else batch, training=True)
            empty = False
        if empty:
            raise ValueError(f"{owner}: there is no batch in the data.")
        for variable in statistics:
            if wrong := misfit(variable.numpy(), model_weights.UNBOUNDED):
                raise ValueError(
                    f"{owner}: '{variable.path}' {wrong}; give batches that have examples, all of "
                    "them finite."
                )


@contextlib.contextmanager
def _cumulative(layers: list[Any]) -> Iterator[None]:
    """Within the context, statistics are means over a layer's calls, each with the same weight."""
    before = [(layer, layer.momentum, layer.trainable) for layer in layers]
    for layer in layers:
        layer.trainable, layer.call = True, _counted(layer)
    try:
        yield
    finally:
        for layer, momentum, trainable in before:
            del layer.call  # that of the class is left
            layer.momentum, layer.trainable = momentum, trainable


def _counted(layer: Any) -> Callable[..., Any]:
    """Returns the layer's `call` with the momentum that makes its statistics cumulative."""
    call, calls = layer.call, itertools.count()

    def counted(*args: Any, **kwargs: Any) -> Any:
        before = next(calls)
        if not before:  # the first call replaces the statistics, but not a NaN
            for variable in (layer.moving_mean, layer.moving_variance):
                variable.assign(np.zeros(variable.shape))
        layer.momentum = before / (before + 1)
        return call(*args, **kwargs)

    return counted


@contextlib.contextmanager
def _kept(model: keras.Model, statistics: list[Any]) -> Iterator[None]:
    """Restores what a call of the model changes after the context; its statistics on an error."""
    new = {*map(id, statistics)}
    before = [(v, v.numpy()) for v in model.non_trainable_variables]
    put_back_tables = keras_contract.snapshot_of_tables(model)
    failed = True
    try:
        yield
        failed = False
    finally:
        put_back_tables()
        for variable, value in before:
            if failed or id(variable) not in new:
                variable.assign(value)
