"""Saving and loading state by path and role, so that it fits or is refused."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import replicas
from tf_graft.core.checks import CheckpointError

Named = dict[str, keras.Variable]
Saved = dict[str, np.ndarray]
Shapes = dict[str, list[int]]
Restore = Callable[[dict[str, Named]], None]

IDENTITY = "optimizer"  # the key under which a store says whose state it holds


class Identity(tf.train.experimental.PythonState):
    """Says in a checkpoint whose state it is; refuses what does not fit, before it is restored.

    Args:
        signature: says whose state it is: the optimizer's class, and its children's.
        named: gives the optimizer's variables by path and role; none before it is built.
        hold_back: takes what a checkpoint holds of variables' state; gives what restores it into
            that state by path and role.
        by_path: gives that state.
    """

    def __init__(
        self,
        signature: Callable[[], str],
        named: Callable[[], Named],
        hold_back: Callable[[], Restore],
        by_path: Callable[[], dict[str, Named]],
    ):
        self._signature = signature
        self._named = named
        self._hold_back = hold_back
        self._by_path = by_path
        self._awaited: tuple[Shapes, Restore] | None = None

    @property
    def owner(self) -> str:
        """Whose state it is."""
        return self._signature()

    def serialize(self) -> str:
        """The owner, and the name and shape of every variable, in order, as JSON."""
        return json.dumps({"owner": self.owner, "shapes": _shapes(self._named())})

    def shapes_in(self, saved: Any) -> Shapes:
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
        restore = self._hold_back()
        self._awaited = self.shapes_in(string_value), restore
        if self._named():
            self.settle()

    def settle(self) -> None:
        """Restores or refuses, when the optimizer is built, what was read of a checkpoint."""
        awaited, self._awaited = self._awaited, None
        if awaited and awaited[0]:
            shapes, restore = awaited
            _refuse_differences(self.owner, shapes, _shapes(as_saved(shapes, self._named())))
            restore(self._by_path())


def refuse_clashes(
    owner: str,
    slots_of: Mapping[str, Mapping[str, Any]],
    engine_of: Mapping[str, Mapping[str, Any]],
    shared: Mapping[str, Any],
    scalars: Mapping[str, Any],
) -> None:
    """Refuses an optimizer of whose state two parts would go by one name.

    Args:
        owner: the optimizer's class.
        slots_of: for each path, its slots by role.
        engine_of: for each path, what the engine keeps for it, by role.
        shared: its shared slots by role.
        scalars: what the engine keeps once, by role.

    Raises:
        ValueError: names the class and the role.
    """
    uses = [("shared_slots", role, {*scalars, IDENTITY}) for role in shared]
    uses += [("slots", r, {*engine_of[p], *shared}) for p, roles in slots_of.items() for r in roles]
    for method, role, taken in uses:
        if role in taken:
            raise ValueError(
                f"{owner}.{method}: the role '{role}' is in use by the optimizer itself, and one "
                "of the two would be lost when it is saved; call it by another name."
            )
    both = (slots_of, engine_of)
    of_variables = [f"{p}/{r}" for given in both for p, roles in given.items() for r in roles]
    name, count = Counter([*shared, *scalars, *of_variables]).most_common(1)[0]
    if count > 1:
        raise ValueError(
            f"{owner}.build: two parts of its state would be saved as '{name}'; give the variable "
            "or the slot another name."
        )


def save(identity: Identity, named: Named, store: Any) -> None:
    """Writes each variable under its path and role, and whose state it is."""
    store[IDENTITY] = np.frombuffer(identity.serialize().encode(), np.uint8)
    for name, variable in named.items():
        store[_key(name)] = variable.numpy()


def load(identity: Identity, named: Named, saved: Saved) -> None:
    """Assigns every variable, or changes none.

    Raises:
        CheckpointError: the state is another optimizer's, of other variables or damaged.
    """
    owner = identity.owner
    shapes = identity.shapes_in(bytes(saved[IDENTITY]))
    named = as_saved(shapes, named)
    _refuse_differences(owner, shapes, _shapes(named))
    values = values_of(saved, named)
    for name, shape in shapes.items():
        if name not in values or list(values[name].shape) != shape:
            raise CheckpointError(
                f"{owner}: the saved state is damaged: '{_key(name)}' is missing or of another "
                "shape. Nothing was loaded."
            )
    assign(named, values)


def as_saved(names: Iterable[str], named: Named) -> Named:
    """The variables under the names by which they were saved.

    They are found by path. Keras names them anew when it makes a model from its config or a second
    one in a process: where the paths differ in this only, their order counts.
    """
    if set(names) != set(named) and renamed(list(names), list(named)):
        return dict(zip(names, named.values(), strict=True))
    return named


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


def assign(named: Named, values: Mapping[str, Any]) -> None:
    """Gives variables their values by name, on every replica; those without one are left alone."""
    for name, variable in named.items():
        if name in values:
            replicas.put_everywhere(variable, values[name])


def numpy(named: Named) -> Saved:
    """The present values, by name."""
    return {name: variable.numpy() for name, variable in named.items()}


def values_of(saved: Saved, names: Iterable[str]) -> Saved:
    """What a store holds under these names."""
    return {name: saved[key] for name, key in _keys_in(saved, names).items() if key in saved}


def _shapes(named: Named) -> Shapes:
    return {name: list(variable.shape) for name, variable in named.items()}


def _refuse_differences(owner: str, saved: Shapes, present: Shapes) -> None:
    different = [name for name in {**saved, **present} if saved.get(name) != present.get(name)]
    if not different:
        return
    first = different[0]
    raise CheckpointError(
        f"{owner}: {len(different)} entries differ from the saved state. The first, '{first}', was "
        f"{_described(saved, first)} and is {_described(present, first)}. Nothing was loaded."
    )


def _described(shapes: Shapes, name: str) -> str:
    return f"of shape {tuple(shapes[name])}" if name in shapes else "not there"


def _key(name: str) -> str:
    """A name as a store's key: a slash would open a group in an HDF5 file."""
    return name.replace("%", "%25").replace("|", "%7C").replace("/", "|")


def _keys_in(saved: Saved, names: Iterable[str]) -> dict[str, str]:
    """The keys of names in a store; version 0.1.0 left `|` and `%` in names as they were."""
    keys = {name: _key(name) for name in names}
    older = {name: name.replace("/", "|") for name in names}
    unclaimed = set(saved) - set(keys.values())
    return {n: older[n] if older[n] in unclaimed else key for n, key in keys.items()}
