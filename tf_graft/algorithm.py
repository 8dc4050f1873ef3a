"""The names for writing an optimizer of your own; those of this package use them too.

`docs/write_an_optimizer.md` makes one in six steps, and `tf_graft.testing.check` runs the
guarantees on it.

- `Optimizer`, `Slot`, `Step`, `register`: the base class, its state, the result of `step`, a name
- `Common`: the arguments that every constructor takes as `**common: Unpack[Common]`
- `AtLeastZero`, `AboveZero`, `BelowOne`, `BetweenZeroAndOne`, `Fraction`, `Count`, `Flag`,
  `Patterns` and so on: types of arguments that are checked and kept in the attribute of their name
- `Checked`: the check in such a type, `Annotated[float, Checked(number, 4)]`, by `number`,
  `integer`, `boolean`, `choice` or `patterns`; `matches` searches a path for patterns;
  `shown` is a value as messages show it
- `RateLike`, `Slots`, `SlotVariables`, `Rates`: the types of a constructor's learning rate, of the
  slots of `step` and of `kernel`, and of the learning rates of `advance`
- `current`: the value at an update of an argument that may be a schedule, as
  `BelowOneOrSchedule` and its kind allow
- `length`, `one_minus_power`, `product`, `quotient`, `rectification`, `running_mean`: arithmetic
  that is the same in every execution; `of_rows`: a slot of rows in a shape that broadcasts to the
  variable's
- `scalar`: an argument as a tensor; `memoized`: a function of tensors that is computed once for all
  variables of an update; `call_shared`: calls a function that is traced once for all variables of a
  shape
- `NOT_NEGATIVE`: the range of a slot of squares, for `Slot(within=...)`
- a subclass of `Optimizer` overrides `slots` (or `slots_for`) and `step`; less often `shared_slots`
  and `advance`, `traits`, `whole`, `decayed`, `prepare`, `kernel`, `propose`; it declares its
  properties in `rowwise`, `skips_zero_rows`, `idle`, `finds_rate` and `namesake`; it asks
  `self.rule` for the shapes of its variables, and which of them decay
- `in_place`: declares the method `kernel`, `step` by kernels of TensorFlow; `remembers`: when those
  for mean squares serve
- `Namesake`: the optimizer of Keras that keeps the same slots
- `scratch_variable`: for a kernel that requires a variable where there is no slot; `added_by`: what
  a kernel adds to a variable; `put`: assigns a slot in a kernel
- `TwoWeights`: the base class of optimizers that evaluate other weights than those they train
- `Wrapper`, `Around`, `Reshaping`, `Point`, `under`, `within`, `Parameter`, `Parameters`: for
  optimizers made of optimizers
- `MatrixOptimizer`, `Axes`, `GivenAxes`, `Heads`, `Sharing`: for optimizers of matrices
"""

from tf_graft.compose.wrapper import Around, Reshaping, Wrapper
from tf_graft.core.arguments.checked import Checked
from tf_graft.core.arguments.declared import (
    AboveZero,
    AtLeastZero,
    AtLeastZeroOrSchedule,
    BelowOne,
    BelowOneOrSchedule,
    BetweenZeroAndOne,
    Count,
    Flag,
    Fraction,
    FractionOrSchedule,
    OptionalCount,
    OptionalPatterns,
    Patterns,
)
from tf_graft.core.arguments.options import Common
from tf_graft.core.arguments.registry import register
from tf_graft.core.checks import boolean, choice, integer, number, patterns, shown
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.patterns import matches
from tf_graft.core.places.shares import Sharing
from tf_graft.core.state.kernel import in_place, remembers
from tf_graft.core.state.namesake import Namesake
from tf_graft.core.state.parameters import Parameter, Parameters
from tf_graft.core.state.point import Point, Step, under, within
from tf_graft.core.state.slots import NOT_NEGATIVE, Slot
from tf_graft.core.state.write import put
from tf_graft.core.tensors.memo import memoized
from tf_graft.core.tensors.numerics import (
    current,
    length,
    of_rows,
    one_minus_power,
    product,
    quotient,
    running_mean,
    scalar,
)
from tf_graft.core.tensors.rectification import rectification
from tf_graft.core.tensors.scratch_variables import added as added_by
from tf_graft.core.tensors.scratch_variables import variable as scratch_variable
from tf_graft.core.tensors.shared_functions import call_shared
from tf_graft.core.two_weights import TwoWeights
from tf_graft.core.types import NumberLike, RateLike, Rates, Slots, SlotVariables
from tf_graft.matrices.axes import Axes
from tf_graft.matrices.matrix_optimizer import GivenAxes, Heads, MatrixOptimizer

__all__ = [
    "NOT_NEGATIVE",
    "AboveZero",
    "Around",
    "AtLeastZero",
    "AtLeastZeroOrSchedule",
    "Axes",
    "BelowOne",
    "BelowOneOrSchedule",
    "BetweenZeroAndOne",
    "Checked",
    "Common",
    "Count",
    "Flag",
    "Fraction",
    "FractionOrSchedule",
    "GivenAxes",
    "Heads",
    "MatrixOptimizer",
    "Namesake",
    "NumberLike",
    "Optimizer",
    "OptionalCount",
    "OptionalPatterns",
    "Parameter",
    "Parameters",
    "Patterns",
    "Point",
    "RateLike",
    "Rates",
    "Reshaping",
    "Sharing",
    "Slot",
    "SlotVariables",
    "Slots",
    "Step",
    "TwoWeights",
    "Wrapper",
    "added_by",
    "boolean",
    "call_shared",
    "choice",
    "current",
    "in_place",
    "integer",
    "length",
    "matches",
    "memoized",
    "number",
    "of_rows",
    "one_minus_power",
    "patterns",
    "product",
    "put",
    "quotient",
    "rectification",
    "register",
    "remembers",
    "running_mean",
    "scalar",
    "scratch_variable",
    "shown",
    "under",
    "within",
]
