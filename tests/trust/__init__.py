"""The battery of attacks: what must never be lost, poisoned or accepted.

Each area is a module with one function, `attacks(every)`: it makes each attack, or one in `every`
in rotation, and yields its name and what was wrong: None where the attack was held off.

`python tests/trust` makes them all; `tests/test_trust.py` makes some.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Result(NamedTuple):
    """How an attack ended.

    Args:
        attack: what was done to what, in a few words that find the code that does it.
        wrong: what should not have happened; None where it did not.
    """

    attack: str
    wrong: str | None


AREAS = ("gradients", "arguments", "configs", "files", "kills", "state")


def summary(results: Iterable[Result]) -> tuple[int, list[Result]]:
    """How many attacks were made, and those that were not held off."""
    made = list(results)
    return len(made), [result for result in made if result.wrong is not None]
