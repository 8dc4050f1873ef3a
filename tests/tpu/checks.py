"""What must hold of a compiled program, and what does not hold of which."""

import math

from tpu.exceptions import EXCEPTIONS
from tpu.programs import FEWER_ROWS

BYTES = 4  # of an entry
# What a step by rows may access of each row that is added to the table, as a share of its bytes: it
# keeps one number for each row of the table, to find the rows that repeat.
OF_ADDED = 0.05
# The tensors that a step sums over the replicas: of each dense gradient, and of the table's rows
# both the values and their numbers.
SUMMED = {"dense": 4, "rows": 5}


def entries(program):
    """How many the table has."""
    return math.prod(program.shapes["table"])


def of_added(program, figures, fewer):
    """What a step accesses of the rows that a smaller table lacks, as a share of their bytes."""
    added = entries(program) - entries(program._replace(rows=FEWER_ROWS))
    return (figures["accessed"] - fewer["accessed"]) / (BYTES * added)


def failed(program, figures, fewer=None):
    """By the name of each check that does not hold, in words, what was found.

    Args:
        program: one of `programs.py`.
        figures: what `compiling.py` says of it.
        fewer: the same for a table with fewer rows, of a program that goes by rows.
    """
    for found in (figures, fewer or {}):
        if "error" in found:
            return {"compiles": found["error"]}
    table = BYTES * entries(program)
    found = {}
    if figures["not_aliased"]:
        count = f"{len(figures['not_aliased'])} of {figures['results']}"
        found["aliased"] = f"{count} results are not written in place"
    if figures["copies"]:
        found["copies"] = f"copies as large as the table: {len(figures['copies'])}"
    if figures["temporary"] >= table * (1 + program.makes_dense):
        found["temporary"] = f"temporary memory is {figures['temporary'] / table:.1f} tables"
    if fewer and (share := of_added(program, figures, fewer)) >= OF_ADDED:
        found["rows"] = f"of rows that are added it accesses {share:.2f} times their bytes"
    every = SUMMED["dense" if program.dense else "rows"] - program.frozen
    right = every if program.replicas > 1 else 0
    if figures["sums"] != right:
        found["sums"] = f"it sums {figures['sums']} tensors over the replicas; right are {right}"
    return found


def known(program):
    """The checks that are known not to hold, by the exceptions that say so."""
    return {check: e for e in EXCEPTIONS if e.is_of(program) for check in e.checks}


def judged(program, figures, fewer=None):
    """(what is wrong, by check; what was found of known exceptions, by the reason).

    An exception that is no longer one is wrong.
    """
    found, expected = failed(program, figures, fewer), known(program)
    wrong = {check: text for check, text in found.items() if check not in expected}
    for check, exception in expected.items():
        if check not in found:
            wrong[check] = f"this holds, so it is no longer an exception: {exception.reason}"
    excepted: dict[str, list[str]] = {}
    for check in filter(expected.get, found):
        excepted.setdefault(expected[check].reason, []).append(found[check])
    return wrong, excepted
