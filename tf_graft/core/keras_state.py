"""Loads the state that one of Keras' own optimizers saved into its namesake here."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tf_graft.core import state, stock
from tf_graft.core.identity import Named
from tf_graft.core.owner import Owner


class KerasState(NamedTuple):
    """What an optimizer does with state of Keras.

    Args:
        owner: the optimizer.
        await_build: keeps what was read until the owner is built: called with a function that takes
            it, the values of counters and rates, and what was read.
        loose: whether the state may be not finite.
    """

    owner: Owner
    await_build: Callable[[Callable[[], bool], state.Saved, state.Values], None]
    loose: bool

    def take(self, author: str | None, values: state.Values) -> bool:
        """Takes the state of a namesake, and says whether it did; warns where it did not.

        Args:
            author: the name of the optimizer that saved it.
            values: by position.
        """
        owner, namesake = self.owner, self.owner.namesake()
        if namesake is None or not stock.is_of(namesake, author):
            return self.leave(values, f"of Keras' optimizer '{author}'")
        if owner.built:
            return self._take_matching(values)
        early = owner.early_variables()
        matched = stock.matched(values, self._names(), early)
        if matched is None:
            return self.leave(values, "of one with another kind of learning rate")
        checked = self._checked(matched, early)
        present = stock.completed(checked, early, owner.gradient_accumulation_steps)
        self.await_build(lambda: self._take_matching(values), present, values)
        return True

    def leave(self, values: state.Values, what: str) -> bool:
        """Warns that nothing is taken, unless there was nothing to take."""
        if not stock.never_stepped(values):
            saved = f"the saved state is {what}" if values else "no optimizer's state was saved"
            then = "goes on with the state it has" if self.owner.built else "starts fresh"
            name = type(self.owner).__name__
            warnings.warn(f"{name}: {saved}; the optimizer {then}.", stacklevel=2)
        return False

    def _take_matching(self, values: state.Values) -> bool:
        """Takes what a Keras optimizer saved, if it is all that there is here, and no more."""
        owner, names, named = self.owner, self._names(), self.owner.named_variables()
        slots = {f"{p.path}/{role}" for p in owner.parameters for role in p.slots}
        matched = stock.matched(values, names, named)
        if matched is None or len(values) != len(names) or not slots <= set(names):
            return self.leave(values, "of one with other variables or options")
        matched = self._checked(matched, named)
        for name in slots:
            matched[name] = owner.slot_from_keras(name.rpartition("/")[2], matched[name])
        state.assign(named, stock.completed(matched, named, owner.gradient_accumulation_steps))
        return True

    def _checked(self, values: state.Values, named: Named) -> state.Saved:
        """The values of a Keras optimizer, in the dtypes of the variables."""
        owner = self.owner.signature()
        return {
            n: np.asarray(
                state.checked(owner, n, named[n], stock.widened(value, named[n]), self.loose)
            )
            for n, value in values.items()
        }

    def _names(self) -> list[str]:
        """The names of the variables, in the order in which the namesake saves them."""
        owner = self.owner
        names = [owner.iterations.name, *owner.rate_variables()]
        engine = {
            "average": owner.use_ema,
            "gradient_accumulator": owner.gradient_accumulation_steps,
        }
        for role, kept in engine.items():
            names += [f"{p.path}/{role}" for p in owner.parameters if kept]
        return names + owner.slots_in_keras()
