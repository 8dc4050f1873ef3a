"""Saving and loading state by path and role, so that it fits or is refused."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import slots
from tf_graft.core.checks import CheckpointError

_OWNER = "optimizer"


class Identity(tf.train.experimental.PythonState):
    """Says in a checkpoint whose state it is; refuses another optimizer's when it is restored."""

    def __init__(self, owner: str):
        self.owner = owner

    def serialize(self) -> str:
        """What is written into the checkpoint."""
        return self.owner

    def deserialize(self, string_value: Any) -> None:
        """Called before anything of the optimizer is restored."""
        saved = tf.compat.as_str(string_value)
        if saved != self.owner:
            raise CheckpointError(
                f"{self.owner}: the checkpoint holds the state of {saved}; nothing was restored."
            )


def save(identity: Identity, built: bool, variables: dict[str, keras.Variable], store: Any) -> None:
    """Writes each variable under its path and role, and whose state it is."""
    store[_OWNER] = np.frombuffer(identity.serialize().encode(), np.uint8)
    if built:
        for name, variable in variables.items():
            store[_key(name)] = _numpy(variable)


def load(identity: Identity, built: bool, variables: dict[str, keras.Variable], store: Any) -> None:
    """Assigns every variable, or changes none.

    Raises:
        CheckpointError: the state is another optimizer's, or of other variables, or of another
            shape; or there is state and the optimizer is not built.
    """
    saved = {name: store[name] for name in store.keys()}  # noqa: SIM118 - a Keras store, no dict
    if _OWNER not in saved:
        raise CheckpointError(
            f"{identity.owner}: what was saved is not the state of a tf_graft optimizer."
        )
    identity.deserialize(bytes(np.asarray(saved.pop(_OWNER))))
    if not saved:
        return  # it was saved before it was built
    if not built:
        raise CheckpointError(
            f"{identity.owner}: it is not built, so its saved state has nowhere to go; call "
            "optimizer.build(model.trainable_variables) before loading."
        )
    values = {_key(name): variable for name, variable in variables.items()}
    different = sorted(set(saved) ^ set(values))
    if different:
        where = "saved" if different[0] in saved else "in this optimizer"
        raise CheckpointError(
            f"{identity.owner}: {len(different)} entries differ from the saved state; the first, "
            f"'{different[0]}', is only {where}. Nothing was loaded."
        )
    for name, variable in values.items():
        if tuple(saved[name].shape) != tuple(variable.shape):
            raise CheckpointError(
                f"{identity.owner}: '{name}' was saved with shape {tuple(saved[name].shape)} and "
                f"has shape {tuple(variable.shape)}. Nothing was loaded."
            )
    for name, variable in values.items():
        variable.assign(np.asarray(saved[name]))


def _key(name: str) -> str:
    return name.replace("/", "|")  # a slash would open a group in an HDF5 file


def _numpy(variable: keras.Variable) -> np.ndarray:
    layout = slots.layout_of(variable)
    if layout is None:
        return variable.numpy()
    whole = dtensor.Layout.replicated(layout.mesh, len(variable.shape))
    return dtensor.relayout(variable.value, whole).numpy()
