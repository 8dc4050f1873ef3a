"""Optimizers for models of `tf_keras`, which is Keras 2 under its own name."""

import importlib
from typing import Any

from tf_graft.compose.of_keras import get
from tf_graft.core.types import Config, OptimizerLike


def legacy(optimizer: OptimizerLike | str | Config) -> Any:
    """Returns a `tf_keras.optimizers.Optimizer` that trains as an optimizer of this package does.

    Models of `tf_keras` accept only optimizers of `tf_keras`. Many packages still use such models,
    among them the Model Garden, TF-Agents and TensorFlow Recommenders. The result works in
    `model.compile` and `fit`, in loops with `tf.GradientTape`, under replicas, and in
    `tf.train.Checkpoint`. Everything that it does is done by `optimizer`, which is its attribute
    of that name.

    Args:
        optimizer: an optimizer of tf_graft or Keras that is not built, a name or a config.

    Raises:
        ImportError: `tf_keras` is not installed.
        TypeError, ValueError: there is no such optimizer.

    Example:
        ```python
        model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
        model.compile(tg.legacy(tg.LAMB(1e-3)), "mse")
        ```
    """
    given = get(optimizer)
    try:
        module = importlib.import_module("tf_graft.tf_keras_models.optimizer")
    except ModuleNotFoundError as error:
        if error.name != "tf_keras":
            raise
        raise ImportError(
            "legacy: tf_keras is not installed; pip install tf_keras, of TensorFlow's version."
        ) from None
    return module.Legacy(given)
