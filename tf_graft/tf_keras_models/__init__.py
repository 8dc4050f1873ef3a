"""Optimizers for models of `tf_keras`, which is Keras 2 under its own name."""

import importlib
from typing import Any

import tensorflow as tf

from tf_graft.compose.of_keras import wrap
from tf_graft.core.nesting import nested
from tf_graft.core.types import Config, OptimizerLike
from tf_graft.matrices.matrix_optimizer import MatrixOptimizer


def legacy(optimizer: OptimizerLike | str | Config) -> Any:
    """Returns a `tf_keras.optimizers.Optimizer` that trains as an optimizer of this package does.

    Models of `tf_keras` accept only optimizers of `tf_keras`. Many packages still use such models,
    among them the Model Garden, TF-Agents and TensorFlow Recommenders. The result works in
    `model.compile` and `fit`, in loops with `tf.GradientTape`, under replicas, in `.keras` and
    `.h5` files, and in `tf.train.Checkpoint`. The given optimizer, its attribute `optimizer`, does
    all of the work.

    Args:
        optimizer: an optimizer of tf_graft or Keras that is not built, a name or a config. A
            schedule in it must be one of `keras.optimizers.schedules` or `tf_graft.schedules`.

    Raises:
        ImportError: `tf_keras` is not installed.
        TypeError: the argument is not an optimizer, or cannot be wrapped; or it is an optimizer of
            matrices such as `Muon`, which finds them in the layers of Keras 3.
        ValueError: the name is unknown, or the optimizer has been built.

    Example:
        ```python
        model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
        model.compile(tg.legacy(tg.LAMB(1e-3)), "mse")
        ```
    """
    given = _unbuilt(optimizer)
    try:
        module = importlib.import_module("tf_graft.tf_keras_models.optimizer")
    except ModuleNotFoundError as error:
        if error.name != "tf_keras":
            raise
        version = ".".join(tf.__version__.split(".")[:2])
        raise ImportError(
            f"legacy: tf_keras is not installed; run `pip install 'tf_keras=={version}.*'`."
        ) from None
    return module.Legacy(given)


def _unbuilt(identifier: OptimizerLike | str | Config) -> Any:
    optimizer = wrap(identifier)
    if optimizer.built:
        name = type(optimizer).__name__
        raise ValueError(f"legacy({name}): it is already built; give a new optimizer.")
    for each in nested(optimizer):
        if isinstance(each, MatrixOptimizer):
            raise TypeError(
                f"legacy({optimizer.rule.called}): {each.rule.called} finds the matrices in the "
                "layers of a model of Keras 3, which a model of tf_keras does not have; give "
                "another optimizer, such as tf_graft.AdamW."
            )
    return optimizer
