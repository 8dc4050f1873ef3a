"""A table of what an optimizer does to each variable."""

from collections.abc import Sequence
from typing import Any

from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.rule import Rule
from tf_graft.core.types import Rates

HEADER = ("variable", "shape", "learning rate", "decays", "state")
OF_MATRICES = "matrix"


def table(optimizer: Any) -> str:
    """Returns a line for each variable of a built optimizer, with a header, as text."""
    rates = optimizer.rule.rates()
    rule, parameters = optimizer.rule, optimizer.state.parameters
    lines = [HEADER, *(_line(rule, rates, p) for p in parameters)]
    sizes = [_matrix(rule, p.path) for p in parameters]
    if any(sizes):
        cells = [OF_MATRICES, *(size or "-" for size in sizes)]
        lines = [(*line, cell) for line, cell in zip(lines, cells, strict=True)]
    return aligned(lines)


def aligned(lines: Sequence[tuple[str, ...]]) -> str:
    """Returns lines of equally many cells as text, in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (zip(line, widths, strict=True) for line in lines)
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in padded
    )


def _line(rule: Rule, rates: Rates, parameter: Parameter) -> tuple[str, ...]:
    path = parameter.path
    frozen, rate = rule.freezes(path), float(rule.rate_of(path, rates))
    decays = not frozen and any(each.decays(path) for each in rule.tree(path))
    state = ", ".join([*parameter.slots, *parameter.state])
    shape = str(tuple(parameter.variable.shape))
    return path, shape, "frozen" if frozen else f"{rate:g}", "yes" if decays else "no", state


def _matrix(rule: Rule, path: str) -> str:
    """Returns the size of the matrix that a variable is to the optimizer, or nothing."""
    each = (getattr(found.optimizer, "axes_by_path", {}).get(path) for found in rule.tree(path))
    return next((str(axes) for axes in each if axes is not None), "")
