"""Checks that a class can be an optimizer here, when it is defined and when it is built.

A mistake is refused before the first step, in a sentence that says how to mend it.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tf_graft.core import checks
from tf_graft.core.arguments import signatures
from tf_graft.core.files import checked_state
from tf_graft.core.pipeline import accumulation, averaging, row_counts, row_decay
from tf_graft.core.state.slots import SHAPES, Dimension, Slot
from tf_graft.core.traced_step import TracedStep

# Roles of the engine's own state: in a saved file a slot of that name would be mistaken for it.
RESERVED = ("master", *averaging.SLOTS, *accumulation.SLOTS, *accumulation.TIMES)
RESERVED += (*row_counts.SLOTS, *row_counts.FREQUENCY_SLOTS, *row_decay.SLOTS)
PACKAGE = __name__.partition(".")[0]
ORDER = "super().__init__(learning_rate, **common)"


def check_class(cls: type) -> None:
    """Refuses a class whose constructor or methods cannot work.

    Raises:
        TypeError: the class cannot work; the message names it, and says what to do.
    """
    owner = cls.__name__
    own = vars(cls)
    algorithm = _overrides(cls, "step") or _overrides(cls, "propose")
    if "update_step" in own or ("build" in own and not algorithm):
        method = "update_step" if "update_step" in own else "build"
        raise TypeError(
            f"{owner}.{method}: that is how optimizers of Keras are written, and it would not be "
            "called here; write slots and step, or derive the class from keras.optimizers.Optimizer"
            " and give an object of it to tf_graft.wrap."
        )
    for method in ("slots", "slots_for", "shared_slots", "traits", "step", "propose"):
        if method in own and not callable(getattr(cls, method)):
            raise TypeError(
                f"{owner}.{method}: it must be a method; write def {method}(self, ...)."
            )
    if "__init__" in own:
        _check_constructor(f"{owner}.__init__", cls)


def _check_constructor(where: str, cls: type) -> None:
    parameters = signatures.parameters(cls)
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise TypeError(
            f"{where}: it does not take **common; take it last and hand it on, {ORDER}, so that "
            "name, weight_decay and the other common arguments can be given, saved and loaded."
        )
    if not any(p.name == "learning_rate" for p in parameters):
        raise TypeError(
            f"{where}: it does not take learning_rate, which every config holds; take it and hand "
            f"it on, {ORDER}."
        )
    for p in parameters:
        if p.kind in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY):
            raise TypeError(
                f"{where}: {p.name} cannot be given by name, as a config does; write it as an "
                "ordinary argument."
            )


def _overrides(cls: type, method: str) -> bool:
    """Returns whether a class, or one between it and the engine's, overrides a method."""
    return sum(method in vars(base) for base in cls.__mro__) > 1


def check(optimizer: Any, variables: Mapping[str, Any]) -> None:
    """Refuses an optimizer that could not make a step or be saved, before its state is made.

    The check traces a step for each shape of a variable, which takes about 10 ms. It skips the
    classes of this package, which the tests check.

    Args:
        optimizer: the optimizer, about to be built; its children are checked, too.
        variables: the variables that it is built for, by path.

    Raises:
        TypeError, ValueError: the optimizer is refused; the message names the class, and says what
            to do.
    """
    for child in getattr(optimizer, "children", dict)().values():
        check(child, variables)
    if type(optimizer).__module__.partition(".")[0] != PACKAGE:
        check_fully(optimizer, variables)


def check_fully(optimizer: Any, variables: Mapping[str, Any]) -> None:
    """Runs `check` on one optimizer, even of this package."""
    cls = type(optimizer)
    _check_attributes(optimizer)
    shared = optimizer.shared_slots()
    _check_slots(f"{cls.__name__}.shared_slots", shared, {}, ())
    taken = (*RESERVED, *shared)
    method = "slots_for" if _overrides(cls, "slots_for") else "slots"
    for path, variable in variables.items():
        slots = optimizer.slots_for(path)
        _check_slots(f"{cls.__name__}.{method}", slots, {path: variable}, taken)
        if not optimizer.whole(path):
            _refuse_mistaken_rows(f"{cls.__name__}.{method}", slots, path, variable)
    if _overrides(cls, "step"):
        own = {path: v for path, v in variables.items() if not optimizer.rule.serving(path)}
        for path, variable in _distinct(optimizer, own):
            TracedStep(optimizer, path, variable, shared).check()
    elif not _overrides(cls, "propose"):
        raise TypeError(
            f"{cls.__name__}: it has no step; write def step(self, g, w, s, lr, t), which returns "
            "the step to add to the weights and a dict of the new slots."
        )


def _check_attributes(optimizer: Any) -> None:
    """Refuses an optimizer with an argument that is neither in an attribute nor in the config."""
    cls = type(optimizer)
    names = [p.name for p in signatures.parameters(cls) if p.kind is not p.VAR_KEYWORD]
    lost = [name for name in names if not hasattr(optimizer, name)]
    if lost:
        with contextlib.suppress(AttributeError):
            lost = [name for name in lost if name not in optimizer.get_config()]
    if lost:
        raise TypeError(
            f"{cls.__name__}.__init__: its argument '{lost[0]}' is not kept, so that it would be "
            f"missing from the config; write self.{lost[0]} = {lost[0]}."
        )


def _check_slots(
    where: str, given: Any, variable: Mapping[str, Any], taken: Collection[str]
) -> None:
    """Refuses anything but a dict of slots under free roles.

    Args:
        where: the method that returned `given`.
        given: the result of the method.
        variable: the variable of the slots, by its path; none for shared slots.
        taken: the roles that are not free.
    """
    if not isinstance(given, dict) or not all(isinstance(role, str) for role in given):
        raise TypeError(
            f"{where}: it returns {checks.shown(given)}, and must return a dict of slots by role, "
            "such as {'momentum': Slot()}."
        )
    for role, slot in given.items():
        if not isinstance(slot, Slot):
            raise TypeError(
                f"{where}: '{role}' is {checks.shown(slot)}, and must be a tf_graft.Slot; "
                "Slot() is zeros of the variable's shape."
            )
        if role in taken:
            raise checked_state.role_in_use(where, role)
        _check_slot(f"{where}: '{role}'", slot, variable)


def _check_slot(where: str, slot: Slot, variable: Mapping[str, Any]) -> None:
    known = isinstance(slot.shape, tuple) or callable(slot.shape) or slot.shape in SHAPES
    if not known or (callable(slot.shape) and not variable):
        raise ValueError(
            f"{where} has shape={checks.shown(slot.shape)}; a shape is a tuple, one of "
            f"{', '.join(map(repr, SHAPES))}, or, for a slot of a variable, a function of that "
            "variable's shape."
        )
    for path, value in variable.items():
        shape = slot.shape_for(value)
        if not isinstance(shape, tuple) or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ValueError(
                f"{where} has the shape {checks.shown(shape)} for '{path}', whose shape is "
                f"{tuple(value.shape)}; its function must return a tuple of whole numbers."
            )
    try:
        tf.as_dtype(slot.dtype or "float32")
    except TypeError:
        raise TypeError(f"{where} has dtype={checks.shown(slot.dtype)}, which is none.") from None


def _refuse_mistaken_rows(where: str, slots: dict[str, Slot], path: str, variable: Any) -> None:
    """Refuses a slot of a square variable's columns, which would be taken for one of its rows."""
    for role, slot in slots.items():
        first = slot.shape_for(variable)[:1]
        of_columns = any(isinstance(length, Dimension) and length.axis for length in first)
        if of_columns and first == tuple(variable.shape)[:1]:
            raise ValueError(
                f"{where}: '{role}' is of the columns of '{path}', which are as many as its rows, "
                "so that a row-sparse gradient would take some of it for its rows; define "
                "whole(self, path), and return True for such a variable."
            )


def _distinct(optimizer: Any, variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields one of each group of variables that `step` cannot tell apart."""
    seen = []
    for path, variable in variables.items():
        slots = {role: s._replace(fill=0.0) for role, s in optimizer.slots_for(path).items()}
        key = (tuple(variable.shape), variable.dtype, slots, optimizer.traits(path))
        if key not in seen:
            seen.append(key)
            yield path, variable
