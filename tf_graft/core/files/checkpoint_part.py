"""An optimizer's part of a TensorFlow checkpoint that is being restored.

A checkpoint is a graph of objects: each object names its children, and a variable has the key of
its value. The optimizer reads its part itself, so that it checks all of it before any change.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_graft.core import keras_contract
from tf_graft.core.errors import CheckpointError
from tf_graft.core.files.identity import Named, damaged
from tf_graft.core.types import Entry

IDENTITY = "_identity"  # the attribute that holds an optimizer's `Identity`
LISTED = "_variables"  # the attribute in which a Keras optimizer lists its variables

# The errors of reading a graph of objects that TensorFlow did not write.
UNREADABLE = (tf.errors.OpError, IndexError, KeyError, RuntimeError, ValueError)


class CheckpointPart:
    """The part of a checkpoint that belongs to a trackable and its contents.

    Args:
        trackable: the object that is being restored.
        position: the position in the checkpoint of one of its children.

    Raises:
        UNREADABLE: the checkpoint is damaged; all methods raise this, too.
    """

    def __init__(self, trackable: Any, position: Any):
        self._trackable = trackable
        self._checkpoint = position.checkpoint
        self._nodes = self._checkpoint.object_graph_proto.nodes
        self._held = [{c.local_name: c.node_id for c in node.children} for node in self._nodes]
        self._by_key = [{_in_key(name): node for name, node in held.items()} for held in self._held]
        (self._node, *_) = [
            node
            for node, known in self._checkpoint.object_by_proto_id.items()
            if known is trackable and position.proto_id in self._held[node].values()
        ]
        self._reader = tf.train.load_checkpoint(self._checkpoint.save_path_string)

    def holds(self, *names: str) -> bool:
        """Returns whether the trackable has a child of one of these names in the checkpoint."""
        return not self._held[self._node].keys().isdisjoint(names)

    def identity(self) -> bytes | None:
        """Returns what `Identity` wrote; None if the saved optimizer is not of this package."""
        node = self._held[self._node].get(IDENTITY)
        if node is None:
            return None
        return self._reader.get_tensor(self._nodes[node].attributes[0].checkpoint_key)

    def values(self, named: Named, paths: Mapping[str, str]) -> dict[str, Entry]:
        """Returns the saved values of variables by their present names, and marks them as restored.

        Args:
            named: the variables.
            paths: maps the path of each model variable to the one under which it was saved.
        """
        nodes = {}
        for found, node in self._found(paths):
            keras_contract.take_for_restored(self._checkpoint, node, found)
            nodes[id(found)] = node
        at = {name: nodes[id(v)] for name, v in named.items() if id(v) in nodes}
        if len(set(at.values())) < len(at):
            raise KeyError("one value for two variables")
        return {name: self._entry(node) for name, node in at.items()}

    def of_keras(self) -> tuple[str, dict[str, np.ndarray]] | None:
        """Returns the name and values of a Keras optimizer; None if none was saved."""
        listed = self._held[self._node].get(LISTED)
        if listed is None:
            return None
        nodes = self._held[listed]
        author = self._nodes[nodes["0"]].attributes[0].full_name.partition("/")[0]
        return author, {name: np.asarray(self._entry(node)) for name, node in nodes.items()}

    def settle_listed(self, taken: bool) -> None:
        """Marks a Keras optimizer in the checkpoint as restored.

        Args:
            taken: whether its variables were restored; if not, TensorFlow reports them as unused.
        """
        held = self._held[self._node]
        for node in (*held.values(), *(self._held[held[LISTED]].values() if taken else ())):
            keras_contract.take_for_restored(self._checkpoint, node, self._trackable)

    def _found(self, paths: Mapping[str, str]) -> Iterable[tuple[Any, int]]:
        """Returns each trackable below with its node in the checkpoint, matched by child names.

        The identity is left out: TensorFlow handles and notifies it when all that TensorFlow will
        restore is known.
        """
        found = [("", self._trackable, self._node)]
        seen = {id(self._trackable)}
        for holder, trackable, node in found:  # grows in the loop
            for name, child in keras_contract.held_by(trackable).items():
                saved_name = paths.get(name, name) if holder == "_state" else name
                saved = self._held[node].get(saved_name)
                first = trackable is self._trackable and name == IDENTITY
                if saved is not None and id(child) not in seen and not first:
                    seen.add(id(child))
                    found.append((name, child, saved))
        return [(trackable, node) for _, trackable, node in found[1:]]

    def _entry(self, node: int) -> Entry:
        """Returns a variable's value; its key must be the variable's path in the graph."""
        (key,) = [
            a.checkpoint_key for a in self._nodes[node].attributes if a.name == "VARIABLE_VALUE"
        ]
        at = 0
        for part in key.partition("/.ATTRIBUTES/")[0].split("/"):
            at = self._by_key[at][part]
        if at != node:
            raise KeyError(key)
        dtype = np.dtype(self._checkpoint.dtype_map[key].as_numpy_dtype)
        shape = tuple(self._checkpoint.shape_map[key])
        return Entry(lambda: self._reader.get_tensor(key), shape, dtype)


def missing(trackable: Any, named: Named) -> list[str]:
    """Returns the names of the variables that TensorFlow would not save with an object."""
    found = [trackable]
    seen = {id(trackable)}
    for holder in found:  # grows in the loop
        for child in keras_contract.held_by(holder).values():
            if id(child) not in seen:
                seen.add(id(child))
                found.append(child)
    return [name for name, variable in named.items() if id(variable) not in seen]


@contextlib.contextmanager
def readable(owner: str) -> Iterator[None]:
    """A context in which to read a checkpoint.

    Args:
        owner: the optimizer.

    Raises:
        CheckpointError: the checkpoint cannot be read.
    """
    try:
        yield
    except CheckpointError:
        raise
    except UNREADABLE as error:
        said = error.message if isinstance(error, tf.errors.OpError) else repr(error)
        reason = said.partition("\n")[0]
        raise damaged(owner, f"it cannot be read ({reason})") from None


def _in_key(name: str) -> str:
    """Returns a name as TensorFlow writes it into a key."""
    return name.replace(".", "..").replace("/", ".S")
