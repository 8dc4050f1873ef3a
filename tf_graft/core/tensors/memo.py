"""Computes tensors that are the same for all variables only once in each update."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import tensorflow as tf

F = TypeVar("F", bound=Callable[..., Any])
PLAIN = (int, float, str, tuple, tf.DType, type(None))  # `tf.is_tensor` takes long to tell

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
    """Makes a function return the same tensor for the same arguments within `for_one_update`.

    Args:
        compute: a function of tensors, which count as the same if they are one object, and of plain
            values, which count as the same if their texts are.
    """

    @functools.wraps(compute)
    def computed(*args: Any) -> Any:
        known = _known.get()
        if known is None:
            return compute(*args)
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        key = (compute, id(graph), *map(_key, args))
        if key not in known:  # objects compared by `id` are kept, so that no other gets their id
            known[key] = compute(*args), graph, args
        return known[key][0]

    return computed  # type: ignore[return-value]


def _key(x: object) -> object:
    """Returns what tells an argument from others: tensors and schedules are told by identity."""
    if isinstance(x, PLAIN):
        return repr(x)
    return id(x) if tf.is_tensor(x) or callable(x) else repr(x)
