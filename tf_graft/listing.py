"""The optimizers of this package by name, and by what their classes say of themselves."""

import fnmatch
import inspect
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_graft.compose.of_keras import Wrapped
from tf_graft.compose.wrapper import Wrapper
from tf_graft.core import checks
from tf_graft.core.arguments import registry
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.spelling import plain, suggest
from tf_graft.core.state.slots import Slot
from tf_graft.matrices.axes import Axes
from tf_graft.matrices.matrix_optimizer import MatrixOptimizer

MATRIX: Any = tf.TensorSpec([4096, 4096])  # whose numbers are counted
ROWS, WIDTH = 100_000, 64  # of a table, whose bytes are counted


def list_optimizers(pattern: str = "*", **facts: Any) -> dict[str, str]:
    """Returns the names of optimizers, as configs write them, with a summary of each.

    Each fact restricts the list. If a fact depends on the optimizer inside a wrapper, it is unknown
    for the wrapper, and the wrapper is not listed.

    Args:
        pattern: a shell pattern for names, in which case and underscores do not matter: `"ada*"`.
        **facts: any of these:

            - `slots`: how many numbers it keeps for each weight of a large matrix: 0, 1, 2, ...
            - `row_bytes`: how many bytes of state it keeps for each row of a float32 embedding:
              `"0"`, `"4"`, `"8 * columns"`, `"4 * columns + 4"`, ...; state that is not of one row
              does not count
            - `rows`: True if a row-sparse gradient gives exactly what the equal dense gradient
              gives, at the cost of the touched rows; False if rows that are not touched would move
            - `matrix`: whether it treats a layer's weights as a matrix
            - `kernel`: whether an in-place kernel of TensorFlow updates dense float32 variables
            - `keras`: whether it loads the state that Keras' optimizer of that name saved
            - `wrapper`: whether it contains other optimizers
            - `reference`: a text in the references of its docstring: `"Kingma"`

    Raises:
        TypeError: there is no such fact, or it is of another type.
        ValueError: `slots` is below 0.

    Example:
        >>> [*list_optimizers("ada*", rows=True)]
        ['adagrad']
        >>> [*list_optimizers(slots=1, keras=True)]
        ['adagrad', 'lion', 'rmsprop']
        >>> [*list_optimizers(row_bytes="4")]
        ['adafactor', 'row_wise_adagrad']
    """
    for name, value in facts.items():
        _check(name, value)
    return {
        name: summary
        for name, summary in sorted(registry.OURS.summaries().items())
        if fnmatch.fnmatchcase(plain(name), plain(pattern))
        and all(
            FACTS[fact].fits(FACTS[fact].of(registry.OURS.get(name)), value)
            for fact, value in facts.items()
        )
    }


def _contains(known: str, value: str) -> bool:
    return value.lower() in known.lower()


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
        declared = _declared(optimizer, MATRIX)
    sizes = [math.prod(slot.shape_for(MATRIX)) for slot in declared.values()]
    return round(sum(sizes) / math.prod(MATRIX.shape))


def _declared(optimizer: Optimizer, variable: Any) -> dict[str, Slot]:
    """Returns the slots of an optimizer for a variable."""
    optimizer.rule.shapes = {"kernel": tuple(variable.shape)}
    return optimizer.slots_for("kernel")


def _row_bytes(cls: Any) -> str | None:
    """Returns the bytes of state of each row, in terms of the number of columns."""
    optimizer = _alone(cls)
    if optimizer is None or isinstance(optimizer, MatrixOptimizer):  # another one updates tables
        return None
    narrow, wide = (_bytes_of_row(optimizer, columns) for columns in (WIDTH, 2 * WIDTH))
    of_column = (wide - narrow) // WIDTH
    terms = {f"{of_column} * columns": of_column, f"{narrow - of_column * WIDTH}": 1}
    shown = [term for term, count in terms.items() if count and term != "0"]
    return " + ".join(shown) or "0"


def _bytes_of_row(optimizer: Optimizer, columns: int) -> int:
    """Returns how many bytes of state one more row of a table has."""

    def total(rows: int) -> int:
        table: Any = tf.TensorSpec([rows, columns])
        slots = _declared(optimizer, table).values()
        kinds = [(slot.shape_for(table), tf.as_dtype(slot.dtype or "float32")) for slot in slots]
        return sum(math.prod(shape) * dtype.size for shape, dtype in kinds)

    return total(ROWS + 1) - total(ROWS)


def _exact_on_rows(cls: type) -> bool | None:
    optimizer = _alone(cls)
    return None if optimizer is None else optimizer.rule.exact_on_rows("")


def _reference(cls: type) -> str:
    text = (inspect.getdoc(cls) or "").partition("Reference:\n")[2]
    return " ".join(text.split())


def row_bytes() -> dict[str, str]:
    """Returns the fact `row_bytes` of each optimizer of which it is known, by name."""
    known = {name: _row_bytes(registry.OURS.get(name)) for name in registry.OURS.summaries()}
    return {name: formula for name, formula in known.items() if formula is not None}


class Fact(NamedTuple):
    """Something that a class says of its optimizers.

    Args:
        kind: the type of its values.
        of: returns the value for a class; None if it depends on more than the class.
        fits: whether a value is what is asked for.
    """

    kind: type
    of: Callable[[Any], Any]
    fits: Callable[[Any, Any], bool] = operator.eq


FACTS = {
    "slots": Fact(int, _slots),
    "row_bytes": Fact(str, _row_bytes),
    "rows": Fact(bool, _exact_on_rows),
    "matrix": Fact(bool, lambda cls: issubclass(cls, MatrixOptimizer)),
    "kernel": Fact(bool, lambda cls: getattr(cls, "kernel", None) is not None),
    "keras": Fact(bool, lambda cls: getattr(cls, "namesake", None) is not None),
    "wrapper": Fact(bool, _wraps),
    "reference": Fact(str, _reference, _contains),
}
