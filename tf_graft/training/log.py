"""A run's logs: CSV files that grow by rows; each row ends with a checksum."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tf_graft.core.errors import CheckpointError
from tf_graft.core.files.row_checksums import Rows, checksum, unreadable
from tf_graft.core.files.whole_files import Moved, file_only, is_at, write

CHECKSUM = "crc32"  # the last column
LONGEST_ROW = 4096  # bytes
STEP = re.compile(r"\d{1,18}", re.ASCII)


class Log:
    """A CSV that grows by rows and never holds a row twice, whatever happens to the process.

    Opening it at step `n` drops the rows of later steps, and the torn row of a killed process.

    Raises:
        CheckpointError: the file is not such a log.
    """

    def __init__(self, path: Path, columns: Sequence[str], step: int) -> None:
        found = _parsed(path)
        kept = found.texts[: found.rows.until(step)]
        if kept and found.columns != list(columns):
            raise CheckpointError(
                f"{path} has the columns {','.join(found.columns)} in place of "
                f"{','.join(columns)}; remove it to continue without its rows."
            )
        self.path = path
        self._columns, self._checksum = columns, _of_header(columns)
        write(path, "".join([_header(columns), *map(self._sealed, kept)]))
        self._file = open(path, "a", buffering=1)  # noqa: SIM115  (a line at a time, for long)

    def add(self, row: Mapping[str, float]) -> None:
        """Appends a row; floats have the shortest form that reads back as the same float32."""
        values = (row[column] for column in self._columns)
        texts = (str(np.float32(v) if isinstance(v, float) else v) for v in values)
        self._file.write(self._sealed(",".join(texts)))

    def sync(self) -> int:
        """Writes all rows to disk, and returns their checksum.

        Raises:
            OSError: the rows cannot be written, or the file is no longer at its path.
        """
        if not is_at(os.fstat(self._file.fileno()), self.path):
            raise Moved(self.path)
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._checksum

    def close(self) -> None:
        """Closes the log."""
        self._file.close()

    def _sealed(self, text: str) -> str:
        """Formats a row as a line with its checksum."""
        self._checksum = checksum(f"{text}\n".encode(), self._checksum)
        return f"{text},{self._checksum}\n"


class _Content(NamedTuple):
    columns: list[str]
    texts: list[str]  # of the rows, without their checksums
    rows: Rows


def rows(path: Path) -> Rows:
    """Reads the rows of a log up to the first damaged one."""
    return _parsed(path).rows


def read(path: Path) -> dict[str, np.ndarray]:
    """Reads the columns of a log up to the first damaged row."""
    columns, texts, _ = _parsed(path)
    table = np.array([text.split(",") for text in texts]).reshape(len(texts), len(columns))
    return {name: table[:, i].astype(float) for i, name in enumerate(columns)}


def last(path: Path) -> dict[str, float]:
    """Reads the last whole row of a log that grows; empty if there is none.

    The time does not depend on the length of the log: no row is held against its checksum.
    """
    try:
        with open(path, "rb", opener=file_only) as file:
            columns = file.readline().decode(errors="replace").strip().split(",")
            begin = max(file.tell(), file.seek(0, os.SEEK_END) - LONGEST_ROW)
            file.seek(begin)
            *lines, _ = file.read().decode(errors="replace").split("\n")
        return dict(zip(columns[:-1], map(float, lines[-1].split(",")[:-1]), strict=True))
    except (OSError, ValueError, IndexError):
        return {}


def _parsed(path: Path) -> _Content:
    try:
        with open(path, errors="replace", opener=file_only) as file:
            header, *lines = file.read().split("\n")
    except FileNotFoundError:
        return _Content([], [], Rows(even=True))
    except OSError as error:
        return _Content([], [], Rows(damage=unreadable(error), even=True))
    columns = header.split(",")
    if columns.pop() != CHECKSUM or "step" not in columns:
        damage = "line 1 is damaged" if header or lines else ""
        return _Content([], [], Rows(damage=damage, even=True))
    return _whole(columns, lines[:-1])  # the last one has no line break: a torn row


def _whole(columns: list[str], lines: list[str]) -> _Content:
    """Parses the lines up to the first damaged one."""
    texts: list[str] = []
    steps: list[int] = []
    checksums = [_of_header(columns)]
    damage = ""
    for number, line in enumerate(lines, 2):
        text, _, given = line.rpartition(",")
        step = _step(text, columns)
        seal = checksum(f"{text}\n".encode(), checksums[-1])
        if step is None or not _next(step, steps) or given != str(seal):
            damage = f"line {number} is damaged"
            break
        texts.append(text)
        steps.append(step)
        checksums.append(seal)
    return _Content(columns, texts, Rows(steps, checksums[1:], checksums[0], damage, even=True))


def _step(text: str, columns: Sequence[str]) -> int | None:
    """Returns the step of a row; None if it is not a row of numbers."""
    cells = text.split(",")
    try:
        numbers = [float(cell) for cell in cells]
    except ValueError:
        return None
    step = cells[columns.index("step")] if len(numbers) == len(columns) else ""
    return int(step) if STEP.fullmatch(step) else None


def _next(step: int, steps: Sequence[int]) -> bool:
    """Returns whether a row of `step` can come next: rows come at even distances."""
    if len(steps) < 2:
        return not steps or step > steps[0]
    return step - steps[-1] == steps[1] - steps[0]


def _header(columns: Sequence[str]) -> str:
    return ",".join([*columns, CHECKSUM]) + "\n"


def _of_header(columns: Sequence[str]) -> int:
    return checksum(f"{','.join(columns)}\n".encode())
