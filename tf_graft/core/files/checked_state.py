"""Saves and loads state by path and role; state that does not fit is refused."""

import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core.errors import CheckpointError
from tf_graft.core.files.identity import Named, Shapes, unfit
from tf_graft.core.state import write

Saved = dict[str, np.ndarray]
Value: TypeAlias = Any  # an array, or an `Entry` of a file
Values: TypeAlias = Mapping[str, Value]
Names: TypeAlias = Collection[str]

SHOWN = 5  # paths, in a message
IDENTITY = "optimizer"  # the key in a store of the entry that identifies its optimizer


class Found(NamedTuple):
    """State that an optimizer of this package saved.

    Args:
        shapes: the shape of every variable, by the name it was saved under.
        values: returns the saved values of variables by their present names; called with the
            variables and with the name that each was saved under.
        store: the contents of a Keras weights store; None if the state is not from one.
    """

    shapes: Shapes
    values: Callable[[Named, Mapping[str, str]], Mapping[str, Value]]
    store: Values | None = None


def refuse_clashes(
    owner: str,
    slots_of: Mapping[str, Mapping[str, object]],
    engine_of: Mapping[str, Mapping[str, object]],
    shared: Mapping[str, object],
    scalars: Mapping[str, object],
) -> None:
    """Refuses an optimizer if two parts of its state have the same name.

    Args:
        owner: the optimizer's class.
        slots_of: for each path, its slots by role.
        engine_of: for each path, the engine's state for it, by role.
        shared: its shared slots by role.
        scalars: the engine's scalars, by role.

    Raises:
        ValueError: there are such parts; the message names the class and the role.
    """
    uses = [("shared_slots", role, {*scalars, IDENTITY}) for role in shared]
    uses += [("slots", r, {*engine_of[p], *shared}) for p, roles in slots_of.items() for r in roles]
    for method, role, taken in uses:
        if role in taken:
            raise role_in_use(f"{owner}.{method}", role)
    both = (slots_of, engine_of)
    of_variables = [f"{p}/{r}" for given in both for p, roles in given.items() for r in roles]
    name, count = Counter([*shared, *scalars, *of_variables]).most_common(1)[0]
    if count > 1:
        raise ValueError(
            f"{owner}.build: two parts of its state would be saved as '{name}'; give the variable "
            "or the slot another name."
        )


def role_in_use(where: str, role: str) -> ValueError:
    """Returns the error for a slot of a role that the optimizer itself uses."""
    return ValueError(
        f"{where}: the role '{role}' is in use by the optimizer itself, and one of the two would "
        "be lost when it is saved; call it by another name."
    )


def fitting(
    owner: str, found: Found, named: Named, own: Mapping[str, Names], loose: bool = False
) -> dict[str, Value]:
    """Returns the saved values by the names of the variables.

    If other layers were trained when the state was saved, it is that of more or of fewer model
    variables, or in another order. A warning then names the variables of only one side, and the
    state of the others is returned.

    Args:
        owner: the optimizer.
        found: the saved state.
        named: the optimizer's variables.
        own: the names of each model variable's state, by the variable's path, if it may differ
            which variables there are; empty if not.
        loose: whether values may be infinite or NaN.

    Raises:
        CheckpointError: the state belongs to other variables, or is damaged.
    """
    names = saved_names(found.shapes, named)
    all_saved = found.shapes.keys() == set(names.values())
    others = None if all_saved else _other_variables(found.shapes, named, own)
    if others is None:
        _refuse_differences(owner, found.shapes, names, named)
    else:
        if others.new or others.gone:
            warnings.warn(f"{owner}: {others.described()}", stacklevel=2)
        names, named = others.names, {n: v for n, v in named.items() if n in others.names}
    given = found.values(named, names)
    return {name: checked(owner, name, v, given.get(name), loose) for name, v in named.items()}


class Others(NamedTuple):
    """The model variables that differ between an optimizer and a saved state.

    Args:
        names: the name under which each other variable of the optimizer was saved.
        new: the paths of the model variables without saved state.
        gone: the saved paths of the model variables that the optimizer was not built for.
    """

    names: dict[str, str]
    new: Sequence[str]
    gone: Sequence[str]

    def described(self) -> str:
        """Describes what is loaded."""
        said = []
        if self.new:
            said.append(f"state for {_listing(self.new)} was not saved and stays as it is")
        if self.gone:
            said.append(f"the saved state of {_listing(self.gone)}, not trained here, is left out")
        return f"{'; '.join(said)}. All other state was loaded."


def _other_variables(saved: Shapes, named: Named, own: Mapping[str, Names]) -> Others | None:
    """Returns the model variables of only one side; None if there is another kind of difference."""
    found = found_again(saved, named)
    new = [p for p, names in own.items() if names and not any(name in found for name in names)]
    both = {path: names for path, names in own.items() if path not in new}
    roles = {name.removeprefix(f"{path}/") for path, names in both.items() for name in names}
    left = saved.keys() - found.values()
    gone = {n.removesuffix(f"/{r}") for n in left for r in roles if n.endswith(f"/{r}")}
    explained = all(any(name == f"{p}/{r}" for p in gone for r in roles) for name in left)
    wanted = [n for n in named if not any(n in own[path] for path in new)]
    same = all(n in found and saved[found[n]] == list(named[n].shape) for n in wanted)
    if (new and gone) or not (both and explained and same):
        return None
    return Others(found, new, sorted(gone))


def found_again(saved: Iterable[str], named: Iterable[str]) -> dict[str, str]:
    """Returns the saved name of each name that was saved, as it is or as `renamed` describes it."""
    ours, theirs = set(named), set(saved)
    result = {name: name for name in ours & theirs}
    candidates = {
        name: [other for other in theirs - ours if renamed([other], [name])]
        for name in ours - theirs
    }
    single = {name: found[0] for name, found in candidates.items() if len(found) == 1}
    times = Counter(single.values())
    return result | {name: other for name, other in single.items() if times[other] == 1}


def checked(
    owner: str, name: str, variable: keras.Variable, given: Value | None, loose: bool = False
) -> Value:
    """Returns a value as it is if the variable can have it, so that not all are in memory at once.

    Args:
        owner: the optimizer.
        name: the variable's name.
        variable: has the shape, the dtype and the bounds that the value must have.
        given: the value, if there is one.
        loose: whether the value may be infinite or NaN if the variable has no bound.

    Raises:
        CheckpointError: the variable cannot have the value.
    """
    if given is None or tuple(given.shape) != tuple(variable.shape):
        raise unfit(owner, f"there is no value of shape {tuple(variable.shape)} for '{name}'")
    dtype = tf.as_dtype(variable.dtype).as_numpy_dtype
    if given.dtype != dtype:
        must = f"must be of {variable.dtype}"
        raise unfit(owner, f"the value for '{name}' is of dtype {given.dtype} and {must}")
    if wrong := misfit(np.asarray(given), variable.within, loose):
        raise unfit(owner, f"the value for '{name}' {wrong}")
    return given


def misfit(value: np.ndarray, within: tuple[float, float], loose: bool = False) -> str:
    """Says which entry is not finite or not `within` bounds; empty if none is.

    With `loose` an entry may be infinite or NaN if there is no upper bound.
    """
    low, high = within
    finite = np.isfinite(value)
    fits = (value >= low) & (value <= high)
    fits = fits | ~finite if loose and math.isinf(high) else fits & finite
    if np.all(fits):
        return ""
    bounds = f"at least {low:g}" if math.isinf(high) else f"in [{low:g}, {high:g}]"
    must = "be finite" if math.isinf(low) else f"be {bounds}"
    return f"holds {value[~fits].flat[0]} and must {must}"


def saved_names(saved: Iterable[str], named: Iterable[str]) -> dict[str, str]:
    """Returns the name under which each name was saved.

    The two are usually the same. Keras renames layers when it makes a model from its config or a
    second model in a process: if the names differ only in that, they are matched by order.
    """
    theirs, ours = list(saved), list(named)
    moved = set(theirs) != set(ours) and renamed(theirs, ours)
    return dict(zip(ours, theirs if moved else ours, strict=True))


def renamed(saved: Sequence[str], present: Sequence[str]) -> bool:
    """Returns whether names agree, in order, up to enclosing scopes and the numbers of layers.

    Keras numbers the layers of a second model in a process differently: `dense/kernel` becomes
    `dense_4/kernel`.
    """

    def parts(name: str) -> list[str]:
        return [re.sub(r"_\d+$", "", part) for part in reversed(name.split("/"))]

    return len(saved) == len(present) and all(
        all(x == y for x, y in zip(parts(a), parts(b), strict=False))
        for a, b in zip(saved, present, strict=True)
    )


def assign(named: Named, values: Mapping[str, Value]) -> None:
    """Assigns values to variables by name, on every replica; skips variables without a value."""
    for name, variable in named.items():
        if name in values:
            write.put_everywhere(variable, np.asarray(values[name]))


def numpy(named: Named) -> Saved:
    """Returns the current values by name."""
    return {name: variable.numpy() for name, variable in named.items()}


def _refuse_differences(owner: str, saved: Shapes, names: Mapping[str, str], named: Named) -> None:
    if saved.keys() != set(names.values()):
        names = {
            **names,
            **_matched_in_order(saved, named),
        }  # so that only what is missing is named
    present = {names[name]: list(variable.shape) for name, variable in named.items()}
    different = [name for name in {**saved, **present} if saved.get(name) != present.get(name)]
    if not different:
        return
    first = different[0]
    raise CheckpointError(
        f"{owner}: {len(different)} entries differ from the saved state. The first, '{first}', was "
        f"{_described(saved, first)} and is {_described(present, first)}. Nothing was loaded; give "
        "the optimizer the arguments and the variables that it had when it was saved, or load the "
        "weights alone: model.load_weights(..., skip_mismatch=True)."
    )


def _matched_in_order(saved: Iterable[str], named: Iterable[str]) -> dict[str, str]:
    """Returns the saved name of names that were not saved: the next of the same kind, in order."""
    ours, theirs = set(named), set(saved)
    waiting = _numbered(name for name in saved if name not in ours)
    return {
        name: waiting[key]
        for key, name in _numbered(name for name in named if name not in theirs).items()
        if key in waiting
    }


def _numbered(names: Iterable[str]) -> dict[tuple[str, int], str]:
    """Returns names by what they are without Keras' numbers, and how many such came before."""
    before: Counter[str] = Counter()
    result = {}
    for name in names:
        kind = re.sub(r"_\d+(?=/|$)", "", name)
        result[kind, before[kind]] = name
        before[kind] += 1
    return result


def _listing(paths: Sequence[str]) -> str:
    """Returns the first few paths, quoted, and how many more there are."""
    more = [f"{len(paths) - SHOWN} more"] * (len(paths) > SHOWN)
    return ", ".join([*(f"'{path}'" for path in paths[:SHOWN]), *more])


def _described(shapes: Shapes, name: str) -> str:
    return f"of shape {tuple(shapes[name])}" if name in shapes else "not there"
