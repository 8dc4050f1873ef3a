"""Traces code once for all variables of a shape, where it would be the same operations for each.

The first call of an optimizer takes as long as its graph has nodes. Code that many variables share
has one node for each of them in this way. That of a branch which hardly ever runs is made ready
when it first runs.
"""

import collections
import contextlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from tf_graft.core import keras_contract
from tf_graft.core.tensors.memo import memoized
from tf_graft.core.types import VariableLike

MANY = 3  # variables of one shape: with fewer, a function costs more nodes than it saves
CALL, FUNCTION = 2, 30  # as many operations take as long as a call, and as a function
FREE = ("Placeholder", "Const", "Identity", "NoOp")  # what a function has beside its operations

_NONE: Mapping[tuple[int, ...], int] = types.MappingProxyType({})
_counts: ContextVar[Mapping[tuple[int, ...], int]] = ContextVar("counts", default=_NONE)


@contextlib.contextmanager
def among(parameters: Iterable[Any]) -> Iterator[None]:
    """A context in which variables share code: those of these parameters, which are on no mesh."""
    given = [] if tf.executing_eagerly() else parameters
    token = _counts.set(collections.Counter(tuple(p.variable.shape) for p in given))
    try:
        yield
    finally:
        _counts.reset(token)


def call_shared(
    run: Callable[..., Any],
    like: tf.Tensor,
    *others: Any,
    of: Callable[[], Sequence[Any]] | None = None,
) -> Any:
    """Returns `run(like, *others)`, with the code shared among variables of the shape of `like`.

    In a graph of one replica, not in XLA, the code is a function that is not inlined.

    Args:
        run: uses no variable but those that it gets.
        like: a tensor of the shape of a variable, or the variable.
        *others: tensors and variables, also in dicts.
        of: returns what the code of `run` depends on besides its arguments; None for `run` itself,
            if that is one object for all variables.
    """
    if not shares(like):
        return run(like, *others)
    shared = _shared(*([run] if of is None else of()))
    return shared(run, like, *others)


def shares(like: VariableLike | tf.Tensor) -> bool:
    """Returns whether variables of the shape of one, or of a tensor, share code here."""
    if tf.executing_eagerly() or _count(like) < MANY:
        return False
    return not (keras_contract.in_xla() or tf.distribute.has_strategy())


def _count(like: VariableLike | tf.Tensor) -> int:
    shape = tf.TensorShape(like.shape)
    return 0 if shape.rank is None else _counts.get().get(tuple(shape), 0)


class _Shared:
    """Code that is traced once for each combination of shapes, where that pays."""

    def __init__(self, *of: Any):
        self._traced: dict[object, Any] = {}
        self._length: int | None = None  # operations

    def __call__(self, run: Callable[..., Any], *given: Any) -> Any:
        if not self._pays(given[0]):
            return run(*given)
        key = tuple((str(x.shape), x.dtype) for x in tf.nest.flatten(given))
        if key not in self._traced:
            function = tf.function(
                run, autograph=False, experimental_attributes={"_noinline": True}
            ).get_concrete_function(*given)
            operations = (x for x in function.graph.get_operations() if x.type not in FREE)
            self._traced[key], self._length = function, sum(1 for _ in operations)
            return self(run, *given)  # now the length is known
        return self._traced[key](*given)

    def _pays(self, like: Any) -> bool:
        if self._length is None:
            return True
        return _count(like) * (self._length - CALL) > FUNCTION


_shared = memoized(_Shared)
