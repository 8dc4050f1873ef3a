"""A run's logs: CSVs that grow by rows."""

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tf_graft.training.folder import write


class Log:
    """A CSV that grows by rows and never holds one twice, whatever happens to the process.

    Opened at step `n`, rows of later steps, and what a killed process left of a row, are dropped.
    """

    def __init__(self, path: Path, columns: Sequence[str], step: int) -> None:
        kept = _complete_rows(path, columns, step)
        write(path, "".join([",".join(columns) + "\n", *kept]))
        self._columns = columns
        self._file = open(path, "a", buffering=1)  # noqa: SIM115  (a line at a time, for long)

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row; floats in the shortest form that reads back as the same float32."""
        values = (row[column] for column in self._columns)
        texts = (str(np.float32(v) if isinstance(v, float) else v) for v in values)
        self._file.write(",".join(texts) + "\n")

    def sync(self) -> None:
        """Returns when the rows are on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Ends the log."""
        self._file.close()


def read(path: Path) -> dict[str, np.ndarray]:
    """The columns of a log."""
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    return {name: np.array([float(row[name]) for row in rows]) for name in (rows or [{}])[0]}


def _complete_rows(path: Path, columns: Sequence[str], step: int) -> list[str]:
    if not path.exists():
        return []
    header, *rows = path.read_text(errors="replace").splitlines(keepends=True) or [""]
    if header.strip().split(",") != list(columns):
        return []
    position = columns.index("step")
    complete = [row for row in rows if row.endswith("\n") and row.count(",") == len(columns) - 1]
    numbers = [row.split(",")[position] for row in complete]
    return [row for row, n in zip(complete, numbers, strict=True) if n.isdigit() and int(n) <= step]
