"""How each part of the evidence ended, in a file that is kept after each of them."""

import datetime
import json
import pathlib
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from evidence import changes
from tf_graft.core.files import whole_files

FILE = changes.ROOT / "docs" / "data" / "evidence.json"


class Row(NamedTuple):
    """How a part ended.

    Attributes:
        tried: how many checks it made.
        wrong: what was wrong, a line for each.
        seconds: how long it took.
        commit: whose code it checked.
        version: of the package.
        on: the versions of TensorFlow and Keras.
        date: when it ended, as YYYY-MM-DD.
    """

    tried: int
    wrong: Sequence[str]
    seconds: float
    commit: str
    version: str
    on: str
    date: str

    @classmethod
    def of_today(cls, tried: int, wrong: Sequence[str], seconds: float, commit: str) -> "Row":
        """Makes the row of a part that has ended now."""
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        on = f"TensorFlow {tf.__version__}, Keras {keras.__version__}"
        return cls(tried, wrong, round(seconds, 1), commit, changes.version(), on, today)

    def stale(self, rests_on: Iterable[str], but_not: Iterable[str] = ()) -> bool:
        """Returns whether code that the part rests on has changed since, or may have.

        Args:
            rests_on: how the names of this code begin, see `changes.changed`.
            but_not: how names of other code begin, among these.
        """
        try:
            changed = changes.changed(self.commit)
        except changes.UnknownCommit:
            return True
        rests_on, but_not = tuple(rests_on), tuple(but_not)
        return any(x.startswith(rests_on) and not x.startswith(but_not) for x in changed)


class Ledger:
    """The rows of all suites.

    Args:
        path: the file; it need not exist.
    """

    def __init__(self, path: pathlib.Path = FILE):
        self.path = path
        content = json.loads(path.read_text("utf-8")) if path.exists() else {}
        self.rows = {
            suite: {part: Row(**row) for part, row in kept["rows"].items()}
            for suite, kept in content.items()
        }
        self._suites = {suite: (kept["shows"], kept["parts"]) for suite, kept in content.items()}

    def row(self, suite: str, part: str) -> Row | None:
        """Returns how a part ended; None if it has not been made."""
        return self.rows.get(suite, {}).get(part)

    def keep(self, suite: str, part: str, row: Row) -> None:
        """Adds a row to a suite that was entered, and writes the file."""
        self.rows[suite][part] = row
        self.write()

    def enter(self, suite: str, shows: str, parts: Collection[str]) -> None:
        """Enters what a suite shows and how many parts it has; rows of other parts are dropped."""
        rows = self.rows.get(suite, {})
        self.rows[suite] = {part: rows[part] for part in parts if part in rows}
        self._suites[suite] = (shows, len(parts))

    def write(self) -> None:
        """Writes the file."""
        content = {
            suite: {
                "shows": shows,
                "parts": parts,
                "rows": {part: row._asdict() for part, row in self.rows[suite].items()},
            }
            for suite, (shows, parts) in self._suites.items()
        }
        whole_files.write(self.path, json.dumps(content, indent=1) + "\n")
