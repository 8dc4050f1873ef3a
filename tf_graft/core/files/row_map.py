"""Maps the rows of a saved table to those of a present one, which has other rows."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core.errors import CheckpointError
from tf_graft.core.files.checked_state import Found, Value, found_again, saved_names
from tf_graft.core.files.identity import Named
from tf_graft.core.state import slots
from tf_graft.core.types import Entry


class RowMap(NamedTuple):
    """Which saved row each row of a present table takes over.

    Args:
        path: the table, for messages.
        former: the saved rows' numbers; -1 for a row that is new. Of shape [present rows].
    """

    path: str
    former: np.ndarray

    @property
    def new(self) -> np.ndarray:
        """The numbers of the present rows that were not saved."""
        return np.flatnonzero(self.former < 0)

    def shape(self, saved: Sequence[int]) -> list[int]:
        """Returns the shape that values of a saved shape have when they are mapped.

        Raises:
            CheckpointError: the map names a row that was not saved.
        """
        count, last = (saved[0] if len(saved) else 0), self.former.max(initial=-1)
        if last >= count:
            raise CheckpointError(
                f"the map of '{self.path}' names row {last}, and the saved table has {count} rows"
            )
        return [len(self.former), *saved[1:]]

    def taken(self, saved: Value, present: keras.Variable) -> np.ndarray:
        """Returns saved values by the present rows; new rows have their present values."""
        result = np.take(np.asarray(saved), self.former, axis=0, mode="clip")
        if self.new.size:
            result[self.new] = _rows_of(present, self.new)
        return result


def as_present(found: Found, maps: Mapping[str, RowMap], named: Named) -> Found:
    """Returns saved state with its rows mapped to the present ones; they are mapped when read.

    Args:
        found: the saved state.
        maps: the maps of the state that has rows, by its present names.
        named: all variables by their present names.
    """
    shapes = dict(found.shapes)
    names = saved_names(shapes, named)
    if not shapes.keys() >= set(names.values()):  # some variables were not saved
        names = found_again(shapes, named)
    for name, rows in maps.items():
        if (saved := names.get(name)) in found.shapes:
            shapes[saved] = rows.shape(found.shapes[saved])

    def values(wanted: Named, names: Mapping[str, str]) -> dict[str, Value]:
        given = found.values(wanted, names)
        return {n: _mapped(v, maps[n], wanted[n]) if n in maps else v for n, v in given.items()}

    return found._replace(shapes=shapes, values=values)


def _mapped(saved: Value, rows: RowMap, variable: keras.Variable) -> Entry:
    shape = tuple(rows.shape(saved.shape))
    return Entry(lambda: rows.taken(saved, variable), shape, saved.dtype)


def _rows_of(variable: keras.Variable, rows: np.ndarray) -> np.ndarray:
    if slots.layout_of(variable) is not None:  # a mesh gathers no rows by ordinary numbers
        return variable.numpy()[rows]
    return tf.gather(tf.convert_to_tensor(variable), rows).numpy()
