"""The final numbers of a run, in a file with a checksum."""

import json
from pathlib import Path
from typing import TypeAlias

from tf_graft.core.files.row_checksums import checksum
from tf_graft.core.files.whole_files import file_only
from tf_graft.core.files.whole_files import write as write_text

Numbers: TypeAlias = dict[str, float | int | str]

CHECKSUM = "checksum"


def write(path: Path, numbers: Numbers) -> Numbers:
    """Writes numbers with their checksum, and returns both."""
    results = {**numbers, CHECKSUM: _checksum(numbers)}
    write_text(path, json.dumps(results, indent=2) + "\n")
    return results


def read(path: Path) -> Numbers:
    """Reads a file that `write` wrote.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is damaged.
    """
    try:
        with open(path, opener=file_only) as file:
            results = json.load(file)
    except RecursionError:
        raise ValueError from None
    if not isinstance(results, dict) or type(results.get("steps")) is not int:
        raise ValueError
    numbers = {name: value for name, value in results.items() if name != CHECKSUM}
    tests = [value for name, value in numbers.items() if name.startswith("test_")]
    if not tests or not all(isinstance(value, float) for value in tests):
        raise ValueError
    if results.get(CHECKSUM) != _checksum(numbers):
        raise ValueError
    return results


def _checksum(numbers: Numbers) -> str:
    return f"{checksum(json.dumps(numbers, sort_keys=True).encode()):08x}"
