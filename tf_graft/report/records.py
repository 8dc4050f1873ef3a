"""A graft's records on disk: one file a run, which survives a kill at any moment.

A line of JSON says what was recorded; rows of one size follow, each written by a single call: the
step (int64), the graft's learning rate (float32), three norms for each variable (float32), and the
CRC-32 of the file up to there (uint32). What a killed process, or machine, left of a row is
dropped; a row that was altered is an error.
"""

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tf_graft.core.state import renamed
from tf_graft.report.errors import ReportError, difference, write_whole
from tf_graft.report.rows import Rows, checksum

FILE = "graft.records"
FORMAT = "tf_graft graft records 2"
UNSEALED = "tf_graft graft records 1"  # of version 0.1: rows without checksums
CHECKSUM, SEAL = "crc32", 4  # of a row: its last column, and the bytes of it
COLUMNS = ("magnitude_norm", "direction_norm", "weight_norm")
MAX_HEADER = 16 * 1024 * 1024


class Header(NamedTuple):
    """What was recorded.

    Args:
        paths: the variables, in the order of the columns.
        shapes: their shapes.
        magnitude: the optimizer that gave the length.
        direction: the optimizer that gave the direction.
        use_global_norm: whether the graft took one norm over all variables.
        magnitude_bytes: the size of the magnitude optimizer's slots.
        direction_bytes: the size of the direction optimizer's.
    """

    paths: list[str]
    shapes: list[list[int]]
    magnitude: str
    direction: str
    use_global_norm: bool
    magnitude_bytes: int
    direction_bytes: int

    def line(self) -> bytes:
        """The first line of the file."""
        return json.dumps({"format": FORMAT, **self._asdict()}).encode() + b"\n"

    @property
    def row(self) -> np.dtype[Any]:
        """What a row holds."""
        norms = ("norms", "<f4", (len(self.paths), len(COLUMNS)))
        return np.dtype([("step", "<i8"), ("learning_rate", "<f4"), norms, (CHECKSUM, "<u4")])


class Records(NamedTuple):
    """The records of a run: a row a record; a column a variable where there are columns.

    Args:
        header: what was recorded.
        steps: the number of the update that each record follows, from 1.
        learning_rate: the graft's own rate in that update.
        magnitude: the norms of the magnitude optimizer's steps.
        direction: the norms of the direction optimizer's steps.
        weight: the norms of the weights after the update.
    """

    header: Header
    steps: np.ndarray
    learning_rate: np.ndarray
    magnitude: np.ndarray
    direction: np.ndarray
    weight: np.ndarray


def read(path: str | Path) -> Records:
    """The records in a file, or in the folder of a run.

    Raises:
        ReportError: there is none, it is no file of records, or it is damaged.
    """
    path = Path(path)
    path = path / FILE if path.is_dir() else path
    found = _parsed(path)
    if found.damage:
        raise _damaged(path, found)
    norms = found.rows["norms"].astype(np.float64)
    rate = found.rows["learning_rate"].astype(np.float64)
    return Records(found.header, found.rows["step"].copy(), rate, *np.moveaxis(norms, 2, 0))


def rows(path: Path) -> Rows:
    """The rows of a file of records, as far as they are whole."""
    if not path.exists():
        return Rows()
    try:
        found = _parsed(path)
    except ReportError:
        return Rows(damage="first line is damaged")
    steps, checksums = (found.rows[name].tolist() for name in ("step", CHECKSUM))
    return Rows(steps, checksums, checksum(found.line), found.damage)


class RecordFile:
    """A file of records that grows.

    Opened at step `n`, rows of later steps are dropped, as is what a killed process left of one.

    Args:
        path: the file.
        header: what is recorded.
        step: what was recorded up to here is kept.
        every: the steps that are recorded are multiples of it.

    Raises:
        ReportError: the file holds other things, or the records of other variables; or one of those
            up to `step` is damaged.
    """

    def __init__(self, path: str | Path, header: Header, step: int, every: int = 1) -> None:
        self._path = Path(path)
        line, kept = header.line(), np.zeros(0, header.row)
        if self._path.exists():
            found = _parsed(self._path)
            _check_same(self._path, found.header, header)
            kept = found.rows[found.rows["step"] <= step]
            line = found.line if len(kept) else line
            next_step = (int(kept["step"][-1]) // every + 1) * every if len(kept) else every
            if found.damage and len(kept) == len(found.rows) and next_step <= step:
                raise _damaged(self._path, found)
        write_whole(self._path, line + kept.tobytes())
        self._row, self._end = np.zeros((), header.row), len(line) + kept.nbytes
        self._checksum = int(kept[CHECKSUM][-1]) if len(kept) else checksum(line)

    def append(self, step: int, learning_rate: float, norms: np.ndarray) -> None:
        """Writes a row; `norms` has a row a variable, with the columns of `COLUMNS`."""
        row = self._row
        row["step"], row["learning_rate"], row["norms"] = step, learning_rate, norms
        row[CHECKSUM] = self._checksum = checksum(row.tobytes()[:-SEAL], self._checksum)
        with open(self._path, "r+b") as file:
            file.seek(self._end)
            self._end += file.write(row.tobytes())

    def sync(self) -> int:
        """Returns the checksum of all rows when they are on disk."""
        with open(self._path, "rb") as file:
            os.fsync(file.fileno())
        return self._checksum


class _Parsed(NamedTuple):
    line: bytes  # as this version writes it, as are the rows
    header: Header
    rows: np.ndarray  # up to the first that is damaged
    size: int  # of what the file holds up to there
    damage: str  # what is wrong with that one; empty where nothing is


def _parsed(path: Path) -> _Parsed:
    try:
        with open(path, "rb") as file:
            line = file.readline(MAX_HEADER)
            content = file.read()
    except OSError as error:
        absent = isinstance(error, FileNotFoundError) and path.name == FILE
        hint = "; an AdaGraft with diagnostic: true leaves one" if absent else ""
        raise ReportError(f"{path}: {str(error.strerror).lower()}{hint}.") from None
    try:
        fields = json.loads(line)
        form = fields.pop("format")
        if form not in (FORMAT, UNSEALED):
            raise ValueError
        header = _checked(Header(**fields))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ReportError(f"{path}: it is not a file of a graft's records.") from None
    return _whole(line, header, content, form == FORMAT)


def _whole(line: bytes, header: Header, content: bytes, sealed: bool) -> _Parsed:
    """The rows up to the first that is damaged; what is torn, or zeros of a lost page, is none."""
    dtype = header.row if sealed else np.dtype(header.row.descr[:-1])
    table = np.frombuffer(content, dtype, len(content) // dtype.itemsize)
    new_line = line if sealed else header.line()
    rows = _sealed(new_line, table, header.row)
    good = np.diff(rows["step"], prepend=0) > 0
    if sealed:
        good &= rows[CHECKSUM] == table[CHECKSUM]
    count = len(rows) if good.all() else int(np.argmin(good))
    at = count * dtype.itemsize
    what = f"record {count + 1}" if count else "first line or first record"
    lost = len(content) - at < dtype.itemsize or not any(content[at:])
    damage = "" if lost else f"{what} is damaged"
    return _Parsed(new_line, header, rows[:count], len(line) + at, damage)


def _checked(header: Header) -> Header:
    texts: Sequence[Any] = [header.magnitude, header.direction, *header.paths]
    sizes = [
        header.magnitude_bytes,
        header.direction_bytes,
        *itertools.chain.from_iterable(header.shapes),
    ]
    if (
        not all(isinstance(text, str) for text in texts)
        or not all(type(size) is int and size >= 0 for size in sizes)
        or not 0 < len(header.paths) == len(header.shapes) == len(set(header.paths))
    ):
        raise ValueError
    return header


def _sealed(line: bytes, table: np.ndarray, row: np.dtype[Any]) -> np.ndarray:
    """The rows with the checksums that they should have."""
    rows = np.zeros(len(table), row)
    for name in table.dtype.names or ():
        rows[name] = table[name]
    content, size = rows.tobytes(), row.itemsize
    seal = checksum(line)
    for i in range(len(rows)):
        seal = checksum(content[i * size : (i + 1) * size - SEAL], seal)
        rows[CHECKSUM][i] = seal
    return rows


def _damaged(path: Path, found: _Parsed) -> ReportError:
    return ReportError(
        f"{path}: its {found.damage}; put back a copy, or cut the file before that "
        f"(truncate -s {found.size} {path}) to use the records up to there."
    )


def _check_same(path: Path, old: Header, header: Header) -> None:
    if old.shapes == header.shapes and renamed(old.paths, header.paths):
        return
    what = (
        "the shapes of the variables differ"
        if renamed(old.paths, header.paths)
        else difference(old.paths, header.paths)
    )
    raise ReportError(
        f"{path}: it holds the records of another model ({what}); choose another file."
    )
