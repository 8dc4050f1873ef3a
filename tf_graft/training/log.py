"""A run's logs: CSVs that grow by rows, each of which ends with its checksum."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tf_graft.core.checks import CheckpointError
from tf_graft.core.whole_files import write
from tf_graft.report.rows import Rows, checksum, unreadable

CHECKSUM = "crc32"  # the last column; logs of earlier versions have none
STEP = re.compile(r"\d{1,18}", re.ASCII)


class Log:
    """A CSV that grows by rows and never holds one twice, whatever happens to the process.

    Opened at step `n`, rows of later steps, and what a killed process left of a row, are dropped.

    Raises:
        CheckpointError: the file is no such log.
    """

    def __init__(self, path: Path, columns: Sequence[str], step: int) -> None:
        found = _parsed(path)
        kept = found.texts[: found.rows.until(step)]
        if kept and found.columns != list(columns):
            raise CheckpointError(
                f"{path} has the columns {','.join(found.columns)}, and {','.join(columns)} are "
                "wanted; remove it to go on without its rows."
            )
        self.path = path
        self._columns, self._checksum = columns, _of_header(columns)
        write(path, "".join([_header(columns), *map(self._sealed, kept)]))
        self._file = open(path, "a", buffering=1)  # noqa: SIM115  (a line at a time, for long)

    def add(self, row: Mapping[str, Any]) -> None:
        """Appends a row; floats in the shortest form that reads back as the same float32."""
        values = (row[column] for column in self._columns)
        texts = (str(np.float32(v) if isinstance(v, float) else v) for v in values)
        self._file.write(self._sealed(",".join(texts)))

    def sync(self) -> int:
        """Returns the checksum of all rows when they are on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._checksum

    def close(self) -> None:
        """Ends the log."""
        self._file.close()

    def _sealed(self, text: str) -> str:
        """The row's line."""
        self._checksum = checksum(f"{text}\n".encode(), self._checksum)
        return f"{text},{self._checksum}\n"


class _Content(NamedTuple):
    columns: list[str]
    texts: list[str]  # of the rows, without their checksums
    rows: Rows


def rows(path: Path) -> Rows:
    """The rows of a log, as far as they are whole."""
    return _parsed(path).rows


def read(path: Path) -> dict[str, np.ndarray]:
    """The columns of a log, as far as its rows are whole."""
    columns, texts, _ = _parsed(path)
    table = np.array([text.split(",") for text in texts]).reshape(len(texts), len(columns))
    return {name: table[:, i].astype(float) for i, name in enumerate(columns)}


def _parsed(path: Path) -> _Content:
    try:
        header, *lines = path.read_text(errors="replace").split("\n")
    except FileNotFoundError:
        return _Content([], [], Rows(even=True))
    except OSError as error:
        return _Content([], [], Rows(damage=unreadable(error), even=True))
    columns = header.split(",")
    sealed = columns[-1] == CHECKSUM
    if sealed:
        columns.pop()
    if "step" not in columns:
        damage = "line 1 is damaged" if header or lines else ""
        return _Content([], [], Rows(damage=damage, even=True))
    return _whole(columns, lines[:-1], sealed)  # the last has no end: a row that is torn


def _whole(columns: list[str], lines: list[str], sealed: bool) -> _Content:
    """The lines up to the first that is damaged."""
    texts: list[str] = []
    steps: list[int] = []
    checksums = [_of_header(columns)]
    damage = ""
    for number, line in enumerate(lines, 2):
        text, _, given = line.rpartition(",") if sealed else (line, "", "")
        step = _step(text, columns)
        seal = checksum(f"{text}\n".encode(), checksums[-1])
        if step is None or not _next(step, steps) or (sealed and given != str(seal)):
            damage = f"line {number} is damaged"
            break
        texts.append(text)
        steps.append(step)
        checksums.append(seal)
    return _Content(columns, texts, Rows(steps, checksums[1:], checksums[0], damage, even=True))


def _step(text: str, columns: Sequence[str]) -> int | None:
    """The step of a row; None where it is no row of numbers."""
    cells = text.split(",")
    try:
        numbers = [float(cell) for cell in cells]
    except ValueError:
        return None
    step = cells[columns.index("step")] if len(numbers) == len(columns) else ""
    return int(step) if STEP.fullmatch(step) else None


def _next(step: int, steps: Sequence[int]) -> bool:
    """Whether a row of `step` can come next: all are as far from one another as the first two."""
    if len(steps) < 2:
        return not steps or step > steps[0]
    return step - steps[-1] == steps[1] - steps[0]


def _header(columns: Sequence[str]) -> str:
    return ",".join([*columns, CHECKSUM]) + "\n"


def _of_header(columns: Sequence[str]) -> int:
    return checksum(f"{','.join(columns)}\n".encode())
