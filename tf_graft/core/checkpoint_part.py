"""What a checkpoint of TensorFlow that is being restored holds of an optimizer.

A checkpoint is a graph of objects: each names those that it holds, and a variable says under which
key its value is kept. The optimizer reads its part for itself, so that all of it is looked through
before anything is changed.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_graft.core import keras_contract
from tf_graft.core.checks import CheckpointError
from tf_graft.core.identity import damaged

IDENTITY = "_identity"  # the attribute in which an optimizer keeps who it is
LISTED = "_variables"  # the one in which an optimizer of Keras lists its variables

# What comes of a graph of objects that is not one that TensorFlow writes.
UNREADABLE = (tf.errors.OpError, IndexError, KeyError, RuntimeError, ValueError)


class Entry(NamedTuple):
    """A value in a checkpoint, which is read when it is made an array."""

    reader: Any
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.reader.get_tensor(self.key))


class CheckpointPart:
    """What a checkpoint holds of one trackable, and of all that is in it.

    Args:
        trackable: what is being restored.
        position: where one of those that it holds stands in the checkpoint.

    Raises:
        UNREADABLE: here and in all methods, where the checkpoint is damaged.
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
        """Whether there is something of one of those names."""
        return not self._held[self._node].keys().isdisjoint(names)

    def identity(self) -> Any:
        """What the saved optimizer says of itself; None where it is none of this package."""
        node = self._held[self._node].get(IDENTITY)
        if node is None:
            return None
        return self._reader.get_tensor(self._nodes[node].attributes[0].checkpoint_key)

    def values(self, named: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Entry]:
        """What was saved for variables, by their names here; TensorFlow is left nothing to restore.

        Args:
            named: the variables.
            paths: for the path of a variable of the model, the one under which it was saved.
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
        """The name and the values of an optimizer of Keras'; None where it is not one."""
        listed = self._held[self._node].get(LISTED)
        if listed is None:
            return None
        nodes = self._held[listed]
        author = self._nodes[nodes["0"]].attributes[0].full_name.partition("/")[0]
        return author, {name: np.asarray(self._entry(node)) for name, node in nodes.items()}

    def settle_listed(self, taken: bool) -> None:
        """Leaves TensorFlow nothing to restore of an optimizer of Keras'.

        Args:
            taken: whether its variables have been; otherwise TensorFlow says that they have not.
        """
        held = self._held[self._node]
        for node in (*held.values(), *(self._held[held[LISTED]].values() if taken else ())):
            keras_contract.take_for_restored(self._checkpoint, node, self._trackable)

    def _found(self, paths: Mapping[str, str]) -> Iterable[tuple[Any, int]]:
        """Each trackable below and its node in the checkpoint, by the names of what holds it.

        TensorFlow is left the identity: it tells it when all that is to be restored is known.
        """
        found = [("", self._trackable, self._node)]
        seen = {id(self._trackable)}
        for holder, trackable, node in found:  # which grows
            for name, child in keras_contract.held_by(trackable).items():
                saved_name = paths.get(name, name) if holder == "_state" else name
                saved = self._held[node].get(saved_name)
                first = trackable is self._trackable and name == IDENTITY
                if saved is not None and id(child) not in seen and not first:
                    seen.add(id(child))
                    found.append((name, child, saved))
        return [(trackable, node) for _, trackable, node in found[1:]]

    def _entry(self, node: int) -> Entry:
        """A variable's value: under the key that is its path in the graph."""
        (key,) = [
            a.checkpoint_key for a in self._nodes[node].attributes if a.name == "VARIABLE_VALUE"
        ]
        at = 0
        for part in key.partition("/.ATTRIBUTES/")[0].split("/"):
            at = self._by_key[at][part]
        if at != node:
            raise KeyError(key)
        dtype = np.dtype(self._checkpoint.dtype_map[key].as_numpy_dtype)
        return Entry(self._reader, key, tuple(self._checkpoint.shape_map[key]), dtype)


@contextlib.contextmanager
def readable(owner: str) -> Iterator[None]:
    """The context in which a checkpoint is read.

    Args:
        owner: the optimizer.

    Raises:
        CheckpointError: it cannot be.
    """
    try:
        yield
    except CheckpointError:
        raise
    except UNREADABLE as error:
        raise damaged(owner, f"it cannot be read ({error!r})") from None


def _in_key(name: str) -> str:
    """As TensorFlow writes a name into a key."""
    return name.replace(".", "..").replace("/", ".S")
