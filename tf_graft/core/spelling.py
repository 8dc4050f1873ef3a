"""How names are written and compared; needs no TensorFlow."""

import difflib
import re
from collections.abc import Iterable, Mapping

PACKAGE = "tf_graft>"  # Keras' prefix for the registered name of a class of this package
SHORT = 200  # the most characters of a list of names in a message
COMPARED = 200  # the most characters of an unknown name that are compared: each costs time


def plain(name: str) -> str:
    """Returns the form in which names are compared.

    Case, underscores and Keras' prefix for this package do not matter.

    Example:
        >>> plain("tf_graft>LogMaxScaler") == plain("log_max_scaler")
        True
    """
    return name.removeprefix(PACKAGE).replace("_", "").lower()


def snake_case(name: str) -> str:
    """Returns a class's name as configs write it.

    Example:
        >>> [snake_case(name) for name in ("AdaGraft", "FixedLR", "AdamW", "SGD")]
        ['ada_graft', 'fixed_lr', 'adamw', 'sgd']
    """
    return re.sub(r"(?<=[a-z])([A-Z])(?=[A-Za-z])", r"_\1", name).lower()


def suggest(
    name: str, known: Iterable[str], listing: str = "", aliases: Mapping[str, str] | None = None
) -> str:
    """Ends an error sentence about an unknown name: what was probably meant, or what there is.

    Args:
        name: the unknown name.
        known: the names that exist.
        listing: what lists all of them, for many names.
        aliases: further names that are understood, and the known names that they stand for.

    Example:
        >>> suggest("sdg", ["adam", "sgd"]), suggest("x", ["adam", "sgd"])
        ("did you mean 'sgd'?", 'there are adam, sgd.')
        >>> suggest("x", map(str, range(100, 200)), "a file")
        'the nearest are 100, 101, 102; a file lists all.'
    """
    known, aliases = sorted(set(known)), aliases or {}
    if near := meant(name, [*known, *aliases]):
        return f"did you mean '{aliases.get(near, near)}'?"
    everything = ", ".join(known)
    if len(everything) <= SHORT:
        return f"there are {everything}."
    others = f"{listing} lists all" if listing else f"there are {len(known)}"
    return f"the nearest are {', '.join(nearest(name, known, 3))}; {others}."


def meant(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that an unknown name probably stands for; None if there is none.

    Example:
        >>> meant("adma", ["adamax", "adam"]), meant("dataset", ["data"])
        ('adam', 'data')
        >>> meant("momentum", ["ema_momentum"])
    """
    given = plain(name[:COMPARED])
    for near in nearest(name, known, 1):
        begins = plain(near).startswith(given) or given.startswith(plain(near))
        if begins or _errors(given, plain(near)) <= len(given) // 3:
            return near
    return None


def slip(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name of which a name is a slip of the pen; None if it may be meant so.

    Example:
        >>> slip("weight_deacy", ["weight_decay"]), slip("clip_norm", ["clipnorm"])
        ('weight_decay', 'clipnorm')
        >>> slip("beta_3", ["beta_1", "beta_2"])
    """
    given = plain(name[:COMPARED])
    near = nearest(name, known, 1)
    return next((x for x in near if _errors(given, plain(x)) <= len(given) // 6), None)


def nearest(name: str, known: Iterable[str], count: int) -> list[str]:
    """Returns the known names that differ least from a name, the nearest first.

    Example:
        >>> nearest("sdg", ["adam", "sgd", "lars"], 2)
        ['sgd', 'adam']
    """
    given = plain(name[:COMPARED])

    def distance(other: str) -> tuple[int, float]:
        shared = difflib.SequenceMatcher(None, given, plain(other)).ratio()
        return _errors(given, plain(other)), -shared

    return sorted(known, key=distance)[:count]


def _errors(a: str, b: str) -> int:
    """Counts the letters to insert, remove, replace or exchange with the next (Damerau, 1964)."""
    before: list[int] = []
    last = [*range(len(b) + 1)]
    for i, x in enumerate(a, 1):
        now = [i]
        for j, y in enumerate(b, 1):
            now.append(min(last[j] + 1, now[-1] + 1, last[j - 1] + (x != y)))
            if i > 1 and j > 1 and x == b[j - 2] and y == a[i - 2]:
                now[j] = min(now[j], before[j - 2] + 1)
        before, last = last, now
    return last[-1]
