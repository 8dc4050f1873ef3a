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
PUSHED = "weights and center are copied for an update that pushes, compiled beside the others"
UNSCALED = "the gradient lies beside itself divided by the loss scale"
OVERWRITTEN = "every second step, the averages overwrite the table"
EXCHANGED = (
    "an update that finds the weights to evaluate exchanges them first, in a loop of 0 or 1 turns"
)
KEPT = "the gradient, which is the caller's, is kept for the next step"
NUMBERS = "it keeps a number for each row of the table"
SIDES = "it multiplies the table by matrices of its sides"
BESIDE = "beside the gradient lies the whole step"
MULTIPLIED = "Muon multiplies whole tables five times"

EXCEPTIONS: tuple[Known, ...] = (
    Known(r", agn.*; ", {"copies"}, START),
    Known(r", agn.*; rows", {"rows"}, SHRUNK),
    Known(r", agn.*; rows, 4 chips", {"temporary"}, SHRUNK),
    Known(r", agn.*; rows, 4 chips", {"sums"}, BOTH),
    Known(r", agn(_updates)?; .*, one chip", {"temporary"}, PUSHED),
    Known(r", agn_mixed_precision; rows, one chip", {"temporary"}, PUSHED),
    Known(r", agn_mixed_precision; dense, one chip", {"temporary"}, UNSCALED),
    Known(r"^adam, (accumulation|together); rows", {"rows"}, SHRUNK),
    Known(r"ema_overwrite; rows", {"rows"}, OVERWRITTEN),
    Known(r"^adam, (ema_overwrite|together); ", {"copies"}, OVERWRITTEN),
    Known(r"^(schedule_free|ema_nesterov).*; rows", {"rows"}, EXCHANGED),
    Known(r"^(schedule_free|ema_nesterov)", {"copies"}, EXCHANGED),
    Known(r"^(schedule_free|ema_nesterov).*, one chip", {"temporary"}, EXCHANGED),
    Known(r"^(schedule_free|ema_nesterov).*; rows, 4 chips", {"temporary"}, EXCHANGED),
    Known(r"^schedule_free_adamw; dense, 4 chips", {"temporary"}, EXCHANGED),
    Known(r"^(adan|mars); dense, one chip", {"copies"}, KEPT),
    Known(r"^(rowwise_|adafactor).*; rows", {"rows"}, NUMBERS),
    Known(r"^(nor)?muon; ", {"temporary"}, MULTIPLIED),
    Known(r"^wrapped_muon; ", {"copies", "temporary"}, MULTIPLIED),
    Known(r"^(kl_)?(shampoo|soap)(_muon)?; ", {"copies", "temporary"}, SIDES),
    Known(r"^wrapped_lamb; ", {"temporary"}, BESIDE),
    Known(r"^(hyperball|radial_brake); rows, 4 chips", {"temporary"}, BESIDE),
    Known(r"graft_nested; dense, one chip", {"temporary"}, "a step lies until its norm is known"),
)
