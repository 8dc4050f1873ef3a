"""How each part of the evidence ended, in a file that is kept after each of them."""

import datetime
import json
import pathlib
from collections.abc import Iterable, Sequence
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

    def stale(self, rests_on: Iterable[str]) -> bool:
        """Returns whether code that the part rests on has changed since, or may have."""
        try:
            changed = changes.changed(self.commit)
        except changes.UnknownCommit:
            return True
        return any(name.startswith(tuple(rests_on)) for name in changed)


class Ledger:
    """The rows of all suites.

    Args:
        path: the file; it need not exist.
    """

    def __init__(self, path: pathlib.Path = FILE):
        self.path = path
        content = json.loads(path.read_text("utf-8")) if path.exists() else {}
        self.rows = {
            suite: {part: Row(**row) for part, row in rows.items()}
            for suite, rows in content.items()
        }

    def row(self, suite: str, part: str) -> Row | None:
        """Returns how a part ended; None if it has not been made."""
        return self.rows.get(suite, {}).get(part)

    def keep(self, suite: str, part: str, row: Row) -> None:
        """Adds a row and writes the file, in place of the one before."""
        self.rows.setdefault(suite, {})[part] = row
        self.write()

    def drop_all_but(self, suite: str, parts: Iterable[str]) -> None:
        """Removes the rows of parts that a suite no longer has."""
        kept = set(parts)
        self.rows[suite] = {p: row for p, row in self.rows.get(suite, {}).items() if p in kept}

    def write(self) -> None:
        """Writes the file, a line for each row."""
        suites = []
        for suite, rows in sorted(self.rows.items()):
            lines = (f"  {json.dumps(p)}: {json.dumps(r._asdict())}" for p, r in rows.items())
            suites.append(f" {json.dumps(suite)}: {{\n" + ",\n".join(lines) + "\n }")
        whole_files.write(self.path, "{\n" + ",\n".join(suites) + "\n}\n")
