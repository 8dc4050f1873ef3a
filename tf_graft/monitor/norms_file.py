"""The file that a `Monitor` writes: the norms of weights, gradients and steps, by layer."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from tf_graft.core.files.checked_state import renamed
from tf_graft.core.files.report_files import ReportError, write_whole
from tf_graft.core.files.whole_files import file_only

FILE = "norms.csv"  # in the folder of a run
COLUMNS = ("step", "variable", "learning_rate", "weight_norm", "gradient_norm", "step_norm")


class Layer(NamedTuple):
    """The measurements of one variable: medians over the records; NaN where there is none.

    Args:
        path: the variable's path.
        learning_rate: the learning rate, multipliers included.
        weight: the norm of the weights at the end.
        gradient: the norm of the gradient.
        step: the norm of the change of the weights.
        ratio: the norm of the step divided by that of the weights.
        highest: the largest such ratio.
    """

    path: str
    learning_rate: float
    weight: float
    gradient: float
    step: float
    ratio: float
    highest: float


class NormsReport:
    """The measurements of a `Monitor` over a run.

    Args:
        steps: the update of each record.
        paths: the variables' paths.
        values: of shape [records, variables, 4], with the columns that follow `step` and
            `variable` in the file; NaN where a record has no such variable.

    Attributes:
        learning_rate, weight, gradient, step: the columns, of shape [records, variables].
        ratio: the norm of the step divided by that of the weights.
    """

    def __init__(self, steps: np.ndarray, paths: list[str], values: np.ndarray):
        self.steps, self.paths = steps, paths
        self.learning_rate, self.weight, self.gradient, self.step = np.moveaxis(values, 2, 0)
        self.ratio = self.step / np.where(self.weight > 0, self.weight, np.nan)

    @classmethod
    def read(cls, run: Path) -> Self | None:
        """Reads the file in a run's folder, or a file; None if the folder has none.

        Raises:
            ReportError: the file has no records, or cannot be read.
        """
        path = run / FILE if run.is_dir() else run
        if run.is_dir() and not path.exists():
            return None
        found: dict[int, dict[str, list[float]]] = {}
        for line in lines(path):
            found.setdefault(line.step, {})[line.variable] = line.measured
        if not found:
            raise ReportError(f"{path}: there are no records yet.")
        paths = list(dict.fromkeys(path for record in found.values() for path in record))
        absent = [np.nan] * (len(COLUMNS) - 2)
        rows = [[record.get(path, absent) for path in paths] for record in found.values()]
        return cls(np.array(list(found)), paths, np.array(rows))

    def layers(self) -> list[Layer]:
        """Returns the variables, those that change fastest first."""
        rows = [
            Layer(
                path,
                _median(self.learning_rate[:, i]),
                float(self.weight[-1, i]),
                _median(self.gradient[:, i]),
                _median(self.step[:, i]),
                _median(self.ratio[:, i]),
                float(np.nanmax(self.ratio[:, i], initial=0.0)),
            )
            for i, path in enumerate(self.paths)
        ]
        return sorted(rows, key=lambda row: (-np.nan_to_num(row.ratio), row.path))


def number(value: float) -> str:
    """Formats a measurement for a table."""
    return "-" if np.isnan(value) else f"{value:.3g}"


def _median(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else np.nan


class Line(NamedTuple):
    """A line of a file of a monitor.

    Args:
        step: the number of the update.
        variable: the path of the variable.
        measured: the measurements, in the order of the later `COLUMNS`.
        written: all columns as they are in the file.
    """

    step: int
    variable: str
    measured: list[float]
    written: list[str]


def lines(path: Path) -> list[Line]:
    """Returns the lines of a file of a monitor, without the first one.

    Raises:
        ReportError: it is no file of a monitor, is damaged, or cannot be read.
    """
    try:
        with open(path, encoding="utf-8", errors="replace", newline="", opener=file_only) as file:
            first, *others = csv.reader(file)
    except OSError as error:
        raise ReportError(f"{path}: {str(error.strerror).lower()}.") from None
    except (ValueError, csv.Error):
        first, others = [], []
    if first != list(COLUMNS):
        raise ReportError(f"{path}: it is not a file that Monitor wrote; give another path.")
    return [_parsed(path, number, written) for number, written in enumerate(others, 2)]


def _parsed(path: Path, number: int, written: list[str]) -> Line:
    try:
        step, variable, *values = written
        measured = list(map(float, values))
        if len(measured) != len(COLUMNS) - 2:
            raise ValueError
        return Line(int(step), variable, measured, written)
    except ValueError:
        raise ReportError(f"{path}: line {number} is damaged; put back a copy.") from None


def write(
    path: Path, records: Sequence[tuple[int, Mapping[str, Sequence[float]]]], first: float
) -> None:
    """Writes records after those that the file has of updates before `first`.

    Args:
        path: the file, of which a reader sees the old content or the new one.
        records: for each, the number of the update, and the measurements by the variable's path.
        first: the number of the first update whose lines in the file are dropped.

    Raises:
        ReportError: it is no file of a monitor, is damaged, or cannot be written.
    """
    present = [*records[-1][1]] if records else []
    earlier = lines(path) if path.exists() else []
    names = _named_now(dict.fromkeys(line.variable for line in earlier), present)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for line in earlier:
        if line.step < first:
            rows.writerow((line.step, names[line.variable], *line.written[2:]))
    for step, measured in records:
        names = _named_now(measured, present)
        rows.writerows((step, names[variable], *each) for variable, each in measured.items())
    write_whole(path, text.getvalue())


def _named_now(paths: Iterable[str], present: Sequence[str]) -> dict[str, str]:
    """Returns the present path of each variable: Keras may have numbered the layers anew."""
    former = list(paths)
    anew = former != present and renamed(former, present)  # the first is faster
    return dict(zip(former, present if anew else former, strict=True))
