"""Computes tensors that are the same for all variables only once in each update."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import tensorflow as tf

F = TypeVar("F", bound=Callable[..., Any])
PLAIN = (int, float, str, tuple, dict, tf.DType, type(None))

_known: ContextVar[dict[Any, Any] | None] = ContextVar("known", default=None)


@contextlib.contextmanager
def for_one_update() -> Iterator[None]:
    """A context in which `memoized` functions remember their results."""
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def memoized(compute: F) -> F:
    """Makes a function return the same tensor for the same arguments within one update.

    Args:
        compute: a function of plain values, which count as the same if their texts are, and of
            tensors and other objects, which count as the same if they are one object.
    """

    @functools.wraps(compute)
    def computed(*args: Any) -> Any:
        known = _known.get()
        if known is None:
            return compute(*args)
        graph = None if tf.executing_eagerly() else _home(args)
        key = (compute, id(graph), *map(_key, args))
        if key not in known:  # objects compared by `id` are kept, so that no other gets their id
            with _in(graph):
                known[key] = compute(*args), graph, args
        return known[key][0]

    return computed  # type: ignore[return-value]


def _home(args: Sequence[Any]) -> tf.Graph:
    """Returns the graph of the tensors among arguments, which may be around the present one.

    A function inside uses the result from there, and does not compute it again in each call.
    """
    graphs = {id(x.graph): x.graph for x in args if tf.is_symbolic_tensor(x)}
    (graph,) = graphs.values() if len(graphs) == 1 else [tf.compat.v1.get_default_graph()]
    return graph


def _in(graph: tf.Graph | None) -> contextlib.AbstractContextManager[Any]:
    if graph is None or graph is tf.compat.v1.get_default_graph():
        return contextlib.nullcontext()
    within: contextlib.AbstractContextManager[Any] = graph.as_default()
    return within


def _key(x: object) -> object:
    """Returns what tells an argument from others."""
    return repr(x) if isinstance(x, PLAIN) else id(x)
