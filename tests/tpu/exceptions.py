"""The programs of which something is known not to hold, in one place, each with its reason.

Where an exception holds no longer, the command fails, so that this list stays true.
"""

import re
from typing import NamedTuple


class Known(NamedTuple):
    """Checks that do not hold of some programs.

    Attributes:
        programs: a regular expression that is found in their names.
        checks: the names of the checks, as in `checks.failed`.
        reason: why.
    """

    programs: str
    checks: set[str]
    reason: str

    def is_of(self, program) -> bool:
        """Whether it is about a program."""
        return bool(re.search(self.programs, program.name))


AGN = "the local state and the center pass through conditions, whose branches copy them"
ACCUMULATION = (
    "the sum of the micro-steps and the state pass through a condition, which copies them"
)
AVERAGES = "whether averages lag behind is a condition, both branches of which copy the averages"
UNSCALED = "the gradient lies beside itself divided by the loss scale"

EXCEPTIONS: tuple[Known, ...] = (
    Known(r", agn.*; rows", {"copies", "temporary", "rows"}, AGN),
    Known(r", agn.*; dense", {"copies", "temporary"}, AGN),
    Known(r"^adam, accumulation; rows, one chip", {"copies", "temporary", "rows"}, ACCUMULATION),
    Known(r"^adam, accumulation; rows, 4 chips", {"rows"}, ACCUMULATION),
    Known(r"^adam, accumulation; dense, one chip", {"copies", "temporary"}, ACCUMULATION),
    Known(r"^adam, together; rows", {"copies", "temporary", "rows"}, ACCUMULATION),
    Known(r"^adam, together; dense", {"copies", "temporary"}, ACCUMULATION),
    Known(r", ema(_overwrite)?; dense", {"copies", "temporary"}, AVERAGES),
    Known(r"ema_overwrite; rows", {"rows"}, "every second step, the averages overwrite the table"),
    Known(r"loss_scale; dense", {"temporary"}, UNSCALED),
    Known(r", mixed_precision; dense, one chip", {"temporary"}, UNSCALED),
    Known(r"wrapped_muon; ", {"copies", "temporary"}, "Muon multiplies whole tables five times"),
    Known(r"wrapped_lamb; rows, 4 chips", {"temporary"}, "beside the gradient lies the whole step"),
    Known(r"graft_nested; dense, one chip", {"temporary"}, "a step lies until its norm is known"),
)
