"""Saving and loading state by path and role, so that it fits or is refused."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core.checks import CheckpointError

Named = dict[str, keras.Variable]

_IDENTITY = "optimizer"


class Identity(tf.train.experimental.PythonState):
    """Says in a checkpoint whose state it is; refuses what does not fit, before it is restored.

    Args:
        signature: says whose state it is: the optimizer's class, and its children's.
        named: gives the optimizer's variables by path and role; none before it is built.
    """

    def __init__(self, signature: Callable[[], str], named: Callable[[], Named]):
        self._signature = signature
        self._named = named
        self._awaited: dict[str, list[int]] = {}

    @property
    def owner(self) -> str:
        """Whose state it is."""
        return self._signature()

    def serialize(self) -> str:
        """The owner, and the name and shape of every variable, in order, as JSON."""
        shapes = {name: list(variable.shape) for name, variable in self._named().items()}
        return json.dumps({"owner": self.owner, "shapes": shapes})

    def shapes_in(self, saved: Any) -> dict[str, list[int]]:
        """The names and shapes that were saved.

        Raises:
            CheckpointError: it is not what `serialize` wrote, or another optimizer's.
        """
        try:
            description = json.loads(tf.compat.as_str(saved))
            owner, shapes = description["owner"], dict(description["shapes"])
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{self.owner}: the saved state is damaged: {error}.") from None
        if owner != self.owner:
            raise CheckpointError(
                f"{self.owner}: what was saved is the state of {owner}; nothing was loaded."
            )
        return shapes

    def deserialize(self, string_value: Any) -> None:
        """Called by TensorFlow before it restores any tensor."""
        self._awaited = self.shapes_in(string_value)
        if self._named():
            self.check_awaited()

    def check_awaited(self) -> None:
        """Refuses, when the optimizer is built, a checkpoint that was restored before."""
        awaited, self._awaited = self._awaited, {}
        if awaited:
            present = {name: list(variable.shape) for name, variable in self._named().items()}
            _refuse_differences(self.owner, awaited, present)


def save(identity: Identity, named: Named, store: Any) -> None:
    """Writes each variable under its path and role, and whose state it is."""
    store[_IDENTITY] = np.frombuffer(identity.serialize().encode(), np.uint8)
    for name, variable in named.items():
        store[_key(name)] = variable.numpy()


def load(identity: Identity, named: Named, store: Any) -> None:
    """Assigns every variable, or changes none.

    Variables are found by path. Keras names them anew when it makes a model from its config or a
    second one in a process: where the paths differ in this only, their order counts.

    Raises:
        CheckpointError: the state is another optimizer's, of other variables or damaged, or there
            is state and the optimizer is not built.
    """
    owner = identity.owner
    saved = {name: np.asarray(store[name]) for name in store.keys()}  # noqa: SIM118 - no dict
    if _IDENTITY not in saved:
        raise CheckpointError(f"{owner}: what was saved is not the state of a tf_graft optimizer.")
    shapes = identity.shapes_in(bytes(saved.pop(_IDENTITY)))
    if not shapes:
        return  # it was saved before it was built
    if not named:
        raise CheckpointError(
            f"{owner}: it is not built, so its saved state has nowhere to go; call "
            "optimizer.build(model.trainable_variables) before loading."
        )
    if set(shapes) != set(named) and renamed(list(shapes), list(named)):
        named = dict(zip(shapes, named.values(), strict=True))
    _refuse_differences(owner, shapes, {name: list(v.shape) for name, v in named.items()})
    for name, shape in shapes.items():
        if _key(name) not in saved or list(saved[_key(name)].shape) != shape:
            raise CheckpointError(
                f"{owner}: the saved state is damaged: '{_key(name)}' is missing or of another "
                "shape. Nothing was loaded."
            )
    for name, variable in named.items():
        variable.assign(saved[_key(name)])


def renamed(saved: Sequence[str], present: Sequence[str]) -> bool:
    """Whether the names are the same, in the same order, but for enclosing or numbered ones.

    Keras numbers layers anew for a second model in a process: `dense/kernel`, `dense_4/kernel`.
    """

    def parts(name: str) -> list[str]:
        return [re.sub(r"_\d+$", "", part) for part in reversed(name.split("/"))]

    return len(saved) == len(present) and all(
        all(x == y for x, y in zip(parts(a), parts(b), strict=False))
        for a, b in zip(saved, present, strict=True)
    )


def _refuse_differences(
    owner: str, saved: dict[str, list[int]], present: dict[str, list[int]]
) -> None:
    different = [name for name in {**saved, **present} if saved.get(name) != present.get(name)]
    if not different:
        return
    first = different[0]
    raise CheckpointError(
        f"{owner}: {len(different)} entries differ from the saved state. The first, '{first}', was "
        f"{_described(saved, first)} and is {_described(present, first)}. Nothing was loaded."
    )


def _described(shapes: dict[str, list[int]], name: str) -> str:
    return f"of shape {tuple(shapes[name])}" if name in shapes else "not there"


def _key(name: str) -> str:
    return name.replace("/", "|")  # a slash would open a group in an HDF5 file
