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


START = "the first step copies the weights to the center"
SHRUNK = "an update of batches that shrank, compiled beside the usual one, visits the whole table"
BOTH = "both the usual update and that of batches that shrank sum, and the replicas agree on one"
UNSCALED = "the gradient lies beside itself divided by the loss scale"

EXCEPTIONS: tuple[Known, ...] = (
    Known(r", agn.*; ", {"copies"}, START),
    Known(r", agn.*; rows", {"rows"}, SHRUNK),
    Known(r", agn.*; rows, 4 chips", {"temporary"}, SHRUNK),
    Known(r", agn.*; rows, 4 chips", {"sums"}, BOTH),
    Known(r", agn_mixed_precision; dense", {"temporary"}, UNSCALED),
    Known(r"^adam, (accumulation|together); rows", {"rows"}, SHRUNK),
    Known(r"ema_overwrite; rows", {"rows"}, "every second step, the averages overwrite the table"),
    Known(r"loss_scale; dense", {"temporary"}, UNSCALED),
    Known(r", mixed_precision; dense, one chip", {"temporary"}, UNSCALED),
    Known(r"wrapped_muon; ", {"copies", "temporary"}, "Muon multiplies whole tables five times"),
    Known(r"wrapped_lamb; rows, 4 chips", {"temporary"}, "beside the gradient lies the whole step"),
    Known(r"graft_nested; dense, one chip", {"temporary"}, "a step lies until its norm is known"),
)
