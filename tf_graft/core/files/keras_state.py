"""Loads the state that one of Keras' own optimizers saved into its namesake here.

Keras saves an optimizer's name, and its variables by position: first the count and the learning
rate, then averages, accumulators and slots.
"""

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core.files import checked_state
from tf_graft.core.files.identity import Named
from tf_graft.core.files.stateful import Stateful
from tf_graft.core.state.namesake import Namesake


class KerasState(NamedTuple):
    """Loads the state of a Keras optimizer into an optimizer of this package.

    Args:
        owner: the optimizer.
        await_build: keeps the values until the owner is built: called with a function that loads
            them, the values of counters and rates, and the values.
        loose: whether the state may contain infinities and NaN.
    """

    owner: Stateful
    await_build: Callable[[Callable[[], bool], checked_state.Saved, checked_state.Values], None]
    loose: bool

    def take(self, author: str | None, values: checked_state.Values) -> bool:
        """Takes the state of a namesake and returns True, or warns and returns False.

        Args:
            author: the name of the optimizer that saved the state.
            values: the values by position.
        """
        owner, namesake = self.owner, self.owner.namesake
        if namesake is None or not is_of(namesake.name(owner), author):
            return self.leave(values, f"of Keras' optimizer '{author}'")
        if owner.built:
            return self._take_matching(values)
        early = owner.state.early()
        matched = by_name(values, self._names(), early)
        if matched is None:
            return self.leave(values, "of one with another kind of learning rate")
        checked = self._checked(matched, early)
        present = completed(checked, early, owner.gradient_accumulation_steps)
        self.await_build(lambda: self._take_matching(values), present, values)
        return True

    def leave(self, values: checked_state.Values, what: str) -> bool:
        """Warns that no state is taken, unless there was nothing to take."""
        if not never_stepped(values):
            saved = f"the saved state is {what}" if values else "no optimizer's state was saved"
            then = "goes on with the state it has" if self.owner.built else "starts fresh"
            name = type(self.owner).__name__
            warnings.warn(f"{name}: {saved}; the optimizer {then}.", stacklevel=2)
        return False

    def _take_matching(self, values: checked_state.Values) -> bool:
        """Takes a Keras optimizer's state if it has exactly the variables of the owner."""
        owner, names, named = self.owner, self._names(), self.owner.state.named()
        slots = {f"{p.path}/{role}" for p in owner.state.parameters for role in p.slots}
        matched = by_name(values, names, named)
        if matched is None or len(values) != len(names) or not slots <= set(names):
            return self.leave(values, "of one with other variables or options")
        matched = self._checked(matched, named)
        for name in slots:
            role = name.rpartition("/")[2]
            matched[name] = self._namesake.convert(owner, role, matched[name])
        checked_state.assign(named, completed(matched, named, owner.gradient_accumulation_steps))
        return True

    def _checked(self, values: checked_state.Values, named: Named) -> checked_state.Saved:
        """Returns the values of a Keras optimizer in the dtypes of the variables."""
        owner = self.owner.rule.signature
        return {
            n: np.asarray(
                checked_state.checked(owner, n, named[n], widened(value, named[n]), self.loose)
            )
            for n, value in values.items()
        }

    def _names(self) -> list[str | None]:
        """Returns the names of the variables, in the order in which the namesake saves them."""
        own = self._namesake.slots(self.owner, self.owner.state.parameters)
        return [*_of_engine(self.owner), *own]

    @property
    def _namesake(self) -> Namesake:
        assert self.owner.namesake is not None  # for the type checker
        return self.owner.namesake


def given_back(owner: Stateful, inner: Any, role: str = "") -> list[np.ndarray | None]:
    """Returns the values of the variables that Keras' optimizer has, in its order.

    Args:
        owner: the optimizer.
        inner: the optimizer that takes the steps, which has a namesake: `owner`, or its child.
        role: the role of that child; "" for `owner`.
    """
    named, parameters = owner.state.named() or owner.state.early(), inner.rule.parameters
    values: list[np.ndarray | None] = [named[n].numpy() for n in _of_engine(owner)]
    values[0] = np.asarray(_counted(owner))  # Keras counts micro-steps
    for name in inner.namesake.slots(inner, parameters):
        path, slash, own = (name or "").rpartition("/")
        held = f"{path}{slash}{role}{'/' if role else ''}{own}"
        value = None if name is None else named[held].numpy()
        values.append(value if value is None else inner.namesake.give_back(inner, own, value))
    return values


def _of_engine(owner: Stateful) -> list[str]:
    """Returns the names of what Keras saves before the slots, in Keras' order."""
    names = [owner.iterations.name, *owner.state.rate_variables()]
    engine = {"average": owner.use_ema, "gradient_accumulator": owner.gradient_accumulation_steps}
    for role, kept in engine.items():
        names += [f"{p.path}/{role}" for p in owner.state.parameters if kept]
    return names


def _counted(owner: Stateful) -> int:
    """Returns the count of the updates, or of the micro-steps, as Keras has it."""
    updates, times = int(owner.iterations.numpy()), owner.gradient_accumulation_steps
    if not times:
        return updates
    return updates * times + int(owner.state.counters["micro_steps"].numpy()) % times


def is_of(name: str, author: str | None) -> bool:
    """Returns whether `author`, such as `adam_1`, is a Keras optimizer of that class name."""
    return re.sub(r"_\d+$", "", author or "").replace("_", "").lower() == name.lower()


def never_stepped(values: checked_state.Values) -> bool:
    """Returns whether the optimizer has made no update: all values but its rate are zero."""
    return bool(values) and not any(np.any(v) for i, v in values.items() if i != "1")


def by_name(
    values: checked_state.Values, names: Sequence[str | None], named: Named
) -> checked_state.Values | None:
    """Returns the values by name in Keras' order; None if one is missing or of another shape.

    There may be more values than names. A value whose name is None is left out.
    """
    result = {name: values.get(str(i)) for i, name in enumerate(names) if name is not None}
    fits = all(x is not None and x.shape == tuple(named[n].shape) for n, x in result.items())
    return result if fits else None


def widened(value: checked_state.Value, variable: keras.Variable) -> checked_state.Value:
    """Returns the value in the variable's dtype, if that is as wide or wider and of the same kind.

    Keras keeps state in the precision of the weights, and some of its counters are narrower.
    """
    dtype = tf.as_dtype(variable.dtype)
    integers = dtype.is_integer and np.issubdtype(value.dtype, np.signedinteger)
    floats = dtype.is_floating and value.dtype in (np.float16, tf.bfloat16.as_numpy_dtype)
    wider = value.dtype.itemsize <= dtype.size
    taken = (integers or floats) and wider
    return np.asarray(value).astype(dtype.as_numpy_dtype) if taken else value


def completed(
    values: checked_state.Saved, named: Named, micro_steps: int | None
) -> checked_state.Saved:
    """Adds the engine's own state with the values that it would have after the same steps.

    Args:
        values: the values by name.
        named: the optimizer's variables.
        micro_steps: the number of micro-steps in an update; Keras counts micro-steps.
    """
    counted = values["iteration"]
    done = counted // micro_steps if micro_steps else counted
    result = {
        name: np.zeros(v.shape, np.int64) for name, v in named.items() if name.endswith("_steps")
    }
    result |= {**values, "iteration": done} | ({"micro_steps": counted} if micro_steps else {})
    for name, variable in named.items():
        path, _, role = name.rpartition("/")
        if role == "average_step":
            result[name] = np.full(variable.shape, done)
        elif role == "accumulated_rows":
            sums = values[f"{path}/gradient_accumulator"]
            result[name] = np.any(sums != 0, axis=tuple(range(1, sums.ndim)))
    return result
