"""Writes into files which optimizer their state belongs to, and checks it."""

import json
from collections.abc import Callable

import keras
import tensorflow as tf

from tf_graft.core.checks import shown
from tf_graft.core.errors import CheckpointError
from tf_graft.core.types import Config

Named = dict[str, keras.Variable]
Shapes = dict[str, list[int]]


class Identity(tf.train.experimental.PythonState):
    """Identifies an optimizer's state in files, and refuses the state of another.

    Args:
        signature: returns the class names of the optimizer and of its children.
        named: returns the variables that a checkpoint of TensorFlow is to contain, by path and
            role; none before the optimizer is built.
        restore: loads the state that the optimizer has read from a checkpoint and checked.
    """

    def __init__(
        self,
        signature: Callable[[], str],
        named: Callable[[], Named],
        restore: Callable[[], None],
    ):
        self._signature = signature
        self._named = named
        self._restore = restore

    @property
    def owner(self) -> str:
        """The optimizer that the state belongs to."""
        return self._signature()

    def serialize(self) -> str:
        """Returns what `description` says of the present state, as JSON; TensorFlow calls it."""
        return json.dumps(self.description(self._named()))

    def description(self, named: Named) -> Config:
        """Returns the owner, and the name and shape of every variable, in order."""
        return {"owner": self.owner, "shapes": shapes_of(named)}

    def described(self, saved: str | bytes) -> Config:
        """Returns the contents of a text that `serialize` or `save` wrote.

        Raises:
            CheckpointError: neither wrote the text, or it belongs to another optimizer.
        """
        try:
            description: Config = json.loads(tf.compat.as_str(saved))
            owner, shapes = description["owner"], description["shapes"]
            lengths = [length for shape in shapes.values() for length in shape]
            if not all(type(length) is int and length >= 0 for length in lengths):
                raise TypeError(f"{lengths} are no lengths")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise damaged(self.owner, f"it does not say whose it is ({shown(error)})") from None
        if owner != self.owner:
            raise CheckpointError(
                f"{self.owner}: what was saved is the state of {owner}; nothing was loaded."
            )
        return description

    def deserialize(self, string_value: object) -> None:
        """Loads the state; TensorFlow calls it when it knows all that it is about to restore."""
        self._restore()


def damaged(owner: str, what: str) -> CheckpointError:
    """Returns the error for state that no optimizer can have written."""
    return unfit(owner, f"the saved state is damaged: {what}")


def unfit(owner: str, what: str) -> CheckpointError:
    """Returns the error for state that is refused."""
    return CheckpointError(f"{owner}: {what}. Nothing was loaded.")


def shapes_of(named: Named) -> Shapes:
    """Returns the shapes of variables, by name."""
    return {name: list(variable.shape) for name, variable in named.items()}
