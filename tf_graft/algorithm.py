"""What an optimizer is written with: whatever those of this package use of its engine.

`CONTRIBUTING.md` makes one in six steps, and `tf_graft.testing.check` runs the guarantees on it.

- `Optimizer`, `Slot`, `Step`, `register`: the class, what it remembers, what `step` returns, a name
- `Common`: the arguments that every constructor takes as `**common: Unpack[Common]`
- `Checked`: an argument in the attribute of its name, checked by `number`, `integer`, `boolean`,
  `choice` or `patterns`; `matches` searches a variable's path for patterns
- `length`, `one_minus_power`, `quotient`: arithmetic that is the same in every execution
- `NOT_NEGATIVE`: what a slot of squares lies `within`
- `Wrapper`, `Around`, `Point`, `under`, `within`, `Parameter`, `Parameters`: for optimizers made of
  optimizers
"""

from tf_graft.compose.wrapper import Around, Wrapper
from tf_graft.core.checked import Checked
from tf_graft.core.checks import boolean, choice, integer, matches, number, patterns
from tf_graft.core.numerics import length, one_minus_power, quotient
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.options import Common
from tf_graft.core.parameters import Parameter, Parameters
from tf_graft.core.point import Point, Step, under, within
from tf_graft.core.registry import register
from tf_graft.core.slots import NOT_NEGATIVE, Slot

__all__ = [
    "NOT_NEGATIVE",
    "Around",
    "Checked",
    "Common",
    "Optimizer",
    "Parameter",
    "Parameters",
    "Point",
    "Slot",
    "Step",
    "Wrapper",
    "boolean",
    "choice",
    "integer",
    "length",
    "matches",
    "number",
    "one_minus_power",
    "patterns",
    "quotient",
    "register",
    "under",
    "within",
]
