"""A graft's records on disk: one file for each run, which survives a kill at any moment.

The first line is JSON and describes the records. Rows of equal size follow, each written by one
call: the step (int64), the graft's learning rate (float32), three norms for each variable
(float32), and the CRC-32 of the file up to there (uint32). If a process or machine was killed while
it wrote a row, that row is dropped; an altered row is an error.
"""

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tf_graft.core.files.checked_state import renamed
from tf_graft.core.files.report_files import ReportError, difference, write_whole
from tf_graft.core.files.row_checksums import Rows, checksum
from tf_graft.core.files.whole_files import file_only, same_only

FILE = "graft.records"
FORMAT = "tf_graft graft records 2"
CHECKSUM, SEAL = "crc32", 4  # the last column of a row, and its size in bytes
COLUMNS = ("magnitude_norm", "direction_norm", "weight_norm")
MAX_HEADER = 16 * 1024 * 1024


class Header(NamedTuple):
    """The description of a file's records.

    Args:
        paths: the variables' paths, in the order of the columns.
        shapes: the variables' shapes.
        magnitude: the optimizer that determined the length.
        direction: the optimizer that determined the direction.
        use_global_norm: whether the graft took one norm over all variables.
        magnitude_bytes: the size of the magnitude optimizer's slots.
        direction_bytes: the size of the direction optimizer's slots.
    """

    paths: list[str]
    shapes: list[list[int]]
    magnitude: str
    direction: str
    use_global_norm: bool
    magnitude_bytes: int
    direction_bytes: int

    def line(self) -> bytes:
        """Returns the first line of the file."""
        return json.dumps({"format": FORMAT, **self._asdict()}).encode() + b"\n"

    @property
    def row(self) -> np.dtype[np.void]:
        """The columns of a row."""
        norms = ("norms", "<f4", (len(self.paths), len(COLUMNS)))
        return np.dtype([("step", "<i8"), ("learning_rate", "<f4"), norms, (CHECKSUM, "<u4")])


class Records(NamedTuple):
    """The records of a run: one row for each record, and in tables one column for each variable.

    Args:
        header: the description of the records.
        steps: the number of the update that each record follows, from 1.
        learning_rate: the graft's own learning rate in that update.
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
    """Reads the records in a file, or in the folder of a run.

    Raises:
        ReportError: the file is missing, damaged, or not a file of records.
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
    """Returns the rows of a file of records before the first damaged one."""
    if not path.exists():
        return Rows()
    try:
        found = _parsed(path)
    except ReportError:
        return Rows(damage="first line is damaged")
    steps, checksums = (found.rows[name].tolist() for name in ("step", CHECKSUM))
    return Rows(steps, checksums, checksum(found.line), found.damage)


class RecordFile:
    """A growing file of records.

    Opening it at a step drops the rows of later steps and any incomplete row.

    Args:
        path: the file.
        header: the description of the records.
        step: the last step whose row is kept.
        every: the recorded steps are multiples of this.

    Raises:
        ReportError: the file has other content or the records of other variables, or a row up to
            `step` is damaged.
    """

    def __init__(self, path: str | Path, header: Header, step: int, every: int = 1) -> None:
        self._path, self.header = Path(path), header
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
        self._same = same_only(self._path.stat())
        self._row, self._end = np.zeros((), header.row), len(line) + kept.nbytes
        self._checksum = int(kept[CHECKSUM][-1]) if len(kept) else checksum(line)

    def append(self, step: int, learning_rate: float, norms: np.ndarray) -> None:
        """Appends a row; `norms` has one row for each variable, with the columns of `COLUMNS`."""
        row = self._row
        row["step"], row["learning_rate"], row["norms"] = step, learning_rate, norms
        row[CHECKSUM] = checksum(row.tobytes()[:-SEAL], self._checksum)
        with open(self._path, "r+b", opener=self._same) as file:
            file.seek(self._end)
            file.write(row.tobytes())
        # only now: if the disk is full, the next row takes the place of what was written of this
        self._checksum, self._end = int(row[CHECKSUM]), self._end + row.nbytes

    def sync(self) -> int:
        """Waits until all rows are on disk and returns their checksum."""
        with open(self._path, "rb", opener=self._same) as file:
            os.fsync(file.fileno())
        return self._checksum


class _Parsed(NamedTuple):
    line: bytes
    header: Header
    rows: np.ndarray  # before the first damaged one
    size: int  # of the file before the damage
    damage: str  # what is wrong with the next row; empty if nothing is


def _parsed(path: Path) -> _Parsed:
    try:
        with open(path, "rb", opener=file_only) as file:
            line = file.readline(MAX_HEADER)
            content = file.read()
    except OSError as error:
        absent = isinstance(error, FileNotFoundError) and path.name == FILE
        hint = (
            "; an AdaGraft with diagnostic: true leaves one, run.monitor another" if absent else ""
        )
        raise ReportError(f"{path}: {str(error.strerror).lower()}{hint}.") from None
    try:
        fields = json.loads(line)
        if fields.pop("format") != FORMAT:
            raise ValueError
        header = _checked(Header(**fields))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ReportError(f"{path}: it is not a file of a graft's records.") from None
    return _whole(line, header, content)


def _whole(line: bytes, header: Header, content: bytes) -> _Parsed:
    """Returns the rows before the first damaged one; a torn row or a page of zeros is no damage."""
    size = header.row.itemsize
    rows = np.frombuffer(content, header.row, len(content) // size)
    good = (np.diff(rows["step"], prepend=0) > 0) & (rows[CHECKSUM] == _seals(line, rows))
    count = len(rows) if good.all() else int(np.argmin(good))
    at = count * size
    what = f"record {count + 1}" if count else "first line or first record"
    lost = len(content) - at < size or not any(content[at:])
    damage = "" if lost else f"{what} is damaged"
    return _Parsed(line, header, rows[:count], len(line) + at, damage)


def _checked(header: Header) -> Header:
    texts: Sequence[object] = [header.magnitude, header.direction, *header.paths]
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


def _seals(line: bytes, rows: np.ndarray) -> list[int]:
    """Returns the checksums that rows after a first line should have."""
    content, size, seals = rows.tobytes(), rows.dtype.itemsize, [checksum(line)]
    for end in range(size, len(content) + 1, size):
        seals.append(checksum(content[end - size : end - SEAL], seals[-1]))
    return seals[1:]


def _damaged(path: Path, found: _Parsed) -> ReportError:
    return ReportError(
        f"{path}: its {found.damage}; put back a copy, or cut the file before that "
        f"(truncate -s {found.size} {path}) to use the records up to there."
    )


def _check_same(path: Path, old: Header, header: Header) -> None:
    grafts = [(each.magnitude, each.direction, each.use_global_norm) for each in (old, header)]
    if not renamed(old.paths, header.paths):
        what = f"model ({difference(old.paths, header.paths)})"
    elif old.shapes != header.shapes:
        what = "model (the shapes of the variables differ)"
    elif grafts[0] != grafts[1]:
        what = f"graft ({_said(old)}, not {_said(header)})"
    else:
        return
    raise ReportError(f"{path}: it holds the records of another {what}; choose another file.")


def _said(header: Header) -> str:
    norm = ", use_global_norm=True" if header.use_global_norm else ""
    return f"AdaGraft({header.magnitude}, {header.direction}{norm})"
