"""An optimizer's state in files: written by path and role, and read back."""

import warnings
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from tf_graft.core import keras_contract, state, stock
from tf_graft.core.checks import CheckpointError
from tf_graft.core.parameters import Parameters
from tf_graft.core.rates import Rates


class Awaited(NamedTuple):
    """State that was read before the optimizer was built.

    Args:
        saved: what the file holds.
        before: what the variables that were there had, by name.
    """

    saved: state.Saved
    before: state.Saved


class Saving(Rates):
    """What `Optimizer` knows of files.

    Attributes:
        keras_slots: where an optimizer of Keras of the same class name keeps the same slots: their
            roles, in the order in which that one keeps them. Those of one group stand together,
            variable by variable.
    """

    keras_slots: ClassVar[stock.Groups | None] = None

    _parameters: Parameters
    _scalars: state.Named
    _shared: state.Named  # made in `build` and not before: TensorFlow restores it then
    _state: dict[str, state.Named]  # of each variable, for tf.train.Checkpoint
    _identity: state.Identity
    _awaited: Awaited | None = None

    def slot_from_keras(self, role: str, value: np.ndarray) -> np.ndarray:
        """A slot's value, for the one that the optimizer of Keras has."""
        return value

    def signature(self) -> str:
        """Whose state this is."""
        return type(self).__name__

    def named_variables(self, place: str = "") -> state.Named:
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

    def _early_variables(self) -> state.Named:
        """What is there before the optimizer is built: counters and rates."""
        return {**self._scalars, **self.rate_variables()}

    def save_own_variables(self, store: Any) -> None:
        """Writes the state into a Keras weights store, by path and role."""
        if self._awaited is None:
            state.save(self._identity, self.named_variables(), store)
            return
        for key, value in self._awaited.saved.items():
            store[key] = value

    def load_own_variables(self, store: Any) -> None:
        """Reads the state back, by path and role.

        An optimizer that is not built takes its counters and rates at once, and the rest when it is
        built. Of the state of a Keras optimizer it takes what is the same here; where nothing is, a
        warning says so.

        Raises:
            CheckpointError: the state is another optimizer's, of other variables or damaged.
        """
        saved = {key: np.asarray(store[key]) for key in store.keys()}  # noqa: SIM118 - no dict
        if state.IDENTITY in saved:
            self._take_own(saved)
        elif not all(key.isdecimal() for key in saved):
            raise CheckpointError(
                f"{type(self).__name__}: what was saved is the state neither of a tf_graft "
                "optimizer nor of one of Keras' own; nothing was loaded."
            )
        elif saved or self.built:
            self._take_stock(keras_contract.author_of(store), saved)

    def _take_own(self, saved: state.Saved) -> None:
        if not self._identity.shapes_in(bytes(saved[state.IDENTITY])):
            return  # it was saved before it was built
        if self.built:
            state.load(self._identity, self.named_variables(), saved)
        else:
            early = self._early_variables()
            self._await(saved, state.values_of(saved, early))

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
        steps = self.gradient_accumulation_steps
        self._await(values, stock.completed(matched, early, steps))
        return True

    def _await(self, saved: state.Saved, early: state.Saved) -> None:
        """Keeps what was read until the optimizer is built; what is there already has its value."""
        self._awaited = Awaited(saved, state.numpy(self._early_variables()))
        state.assign(self._early_variables(), early)

    def _settle_awaited(self) -> None:
        """Takes, when the optimizer is built, what was read before."""
        if self._awaited is None:
            return
        (saved, before), self._awaited = self._awaited, None
        with tf.init_scope():  # the variables may be made while a function is traced
            early = self._early_variables()
            since = state.numpy(early)  # a rate may have been set
            state.assign(early, before)
            if state.IDENTITY in saved:
                state.load(self._identity, self.named_variables(), saved)
            elif not self._take_matching(saved):
                return
            state.assign(early, since)

    def _take_matching(self, values: state.Saved) -> bool:
        """Takes what a Keras optimizer saved, if it is all that there is here, and no more."""
        names, named = self._names_in_keras(), self.named_variables()
        slots = {f"{p.path}/{role}" for p in self._parameters for role in p.slots}
        matched = stock.matched(values, names, named)
        if matched is None or len(values) != len(names) or not slots <= set(names):
            return self._leave_stock(values, "of one with other variables or options")
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
