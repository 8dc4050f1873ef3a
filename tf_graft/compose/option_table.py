"""Determines which of two optimizers acts on a common argument: the outer or the inner one.

`TABLE` is the rule, `divided` enforces it, and `docs/guides/wrappers.md` shows it.
"""

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tf_graft.core.arguments.options import CLIPS, OPTIONS
from tf_graft.core.checks import shown
from tf_graft.core.types import Config


class Acts(enum.Enum):
    """Which of two optimizers acts, and what happens if the other one is given the argument."""

    OUTER = "the outer one; takes over what the inner one was given, if it is given none itself"
    INNER = "the inner one; the outer argument sets the inner one's, if it is not None"
    BOTH = "both"
    OWN = "each on its own gradients"
    OUTSIDE = "the outer one; refused inside"
    INSIDE = "the inner one; refused outside"
    SHARED = "the outer one; refused inside, unless it is the same there"
    EITHER = "the one that it is given to; refused if both are given one"
    NEITHER = "refused on either"


class Outcome(NamedTuple):
    """The arguments of two optimizers after they have been divided.

    Args:
        outer: the common arguments of the outer optimizer.
        inner: the arguments to set on the inner optimizer.
    """

    outer: Config
    inner: Config


# The columns: an optimizer, and the one inside it.
#
# around      LARC(optimizer)
# mixed       MixedPrecision(optimizer)
# local       AGN(optimizer)
# center      AGN(center_optimizer)
# composed    AdaGraft(magnitude_optimizer, direction_optimizer), LayerwiseRates(optimizer)
# parts       MultiOptimizer({pattern: optimizer, ...})
# matrices    Muon(others=optimizer), and the other optimizers of matrices
# keras       wrap(optimizer)
COLUMNS = ("around", "mixed", "local", "center", "composed", "parts", "matrices", "keras")
_O, _I, _B = Acts.OUTER, Acts.INNER, Acts.BOTH
_OWN, _OUTSIDE, _INSIDE, _SHARED = Acts.OWN, Acts.OUTSIDE, Acts.INSIDE, Acts.SHARED
_EITHER, _NEITHER = Acts.EITHER, Acts.NEITHER
TABLE: dict[str, tuple[Acts, ...]] = {
    "weight_decay": (_I, _I, _INSIDE, _OWN, _B, _I, _OWN, _EITHER),
    "weight_decay_mode": (_I, _I, _INSIDE, _OWN, _B, _I, _OWN, _O),
    "exclude_from_weight_decay": (_B, _B, _B, _B, _B, _B, _B, _B),
    "clipnorm": (_O, _O, _O, _OWN, _OUTSIDE, _OWN, _OUTSIDE, _O),
    "clipvalue": (_O, _O, _O, _OWN, _OUTSIDE, _OWN, _OUTSIDE, _O),
    "global_clipnorm": (_O, _O, _O, _OWN, _OUTSIDE, _OUTSIDE, _OUTSIDE, _O),
    "use_ema": (_O, _O, _NEITHER, _OWN, _OUTSIDE, _OUTSIDE, _OUTSIDE, _O),
    "ema_momentum": (_O, _O, _NEITHER, _OWN, _OUTSIDE, _OUTSIDE, _OUTSIDE, _O),
    "ema_overwrite_frequency": (_O, _O, _NEITHER, _OWN, _OUTSIDE, _OUTSIDE, _OUTSIDE, _O),
    "loss_scale_factor": (_O, _NEITHER, _O, _OUTSIDE, _OUTSIDE, _OUTSIDE, _OUTSIDE, _O),
    "gradient_accumulation_steps": (_O, _O, _O, _OUTSIDE, _OUTSIDE, _OUTSIDE, _OUTSIDE, _O),
    "name": (_OWN, _OWN, _OWN, _OWN, _OWN, _OWN, _OWN, _O),
    "mesh": (_O, _O, _O, _SHARED, _SHARED, _SHARED, _SHARED, _O),
    "jit_compile": (_O, _O, _O, _SHARED, _SHARED, _SHARED, _SHARED, _O),
    "sparse": (_O, _O, _O, _SHARED, _SHARED, _SHARED, _SHARED, _O),
    "nonfinite": (_O, _O, _O, _OWN, _OUTSIDE, _OUTSIDE, _OUTSIDE, _O),
    "learning_rate_multipliers": (_O, _O, _O, _OWN, _OUTSIDE, _OUTSIDE, _OUTSIDE, _O),
    "count_rows": (_O, _O, _NEITHER, _NEITHER, _OUTSIDE, _OUTSIDE, _OUTSIDE, _NEITHER),
    "clip_rows": (_O, _O, _NEITHER, _NEITHER, _OUTSIDE, _OUTSIDE, _OUTSIDE, _O),
    "state_dtype": (_O, _O, _NEITHER, _NEITHER, _OUTSIDE, _OUTSIDE, _OUTSIDE, _O),
    "master_weights": (_O, _O, _NEITHER, _NEITHER, _OUTSIDE, _OUTSIDE, _OUTSIDE, _O),
}
# Why an argument is refused, and what to do instead; otherwise it is for the outer optimizer.
_OF_LOSS = "only optimizer sees gradients of the loss; give it to optimizer"
_OF_CENTER = "the center is averaged, not the local copies; give it to center_optimizer"
_OF_WORKERS = "AGN exchanges state in float32; give None"
_OF_COPIES = "AGN exchanges weights in float32; give True"
_OF_ROUNDS = "AGN counts the updates of whole variables; give None"
_OF_KERAS = "an optimizer of Keras has one count for all rows; give this to one of tf_graft's own"
_OF_EACH = "each of the two optimizers has its own; give it to optimizer"
_OF_WHOLE = "AGN clips whole gradients; give None"
REASONS = {
    ("clip_rows", "local"): _OF_WHOLE,
    ("clip_rows", "center"): _OF_WHOLE,
    ("count_rows", "local"): _OF_ROUNDS,
    ("count_rows", "center"): _OF_ROUNDS,
    ("count_rows", "keras"): _OF_KERAS,
    ("state_dtype", "local"): _OF_WORKERS,
    ("state_dtype", "center"): _OF_WORKERS,
    ("master_weights", "local"): _OF_COPIES,
    ("master_weights", "center"): _OF_COPIES,
    ("weight_decay", "local"): _OF_EACH,
    ("weight_decay_mode", "local"): _OF_EACH,
    ("use_ema", "local"): _OF_CENTER,
    ("ema_momentum", "local"): _OF_CENTER,
    ("ema_overwrite_frequency", "local"): _OF_CENTER,
    ("loss_scale_factor", "mixed"): "the loss would be scaled twice; give loss_scale only",
    ("loss_scale_factor", "center"): _OF_LOSS,
    ("gradient_accumulation_steps", "center"): _OF_LOSS,
}


class Pair(NamedTuple):
    """An optimizer and the one inside it, as messages show them.

    Args:
        column: the column of the table.
        outer: the outer class.
        argument: the argument of the outer class that is the inner optimizer.
        inner: the inner class.
    """

    column: str
    outer: str
    argument: str
    inner: str

    def acts(self, name: str) -> Acts:
        """Returns which of the two acts on a common argument."""
        return TABLE[name][COLUMNS.index(self.column)]

    def refusal(self, name: str, value: object, inside: bool) -> ValueError:
        """Returns the error for an argument that was given to the wrong one of the two."""
        given = f"{name}={shown(value)}"
        where = f"{self.argument}={self.inner}({given})" if inside else given
        for_all = f"{name} is one for all of its variables; give it to {self.outer}"
        return ValueError(f"{self.outer}({where}): {REASONS.get((name, self.column), for_all)}.")


def divided(pair: Pair, given: Mapping[str, Any], inside: Mapping[str, Any]) -> Outcome:
    """Divides the common arguments between an optimizer and the one inside it.

    Args:
        pair: the two optimizers.
        given: the arguments given to the outer one.
        inside: the values of the inner one.

    Raises:
        TypeError, ValueError: an argument is out of range, or not allowed for its optimizer.
    """
    outer, inner = dict(given), {}
    lacking = {name: OPTIONS[name].default for name in given if name in OPTIONS}  # as Keras' do
    for name, held in {**lacking, **inside}.items():
        option, acts = OPTIONS[name], pair.acts(name)
        value = outer.get(name, option.default)
        if not _same(held, option.default) and _refused_inside(acts, held, value):
            raise pair.refusal(name, held, inside=True)
        if not _same(value, option.default) and acts in (Acts.INSIDE, Acts.NEITHER):
            raise pair.refusal(name, value, inside=False)
        if acts is Acts.OUTER:
            inner[name] = option.default
            if not _replaced(name, given):
                outer[name] = held
        if acts is Acts.INNER and outer.pop(name, None) is not None:
            inner[name] = option.checked(pair.outer, value)
    return Outcome(outer, inner)


def refuse_unused(pair: Pair, given: Mapping[str, Any], inside: Mapping[str, Any]) -> None:
    """Refuses arguments set later on one of two optimizers, if it does not act on them.

    Args:
        pair: the two optimizers.
        given: the values of the outer one.
        inside: the values of the inner one.

    Raises:
        ValueError: an argument would have no effect.
    """
    for name in inside.keys() - {"mesh"}:  # the outer one sets the mesh
        held, value, default = inside[name], given[name], OPTIONS[name].default
        acts = pair.acts(name)
        unused = acts is Acts.OUTER or _refused_inside(acts, held, value)
        if unused and not _same(held, default):
            raise pair.refusal(name, held, inside=True)
        # `loss_scale_factor` of an optimizer that scales the loss is its scaler.
        if acts is Acts.NEITHER and name != "loss_scale_factor" and not _same(value, default):
            raise pair.refusal(name, value, inside=False)


def taken_over(column: str) -> list[str]:
    """Returns the arguments that the outer optimizer takes over from the inner one."""
    return [name for name in TABLE if Pair(column, "", "", "").acts(name) is Acts.OUTER]


def _refused_inside(acts: Acts, held: object, outer: object) -> bool:
    return acts in (Acts.OUTSIDE, Acts.NEITHER) or (acts is Acts.SHARED and not _same(held, outer))


def _same(one: object, other: object) -> bool:
    """Returns whether two values are equal; arrays never are, and a mesh never equals None."""
    if one is None or other is None:
        return one is other
    equal = one == other
    return isinstance(equal, bool | np.bool_) and bool(equal)


def _replaced(name: str, given: Mapping[str, Any]) -> bool:
    """Returns whether the outer optimizer is given the argument, or another way of clipping."""
    return name in given or (name in CLIPS and any(given.get(clip) is not None for clip in CLIPS))
