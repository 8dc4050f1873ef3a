"""What the author of an optimizer writes: its mathematics, as pure functions of tensors."""

import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tf_graft.core.state.kernel import InPlace
from tf_graft.core.state.namesake import Namesake
from tf_graft.core.state.point import Point, Step
from tf_graft.core.state.rule import Rule
from tf_graft.core.state.slots import Slot
from tf_graft.core.tensors import scratch_variables, shared_functions
from tf_graft.core.types import Rates, Slots, VariableLike


class Algorithm:
    """Two pure functions, `slots` and `step`; the engine derives every execution from them.

    A class that you derive from an optimizer can override each method and attribute of this class,
    and nothing else.

    Attributes:
        rowwise: each row of a variable is updated from that row alone.
        skips_zero_rows: if rows depend on one another, rows of zeros in the gradient, weights and
            slots change nothing for other rows, as in a norm or a sum over rows. Otherwise `step`
            gets whole variables, even with a row-sparse gradient.
        idle: a zero gradient changes neither slots nor weights.
        finds_rate: the optimizer finds the length of its steps, and the learning rate is a factor
            of it.
        kernel: `step` as TensorFlow kernels that work in place, declared with
            `tf_graft.algorithm.in_place`; None for none.
        namesake: the optimizer of Keras that keeps the same state, a `Namesake`; None for none.
    """

    rowwise = True
    skips_zero_rows = False
    idle = False
    finds_rate = False
    kernel: Any = None
    namesake: Namesake | None = None

    rule: Rule

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        own = vars(cls)
        if own.keys() & {"step", "direction", "propose", "decayed"} and "kernel" not in own:
            cls.kernel = None  # an inherited kernel would compute the step of another class
        elif inspect.isfunction(own.get("kernel")):
            cls.kernel = InPlace(own["kernel"])

    def slots(self) -> dict[str, Slot]:
        """Returns the state to keep for each variable, by role. Roles are checkpoint keys."""
        return {}

    def slots_for(self, path: str) -> dict[str, Slot]:
        """Returns the slots of one variable; override it if `slots` differ between variables."""
        return self.slots()

    def shared_slots(self) -> dict[str, Slot]:
        """Returns the state to keep once, not for each variable."""
        return {}

    def step(self, g: tf.Tensor, w: tf.Tensor, s: Slots, lr: tf.Tensor, t: tf.Tensor) -> Step:
        """Returns the signed step to add to the weights, and the new slots; reads no variable.

        Args:
            g: the gradient, of the shape of `w`: that of a whole variable or of its touched rows.
                Touched rows may be padded with rows of zeros in `g`, `w` and `s`, if XLA or a mesh
                needs a static size; the steps of such rows are dropped, whatever they are.
            w: the weights, float32 or float64.
            s: the slots by role.
            lr: the learning rate, a scalar of the dtype of `w`.
            t: the number of this update, from 1, a scalar of the dtype of `w`.
        """
        raise NotImplementedError

    def traits(self, path: str) -> dict[str, Any]:
        """Returns further arguments of `step` for the variable of a path."""
        return {}

    def whole(self, path: str) -> bool:
        """Returns whether a step needs the whole variable, and not only its touched rows."""
        return not (self.rowwise or self.skips_zero_rows)

    def advance(self, s: Slots, rates: Rates, t: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the new values of `shared_slots`; called once an update, before its steps."""
        return {}

    def prepare(self, variables: Mapping[str, VariableLike]) -> None:
        """Inspects the variables, by path, before any state is made for them."""

    def propose(self, points: Iterable[Point]) -> Iterator[Step]:
        """Yields the steps of several variables, each computed when it is requested.

        Override it to reshape the steps of other optimizers, or for steps that span variables. The
        new slots of a step may include `shared_slots` that depend on the gradients.
        """
        for p in points:
            run = functools.partial(self._proposed, p)
            kind = functools.partial(self._kind, p)
            yield shared_functions.call_shared(run, p.g, p.w, p.s, p.lr, of=kind)

    def _kind(self, p: Point) -> tuple[Any, ...]:
        """Returns what `_proposed` takes of a point, beside its arguments."""
        return "step", p.t, p.in_place, *self.rule.kind(p.path, p.rates)

    def _proposed(self, p: Point, g: tf.Tensor, w: tf.Tensor, s: Slots, lr: tf.Tensor) -> Step:
        """Returns the step from a point of which only the kind is given."""
        traits = self.traits(p.path)
        with self.rule.at(p.rates):
            if not p.in_place or self.kernel is None or self.kernel.replaces:
                s = {role: tf.convert_to_tensor(x) for role, x in s.items()}
                return self.step(g, w, s, lr, p.t, **traits)

            def run(weights: Any) -> None:
                self.kernel.run(g, weights, s, lr, p.t, **traits)

            return scratch_variables.added(w, run), {}

    def decayed(self, p: Point, d: tf.Tensor) -> tf.Tensor:
        """Returns a step from a point with decoupled weight decay.

        Override it for decay of another form: to return `d` if `step` applies the decay itself.
        `weight_decay_mode` and `sparse="lazy_decay"` are then refused.
        `self.rule.decays(path)` says whether a variable decays.
        """
        return self.rule.with_plain_decay(p, d)


def decays_itself(optimizer: Any) -> bool:
    """Returns whether an optimizer overrides `decayed`."""
    return type(optimizer).decayed is not Algorithm.decayed


def refuse_mode(optimizer: Any) -> None:
    """Refuses `weight_decay_mode` of an optimizer that decays weights in a way of its own.

    Raises:
        ValueError: the mode would have no effect, or another one than its equation.
    """
    mode, owner = optimizer.weight_decay_mode, type(optimizer).__name__
    if mode is not None and decays_itself(optimizer):
        raise ValueError(
            f"{owner}(weight_decay_mode={mode}): {owner} decays weights in a way of its own; give "
            "None."
        )
