"""Variables: the `tf.Variable` behind a `keras.Variable`, and its path."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tf_graft.core.types import TensorLike, VariableLike

# The class of a variable that is divided among parameter servers.
ShardedVariable = tf.__internal__.distribute.ShardedVariable


class OwnVariable(keras.Variable):
    """An optimizer's variable, which converts to a number even with copies on several replicas.

    Args:
        within: the least and the largest value that it can have.
        **arguments: arguments of `keras.Variable`.
    """

    within: tuple[float, float] = (-math.inf, math.inf)

    def __init__(self, *, within: tuple[float, float] = within, **arguments: object):
        self.within = within
        super().__init__(**arguments)

    def __int__(self) -> int:
        return super().__int__() if self.ndim else int(self.numpy())

    def __float__(self) -> float:
        return super().__float__() if self.ndim else float(self.numpy())

    def __repr__(self) -> str:
        """Returns Keras' text; Keras fails or lacks the value in the scope of a strategy."""
        has_copies = isinstance(self._value, tf.distribute.DistributedValues)
        if not has_copies or not tf.executing_eagerly():
            return super().__repr__()
        what = f"path={self.path}, shape={tuple(self.shape)}, dtype={self.dtype}"
        return f"<Variable {what}, value={self.numpy()}>"


class StoredVariable(OwnVariable):
    """A `keras.Variable` on storage that a function makes.

    Args:
        store: called with the initializer, shape, dtype and name.
        **arguments: arguments of `keras.Variable`.
    """

    def __init__(self, *, store: Callable[..., tf.Variable], **arguments: Any):
        self._store = store
        super().__init__(**arguments)

    def _initialize_with_initializer(self, initializer: Callable[..., tf.Tensor]) -> None:
        self._value = self._store(initializer, self._shape, self._dtype, self.name)


def storage(variable: VariableLike) -> tf.Variable:
    """Returns the `tf.Variable` behind a `keras.Variable`; anything else as it is."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def set_storage(variable: keras.Variable, storage: tf.Variable | keras.Variable) -> None:
    """Gives a variable new storage, or another variable's: on a mesh, or under a strategy."""
    variable._value = storage._value if isinstance(storage, keras.Variable) else storage


def set_ordinary_storage(variable: keras.Variable, value: TensorLike) -> None:
    """Gives a variable an ordinary `tf.Variable` with that value as its storage.

    A tape watches it if it watched the former storage, even if the variable is frozen now.
    """
    trainable, variable.trainable = variable.trainable, variable.value.trainable
    variable._initialize(value)
    variable.trainable = trainable


def rename(variable: keras.Variable, path: str) -> None:
    """Gives a variable another path."""
    variable._path = path


@contextlib.contextmanager
def named(variables: dict[str, keras.Variable]) -> Iterator[None]:
    """A context in which variables have the paths that they are listed under."""
    before = {path: variable.path for path, variable in variables.items()}
    for path, variable in variables.items():
        rename(variable, path)
    try:
        yield
    finally:
        for path, variable in variables.items():
            rename(variable, before[path])
