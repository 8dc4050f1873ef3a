"""What an optimizer's state is altered to, for the attacks on it."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

IDENTITY = "optimizer"
# What a square, a rate, a count or a scale never is; Keras' optimizers say nothing of their state.
NOT_NEGATIVE = {
    *("velocity", "velocity_hat", "accumulator", "accumulated_gradient", "accumulated_delta"),
    *("squared_norm", "magnitude_norm", "direction_norm", "learning_rate", "scale", "variance"),
}


def values_like(name: str, value: np.ndarray, of_keras: bool) -> Iterator[tuple[str, Any]]:
    """Everything that a value is altered to, None where it is left out.

    Args:
        name: of the variable, whose role is the last of its parts.
        value: its value.
        of_keras: whether the step is one of Keras' optimizers.
    """
    yield "left out", None
    yield "with one more dimension", value[None]
    yield "empty", value.reshape(-1)[:0]
    yield "text", np.asarray(["1"] * max(value.size, 1), "S1")[: value.size].reshape(value.shape)
    for dtype in ("bool", "int32", "int64", "float16", "float32", "float64", "complex64"):
        if value.dtype != dtype:
            yield f"as {dtype}", value.astype(dtype)
    if value.dtype == bool:
        return
    if np.issubdtype(value.dtype, np.integer):
        for number in (-5, 10**15, np.iinfo(np.int64).max, np.iinfo(np.int64).min):
            yield f"{number}", np.full_like(value, number)
        yield "NaN", np.full(value.shape, np.nan)
        yield "1e300", np.full(value.shape, 1e300)
        return
    for number in (np.nan, np.inf, -np.inf):
        yield f"{number}", np.full_like(value, number)
        if value.size > 1:
            one = value.copy()
            one.flat[-1] = number
            yield f"{number} in one place", one
    yield "1e300", np.full(value.shape, 1e300)
    if name.rpartition("/")[2] in NOT_NEGATIVE and not (of_keras and "learning_rate" not in name):
        yield "negative", np.full_like(value, -0.5)


def flipped(value: np.ndarray, bit: int) -> np.ndarray:
    """A value with one bit of another kind."""
    raw = bytearray(value.tobytes())
    raw[len(raw) // 2] ^= 1 if value.dtype == bool else 1 << bit % 8
    return np.frombuffer(bytes(raw), value.dtype).reshape(value.shape)


def without_checksums(store: dict[str, Any]) -> dict[str, Any]:
    """A store as someone would make it by hand: nothing in it says how it was, but its shapes."""
    said = json.loads(bytes(store[IDENTITY]))
    said.pop("checksums", None)
    return store | {IDENTITY: as_bytes(said)}


def as_bytes(said: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(said).encode(), np.uint8)


def identities(serialized: str) -> Iterator[tuple[str, bytes]]:
    """What an optimizer could be made to say of itself."""
    said = json.loads(serialized)
    first, *_ = said["shapes"]
    shapes = said["shapes"]
    altered: dict[str, Any] = {
        "another owner": said | {"owner": "Another"},
        "no owner": {"shapes": shapes},
        "a number for its owner": said | {"owner": 5},
        "no shapes": {"owner": said["owner"]},
        "a list of shapes": said | {"shapes": list(shapes.values())},
        "a number for its shapes": said | {"shapes": 7},
        "a number for a shape": said | {"shapes": shapes | {first: 3}},
        "text for a shape": said | {"shapes": shapes | {first: "()"}},
        "a fraction for a length": said | {"shapes": shapes | {first: [1.5]}},
        "a negative length": said | {"shapes": shapes | {first: [-1]}},
        "a huge length": said | {"shapes": shapes | {first: [10**15]}},
        "one variable more": said | {"shapes": shapes | {"another": [2]}},
        "one variable less": said | {"shapes": {k: v for k, v in shapes.items() if k != first}},
        "a list": [said],
        "a number": 5,
        "nothing": None,
    }
    for kind, description in altered.items():
        yield f"says {kind}", json.dumps(description).encode()
    whole = json.dumps(said).encode()
    yield "says half of it", whole[: len(whole) // 2]
    yield "says no text", b"\xff\x00\xfe"
    yield "says it within 100,000 brackets", b"[" * 100_000
    yield "is empty", b""


Graph = Any  # a TrackableObjectGraph of TensorFlow


def graphs() -> dict[str, Callable[[Graph, Any], None]]:
    """What is done to a checkpoint's graph of objects; called with it and the optimizer's node."""

    def children(node: Any) -> dict[str, Any]:
        return {child.local_name: child for child in node.children}

    def state(graph: Graph, node: Any) -> Any:
        return graph.nodes[children(node)["_state"].node_id]

    def roles(graph: Graph, node: Any) -> list[Any]:
        """The roles of the first path that has more than one, and otherwise of the first."""
        paths = [graph.nodes[path.node_id] for path in state(graph, node).children]
        return list(max(paths, key=lambda path: len(path.children)).children)

    def removed(holder: Any, name: str) -> None:
        kept = [child for child in holder.children if child.local_name != name]
        del holder.children[:]
        holder.children.extend(kept)

    def exchange_keys(graph: Graph, node: Any) -> None:
        first, *_, last = roles(graph, node)
        a, b = (graph.nodes[role.node_id].attributes[0] for role in (first, last))
        a.checkpoint_key, b.checkpoint_key = b.checkpoint_key, a.checkpoint_key

    def exchange_nodes(graph: Graph, node: Any) -> None:
        first, *_, last = roles(graph, node)
        first.node_id, last.node_id = last.node_id, first.node_id

    def one_for_another(graph: Graph, node: Any) -> None:
        first, *_, last = roles(graph, node)
        first.node_id = last.node_id

    def rename(graph: Graph, node: Any) -> None:
        roles(graph, node)[0].local_name = "another"

    def lead(to: int) -> Callable[[Graph, Any], None]:
        def change(graph: Graph, node: Any) -> None:
            roles(graph, node)[0].node_id = to

        return change

    def key(to: str) -> Callable[[Graph, Any], None]:
        def change(graph: Graph, node: Any) -> None:
            graph.nodes[roles(graph, node)[0].node_id].attributes[0].checkpoint_key = to

        return change

    def empty(graph: Graph, node: Any) -> None:
        del graph.nodes[roles(graph, node)[0].node_id].attributes[:]

    return {
        "without who it is": lambda graph, node: removed(node, "_identity"),
        "without slots": lambda graph, node: removed(node, "_state"),
        "without a variable": lambda g, n: removed(s := state(g, n), s.children[0].local_name),
        "without its count": lambda g, n: (
            removed(n, "_iterations"),
            removed(g.nodes[children(n)["_scalars"].node_id], "iteration"),
        ),
        "two keys exchanged": exchange_keys,
        "two nodes exchanged": exchange_nodes,
        "one node for two roles": one_for_another,
        "a role renamed": rename,
        "a role that leads to the root": lead(0),
        "a role that leads nowhere": lead(10**6),
        "a key that is not there": key("nowhere/.ATTRIBUTES/VARIABLE_VALUE"),
        "a key without a path": key(""),
        "a role without a value": empty,
    }
