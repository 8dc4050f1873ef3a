"""The figures of a run, each with its spread, and the machine they were measured on."""

import datetime
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from benchmarks import peers
from benchmarks.areas import AREAS
from benchmarks.process import cores
from tf_graft.core.files.whole_files import write

Samples: TypeAlias = Sequence[float]

LIBRARIES = ("tensorflow", "keras", "numpy", "tf_graft")
CPUS = Path("/proc/cpuinfo")


class Spread(NamedTuple):
    """A median with the quartiles around it, the extremes, and the number of turns."""

    median: float
    lower_quartile: float
    upper_quartile: float
    least: float
    most: float
    turns: int

    @classmethod
    def of(cls, samples: Samples) -> "Spread":
        """Describes a non-empty list of samples."""
        low, middle, high = (float(x) for x in np.percentile(samples, [25, 50, 75]))
        return cls(middle, low, high, min(samples), max(samples), len(samples))


@dataclass(frozen=True)
class Measured:
    """The measurements of a case by candidate; for a candidate that failed, only the error.

    All samples are in the order of the turns: ratios are taken turn by turn.
    """

    area: str
    case: str
    steps: dict[str, list[float]]  # milliseconds
    firsts: dict[str, list[float]]  # seconds
    errors: dict[str, str]
    floor: list[float]  # milliseconds; empty if an area has no floor
    peaks: dict[str, list[float]] = field(default_factory=dict)  # MB
    builds: dict[str, list[float]] = field(default_factory=dict)  # seconds
    traces: dict[str, list[float]] = field(default_factory=dict)  # seconds

    def of_floor(self, candidate: str) -> Spread | None:
        """Returns a candidate's steps as multiples of the floor."""
        return ratio(self.steps.get(candidate), self.floor)

    def compared(self, quantity: str, one: str, other: str) -> Spread | None:
        """Returns how many times as long one candidate takes as another."""
        samples = self.samples(quantity)
        return ratio(samples.get(one), samples.get(other))

    def samples(self, quantity: str) -> dict[str, list[float]]:
        """Returns the samples of a quantity of `UNITS`."""
        return {
            "step": self.steps,
            "first call": self.firsts,
            "build": self.builds,
            "trace": self.traces,
            "peak memory": self.peaks,
        }[quantity]


def ratio(samples: Samples | None, others: Samples | None) -> Spread | None:
    """Divides samples turn by turn; None if one of the two is missing."""
    if not samples or not others:
        return None
    return Spread.of([a / b for a, b in zip(samples, others, strict=True)])


UNITS = {"step": "ms", "first call": "s", "build": "s", "trace": "s", "peak memory": "MB"}


def save(path: Path, measured: Sequence[Measured]) -> None:
    """Writes all figures, and the machine on which they were measured, as JSON."""
    content = {"machine": machine(), "figures": [f for m in measured for f in _figures(m)]}
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, json.dumps(content, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """Describes this machine: processor, number of cores, installed packages, and the date."""
    return {
        "processor": _processor(),
        "cores": cores(),
        "python": platform.python_version(),
        **{name: _version(name) for name in LIBRARIES if _version(name)},
        **peers.versions(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
    }


def line(measured: Measured) -> str:
    """Returns a case as one line, which `of_line` reads."""
    return json.dumps(asdict(measured))


def of_line(text: str) -> Measured:
    """Reads a result of `line`."""
    return Measured(**json.loads(text))


def _figures(measured: Measured) -> list[dict[str, Any]]:
    """Lists the figures of a case: the area's quantities, the floor, and failures."""
    named = {"area": measured.area, "case": measured.case}
    quantities = AREAS[measured.area].quantities
    figures: list[dict[str, Any]] = []
    for quantity in quantities:
        for candidate, samples in measured.samples(quantity).items():
            ratios = {
                "of_floor": measured.of_floor(candidate) if quantity == "step" else None,
                "of_stock": measured.compared(quantity, candidate, "stock"),
                "of_matmul": measured.compared(quantity, candidate, "matmul"),
            }
            figures.append(
                {
                    **named,
                    **{"candidate": candidate, "quantity": quantity, "unit": UNITS[quantity]},
                    **Spread.of(samples)._asdict(),
                    **{name: spread._asdict() for name, spread in ratios.items() if spread},
                }
            )
    if measured.floor:
        floor = {**named, "candidate": "floor", "quantity": "step", "unit": "ms"}
        figures.append({**floor, **Spread.of(measured.floor)._asdict()})
    failed = {"quantity": quantities[0], "unit": UNITS[quantities[0]]}
    return figures + [
        {**named, "candidate": name, **failed, "error": text}
        for name, text in measured.errors.items()
    ]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    """Returns the processor's name as the system reports it."""
    lines = CPUS.read_text().splitlines() if CPUS.exists() else []
    names = [text.partition(":")[2].strip() for text in lines if text.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
