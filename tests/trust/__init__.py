"""The battery of attacks: what must never be lost, poisoned or accepted.

Each area is a module with one function, `attacks(every)`: it makes each attack, or one in `every`
in rotation, and yields its name and what was wrong: None where the attack was held off.

`python tests/trust` makes them all; `tests/test_trust.py` makes some.
"""

import importlib
from collections.abc import Iterator
from typing import Any, NamedTuple


class Result(NamedTuple):
    """How an attack ended.

    Args:
        attack: what was done to what, in a few words that find the code that does it.
        wrong: what should not have happened; None where it did not.
    """

    attack: str
    wrong: str | None


AREAS = (
    *("gradients", "arguments", "configs", "names", "files", "kills", "state", "clusters"),
    "threads",
)


def made(area: str, every: int, **asked: Any) -> Iterator[Result]:
    """Makes the attacks of an area, or one in so many; those that are asked for, where it can."""
    return importlib.import_module(f"trust.{area}").attacks(every, **asked)
