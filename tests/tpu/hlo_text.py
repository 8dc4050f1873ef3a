"""What the text of an HLO module says: of what was lowered, and of what was compiled."""

import math
import re

SHAPE = re.compile(r"(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
ALIAS = re.compile(r"\{(\d+)\}: \((\d+), \{\}")
ALL_REDUCE = re.compile(r"^ *(?:ROOT )?\S+ = (.*?) all-reduce(?:-start)?\(", re.M)
COPY = re.compile(r"^ *(?:ROOT )?\S+ = \(?(\S+) .*?\bcopy(?:-start)?\(", re.M)
FAST_MEMORY = re.compile(r"S\(\d+\)")  # of a layout: on the chip, outside its main memory


def braced(text, name):
    """What stands in the braces after `name=` in the first line; nothing if it is not there."""
    rest = text.partition("\n")[0].partition(f"{name}={{")[2]
    depth = 1
    for end, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if not depth:
            return rest[:end]
    return ""


def shapes(text):
    """The (type, shape) of each array that is named in a text."""
    return [(t, tuple(map(int, s.split(","))) if s else ()) for t, s in SHAPE.findall(text)]


def signature(text):
    """The shapes of the parameters and of the results of a module."""
    parameters, _, results = braced(text, "entry_computation_layout").partition(")->")
    return shapes(parameters), shapes(results)


def aliases(text):
    """By the number of a result that is written in place, that of the parameter it replaces."""
    return {int(a): int(b) for a, b in ALIAS.findall(braced(text, "input_output_alias"))}


def not_aliased(text):
    """The numbers of the results that are written somewhere else than their state was."""
    _, results = signature(text)
    return sorted(set(range(len(results))) - set(aliases(text)))


def sums(text):
    """How many tensors are summed over the replicas; one operation may sum several."""
    return sum(max(1, len(shapes(result))) for result in ALL_REDUCE.findall(text))


def all_reduces(text):
    """How many operations sum over the replicas."""
    return len(ALL_REDUCE.findall(text))


def copies(text, entries):
    """The arrays of at least so many entries that are copied within main memory, or to it.

    A copy to the chip's fast memory is how the compiler reads ahead.
    """
    into = [array for array in COPY.findall(text) if not FAST_MEMORY.search(array)]
    large = [(t, s) for array in into for t, s in shapes(array) if math.prod(s) >= entries]
    return [f"{t}{list(s)}" for t, s in large]
