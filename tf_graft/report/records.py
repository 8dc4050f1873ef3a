"""A graft's records on disk: one file a run, which survives a kill at any moment.

A line of JSON says what was recorded; rows of one size follow, each written by a single call: the
step (int64), the graft's learning rate (float32) and three norms for each variable (float32). What
a killed process, or machine, left of a row is dropped.
"""

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tf_graft.core.state import renamed
from tf_graft.report.errors import ReportError, difference

FILE = "graft.records"
FORMAT = "tf_graft graft records 1"
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
        return np.dtype([("step", "<i8"), ("learning_rate", "<f4"), norms])


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
        ReportError: there is none, or it is no file of records.
    """
    path = Path(path)
    path = path / FILE if path.is_dir() else path
    header, content = _parsed(path)
    rows = _complete(header, content)
    norms = rows["norms"].astype(np.float64)
    rate = rows["learning_rate"].astype(np.float64)
    return Records(header, rows["step"].copy(), rate, *np.moveaxis(norms, 2, 0))


class RecordFile:
    """A file of records that grows.

    Opened at step `n`, rows of later steps are dropped, as is what a killed process left of one.

    Raises:
        ReportError: the file holds other things, or the records of other variables.
    """

    def __init__(self, path: str | Path, header: Header, step: int) -> None:
        path = Path(path)
        if path.exists():
            kept = _kept_bytes(path, header, step)
            os.truncate(path, kept)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f"{path.name}.part")
            part.write_bytes(header.line())
            os.replace(part, path)
        self._path = path
        self._row = np.zeros((), header.row)

    def append(self, step: int, learning_rate: float, norms: np.ndarray) -> None:
        """Writes a row; `norms` has a row a variable, with the columns of `COLUMNS`."""
        self._row["step"], self._row["learning_rate"], self._row["norms"] = (
            step,
            learning_rate,
            norms,
        )
        with open(self._path, "r+b", buffering=0) as file:
            file.seek(0, os.SEEK_END)
            file.write(self._row.tobytes())


def _parsed(path: Path) -> tuple[Header, bytes]:
    try:
        with open(path, "rb") as file:
            line = file.readline(MAX_HEADER)
            content = file.read()
    except OSError as error:
        hint = "; an AdaGraft with diagnostic: true leaves one" if path.name == FILE else ""
        raise ReportError(f"{path}: {str(error.strerror).lower()}{hint}.") from None
    try:
        fields = json.loads(line)
        if fields.pop("format") != FORMAT:
            raise ValueError
        return _checked(Header(**fields)), content
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ReportError(f"{path}: it is not a file of a graft's records.") from None


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


def _complete(header: Header, content: bytes) -> np.ndarray:
    """The rows up to the first whose step is not above the one before: zeros of a lost page."""
    count = len(content) // header.row.itemsize
    rows = np.frombuffer(content[: count * header.row.itemsize], header.row)
    rising = np.diff(rows["step"], prepend=0) > 0
    return rows if rising.all() else rows[: int(np.argmin(rising))]


def _kept_bytes(path: Path, header: Header, step: int) -> int:
    old, content = _parsed(path)
    if old.shapes != header.shapes or not renamed(old.paths, header.paths):
        what = (
            "the shapes of the variables differ"
            if renamed(old.paths, header.paths)
            else difference(old.paths, header.paths)
        )
        raise ReportError(
            f"{path}: it holds the records of another model ({what}); choose another file."
        )
    rows = _complete(old, content)
    return path.stat().st_size - len(content) + int((rows["step"] <= step).sum()) * rows.itemsize
