"""What was saved is looked through, then taken: all of it, or nothing.

An optimizer that is not built lets it wait until it is.
"""

import warnings
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from tf_graft.core import state, stock, write
from tf_graft.core.checkpoint_part import readable
from tf_graft.core.identity import Named
from tf_graft.core.parameters import Parameters
from tf_graft.core.rates import Rates


class Awaited(NamedTuple):
    """State that was read before the optimizer was built.

    Args:
        take: takes it once the optimizer is built, and says whether it did.
        before: what the variables that were there had, by name.
        store: what a Keras weights store held of it; None where it was read elsewhere.
    """

    take: Callable[[], bool]
    before: state.Saved
    store: state.Saved | None


class Loading(Rates):
    """What `Optimizer` does with state that was found somewhere.

    Attributes:
        keras_slots: where an optimizer of Keras of the same class name keeps the same slots: their
            roles, in the order in which that one keeps them. Those of one group stand together,
            variable by variable.
    """

    keras_slots: ClassVar[stock.Groups | None] = None

    nonfinite: str
    _parameters: Parameters
    _scalars: Named
    _shared: Named  # made in `build`
    _state: dict[str, Named]  # of each variable, for tf.train.Checkpoint
    _awaited: Awaited | None = None

    def slot_from_keras(self, role: str, value: np.ndarray) -> np.ndarray:
        """A slot's value, for the one that the optimizer of Keras has."""
        return value

    def signature(self) -> str:
        """Whose state this is."""
        return type(self).__name__

    def named_variables(self, place: str = "") -> Named:
        """Every variable of the optimizer by path and role; none before it is built.

        Args:
            place: goes before every role: `"center/"` for `dense/kernel/center/momentum`.
        """
        if not self._parameters:
            return {}
        shared = {**self._early_variables(), **self._shared}
        named = {f"{place}{role}": variable for role, variable in shared.items()}
        for parameter in self._parameters:
            for role, variable in {**parameter.slots, **parameter.state}.items():
                named[f"{parameter.path}/{place}{role}"] = variable
        return named

    def _early_variables(self) -> Named:
        """What is there before the optimizer is built: counters and rates."""
        return {**self._scalars, **self.rate_variables()}

    def snapshot(self) -> Callable[[], None]:
        """What puts the state back that there is now."""
        awaited, before = self._awaited, [(v, tf.convert_to_tensor(v)) for v in self.variables]

        def put_back() -> None:
            self._awaited = awaited
            for variable, value in before:
                write.put_everywhere(variable, value)

        return put_back

    def _looked_at(self, found: state.Found) -> Callable[[], None]:
        """What takes the state that was found, which fits.

        Raises:
            CheckpointError: it does not.
        """
        owner, early = self.signature(), self._early_variables()
        given = found.values(early, {name: name for name in early})
        present = {n: state.checked(owner, n, v, given[n]) for n, v in early.items() if n in given}
        if self.built:
            # what was saved before it was built says nothing
            named, values = self.named_variables(), self._fitting(found) if found.shapes else {}
            return lambda: state.assign(named, values)
        if not found.shapes:
            return lambda: state.assign(early, present)

        def take() -> bool:
            state.assign(self.named_variables(), self._fitting(found))
            return True

        return lambda: self._await(take, present, found.store)

    def _fitting(self, found: state.Found) -> dict[str, Any]:
        with readable(self.signature()):
            return state.fitting(self.signature(), found, self.named_variables(), self._loose)

    @property
    def _loose(self) -> bool:
        """Whether its state may be not finite: a gradient that is not has been applied then."""
        return self.nonfinite == "apply"

    def _take_stock(self, author: str | None, values: state.Saved) -> bool:
        namesake = self._namesake()
        if namesake is None or not stock.is_of(namesake, author):
            return self._leave_stock(values, f"of Keras' optimizer '{author}'")
        if self.built:
            return self._take_matching(values)
        early = self._early_variables()
        matched = stock.matched(values, self._names_in_keras(), early)
        if matched is None:
            return self._leave_stock(values, "of one with another kind of learning rate")
        present = stock.completed(
            self._checked(matched, early), early, self.gradient_accumulation_steps
        )
        self._await(lambda: self._take_matching(values), present, values)
        return True

    def _checked(self, values: state.Saved, named: Named) -> state.Saved:
        """The values of a Keras optimizer, in the dtypes of the variables."""
        owner = self.signature()
        return {
            n: state.checked(owner, n, named[n], stock.widened(value, named[n]), self._loose)
            for n, value in values.items()
        }

    def _await(
        self, take: Callable[[], bool], early: state.Saved, store: state.Saved | None
    ) -> None:
        """Keeps what was read until the optimizer is built; what is there already has its value."""
        present = self._early_variables()
        before = state.numpy(present) if self._awaited is None else self._awaited.before
        self._awaited = Awaited(take, before, store)
        state.assign(present, early)

    def _settle_awaited(self) -> None:
        """Takes, when the optimizer is built, what was read before."""
        if self._awaited is None:
            return
        awaited, self._awaited = self._awaited, None
        with tf.init_scope():  # the variables may be made while a function is traced
            early = self._early_variables()
            since = state.numpy(early)  # a rate may have been set
            state.assign(early, awaited.before)
            if awaited.take():
                state.assign(early, since)

    def _take_matching(self, values: state.Saved) -> bool:
        """Takes what a Keras optimizer saved, if it is all that there is here, and no more."""
        names, named = self._names_in_keras(), self.named_variables()
        slots = {f"{p.path}/{role}" for p in self._parameters for role in p.slots}
        matched = stock.matched(values, names, named)
        if matched is None or len(values) != len(names) or not slots <= set(names):
            return self._leave_stock(values, "of one with other variables or options")
        matched = self._checked(matched, named)
        for name in slots:
            matched[name] = self.slot_from_keras(name.rpartition("/")[2], matched[name])
        state.assign(named, stock.completed(matched, named, self.gradient_accumulation_steps))
        return True

    def _leave_stock(self, values: state.Saved, what: str) -> bool:
        """Warns that nothing is taken, unless there was nothing to take."""
        if not stock.never_stepped(values):
            saved = f"the saved state is {what}" if values else "no optimizer's state was saved"
            then = "goes on with the state it has" if self.built else "starts fresh"
            warnings.warn(f"{type(self).__name__}: {saved}; the optimizer {then}.", stacklevel=2)
        return False

    def _namesake(self) -> str | None:
        """The class of the Keras optimizer that keeps the same state."""
        return None if self.keras_slots is None else type(self).__name__

    def _names_in_keras(self) -> list[str]:
        """The names of the variables, in the order in which the namesake saves them."""
        names = [self.iterations.name, *self.rate_variables()]
        engine = {"average": self.use_ema, "gradient_accumulator": self.gradient_accumulation_steps}
        for role, kept in engine.items():
            names += [f"{p.path}/{role}" for p in self._parameters if kept]
        return names + self._slots_in_keras()

    def _slots_in_keras(self) -> list[str]:
        return [
            f"{p.path}/{role}"
            for group in self.keras_slots or ()
            for p in self._parameters
            for role in group
            if role in p.slots
        ]
