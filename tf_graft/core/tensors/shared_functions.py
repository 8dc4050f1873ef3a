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
from typing import Any, TypeAlias

import tensorflow as tf

from tf_graft.core import keras_contract
from tf_graft.core.tensors import scratch_variables
from tf_graft.core.tensors.memo import memoized
from tf_graft.core.types import VariableLike

MANY = 3  # variables of one shape: with fewer, a function costs more nodes than it saves
CALL, FUNCTION = 2, 30  # as many operations take as long as a call, and as a function
FREE = ("Placeholder", "Const", "Identity", "NoOp")  # what a function has beside its operations

_Kind: TypeAlias = tuple[tf.DType, tf.TensorShape]  # of a scratch variable

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
    """Code that is traced once for each combination of shapes, where that pays.

    Scratch variables of the code are those of its callers: each call needs others.
    """

    def __init__(self, *of: Any):
        self._traced: dict[object, tuple[Any, list[_Kind]]] = {}
        self._length: int | None = None  # operations
        self._scratch = 0  # variables like the first argument

    def __call__(self, run: Callable[..., Any], *given: Any) -> Any:
        if not self._pays(given[0]):
            return run(*given)
        key = tuple((str(x.shape), x.dtype) for x in tf.nest.flatten(given))
        if key not in self._traced:
            likely = [(given[0].dtype, given[0].shape)] * self._scratch
            function, kinds = _traced(run, given, likely)
            if kinds != likely:
                function, _ = _traced(run, given, kinds)
            self._scratch = len(kinds)
            operations = (x for x in function.graph.get_operations() if x.type not in FREE)
            self._traced[key], self._length = (function, kinds), sum(1 for _ in operations)
            return self(run, *given)  # now the length is known
        function, kinds = self._traced[key]
        return function([scratch_variables.handle(*kind) for kind in kinds], *given)

    def _pays(self, like: Any) -> bool:
        if self._length is None:
            return True
        return _count(like) * (self._length - CALL) > FUNCTION


def _traced(
    run: Callable[..., Any], given: tuple[Any, ...], kinds: list[_Kind]
) -> tuple[Any, list[_Kind]]:
    """Returns a function of scratch handles and of arguments, and the kinds that it asked for.

    Args:
        run: the code.
        given: its arguments.
        kinds: the kinds of the handles, in order; the code creates others itself.
    """
    asked: list[_Kind] = []

    def function(handles: list[tf.Tensor], *given: Any) -> Any:
        rest = iter(handles)

        def source(*kind: Any) -> tf.Tensor:
            asked.append(kind)
            lent = next(rest, None)
            return scratch_variables.create(*kind) if lent is None else lent

        with scratch_variables.handles_from(source):
            return run(*given)

    made = tf.function(function, autograph=False, experimental_attributes={"_noinline": True})
    handles = [tf.TensorSpec([], tf.resource)] * len(kinds)
    return made.get_concrete_function(handles, *given), asked


_shared = memoized(_Shared)
