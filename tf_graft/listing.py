"""The optimizers of this package by name, and by what their classes say of themselves."""

import fnmatch
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_graft.compose.of_keras import Wrapped
from tf_graft.compose.wrapper import Wrapper
from tf_graft.core import checks
from tf_graft.core.arguments import registry
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.spelling import plain, suggest
from tf_graft.matrices.axes import Axes
from tf_graft.matrices.matrix_optimizer import MatrixOptimizer

MATRIX: Any = tf.TensorSpec([4096, 4096])  # whose numbers are counted


def list_optimizers(pattern: str = "*", **facts: Any) -> dict[str, str]:
    """Returns the names of optimizers, as configs write them, with a summary of each.

    Facts choose among them. A fact that depends on the optimizer inside another one is not known of
    a wrapper, so that no wrapper is listed.

    Args:
        pattern: a shell pattern for names, in which case and underscores do not matter: `"ada*"`.
        **facts: any of these:

            - `slots`: how many numbers it keeps for each weight of a large matrix: 0, 1, 2, ...
            - `rows`: True if a row-sparse gradient gives exactly what the equal dense gradient
              gives, at the cost of the touched rows; False if rows that are not touched would move
            - `matrix`: whether it treats a layer's weights as a matrix
            - `kernel`: whether an in-place kernel of TensorFlow updates dense float32 variables
            - `keras`: whether it loads the state that Keras' optimizer of that name saved
            - `wrapper`: whether it contains other optimizers
            - `reference`: a text in the references of its docstring: `"Kingma"`

    Raises:
        TypeError: there is no such fact, or it is of another type.

    Example:
        >>> [*list_optimizers("ada*", rows=True)]
        ['adagrad']
        >>> [*list_optimizers(slots=1, keras=True)]
        ['adagrad', 'lion', 'rmsprop']
    """
    for name, value in facts.items():
        _check(name, value)
    return {
        name: summary
        for name, summary in sorted(registry.OURS.summaries().items())
        if fnmatch.fnmatchcase(plain(name), plain(pattern))
        and all(
            _is(FACTS[fact].of(registry.OURS.get(name)), value) for fact, value in facts.items()
        )
    }


def _is(known: object, value: object) -> bool:
    if isinstance(known, str) and isinstance(value, str):
        return value.lower() in known.lower()
    return known == value


def _check(name: str, value: object) -> None:
    if name not in FACTS:
        hint = suggest(name, FACTS)
        raise TypeError(f"list_optimizers({name}=...): there is no such fact; {hint}")
    kind = FACTS[name].kind
    if kind is bool:
        checks.boolean("list_optimizers", name, value)
    elif kind is int:
        checks.integer("list_optimizers", name, value, 0)
    elif not isinstance(value, str):
        raise TypeError(f"list_optimizers({name}={checks.shown(value)}): {name} must be a text.")


def _alone(cls: type) -> Optimizer | None:
    """Returns an optimizer of the class with its defaults; None if it contains others."""
    if not issubclass(cls, Optimizer) or _wraps(cls):
        return None
    needed = [p for p in inspect.signature(cls).parameters.values() if p.default is p.empty]
    return None if any(p.kind is not p.VAR_KEYWORD for p in needed) else cls(name="listed")


def _wraps(cls: type) -> bool:
    return issubclass(cls, Wrapper | Wrapped) and not issubclass(cls, MatrixOptimizer)


def _slots(cls: type) -> int | None:
    optimizer = _alone(cls)
    if optimizer is None:
        return None
    if isinstance(optimizer, MatrixOptimizer):
        declared = optimizer.slots_of(Axes.of(MATRIX.shape, inputs=(0,), outputs=(1,)))
    else:
        optimizer.rule.shapes = {"kernel": tuple(MATRIX.shape)}
        declared = optimizer.slots_for("kernel")
    sizes = [math.prod(slot.shape_for(MATRIX)) for slot in declared.values()]
    return round(sum(sizes) / math.prod(MATRIX.shape))


def _exact_on_rows(cls: type) -> bool | None:
    optimizer = _alone(cls)
    return None if optimizer is None else optimizer.rule.exact_on_rows("")


def _reference(cls: type) -> str:
    text = (inspect.getdoc(cls) or "").partition("Reference:\n")[2]
    return " ".join(text.split())


class Fact(NamedTuple):
    """Something that a class says of its optimizers.

    Args:
        kind: the type of its values.
        of: returns the value for a class; None if it depends on more than the class.
    """

    kind: type
    of: Callable[[Any], Any]


FACTS = {
    "slots": Fact(int, _slots),
    "rows": Fact(bool, _exact_on_rows),
    "matrix": Fact(bool, lambda cls: issubclass(cls, MatrixOptimizer)),
    "kernel": Fact(bool, lambda cls: getattr(cls, "kernel", None) is not None),
    "keras": Fact(bool, lambda cls: getattr(cls, "namesake", None) is not None),
    "wrapper": Fact(bool, _wraps),
    "reference": Fact(str, _reference),
}
