"""Breaks the package on purpose, one line at a time, and shows which tests notice.

    python tests/mutants.py                      each mutant against the quick tests
    python tests/mutants.py --marks "slow"       against the slow tests
    python tests/mutants.py --only clipping      the mutants of files with that in their name

The mutants are in `mutants.toml`. Each is tested in a copy of this folder. Tests named after its
module run first, and the first test that fails ends a run. `mutants.csv` in the working directory
gets a line for each: the file, the line before and after, the test that found it ("" for none), and
seconds.
"""

import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Mutant(NamedTuple):
    """A change of one place of the package; `before` occurs once in the file."""

    file: str
    before: str
    after: str

    def apply(self, root: Path) -> None:
        path = root / "tf_graft" / self.file
        text = path.read_text()
        if text.count(self.before) != 1:
            raise ValueError(
                f"{self.file}: {self.before!r} occurs {text.count(self.before)} times."
            )
        path.write_text(text.replace(self.before, self.after))


MUTANTS = [
    Mutant(**fields)
    for fields in tomllib.loads((ROOT / "tests/mutants.toml").read_text())["mutants"]
]


def tests_of(mutant: Mutant, root: Path) -> list[str]:
    """The files of tests whose names have a word of the module's, which run first."""
    words = set(re.split(r"[/_.]", mutant.file.removesuffix(".py"))) - {"core", "py"}
    files = sorted((root / "tests").glob("test_*.py"))
    return [str(path) for path in files if words & set(path.stem.split("_"))]


def found_by(mutant: Mutant, marks: str) -> tuple[str, float]:
    """The first test that fails with a mutant, "" if none does, and the seconds that it took."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copy"
        kept = shutil.ignore_patterns(".git", ".venv", "site", "*cache*")
        shutil.copytree(ROOT, root, ignore=kept)
        mutant.apply(root)
        first = tests_of(mutant, root)
        for files in [first, []] if first else [[]]:
            run = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "pytest",
                    "-x",
                    "-m",
                    marks,
                    "-p",
                    "no:cacheprovider",
                    *files,
                ],
                cwd=root,
                env=os.environ | {"PYTHONPATH": str(root)},
                capture_output=True,
                text=True,
                timeout=3600,
            )
            failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
            if failed or run.returncode not in (0, 5):  # 5: no test has these marks
                name = failed[1] if failed else f"exit status {run.returncode}"
                return name, time.monotonic() - started
    return "", time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--marks", default="not slow and not rare")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    with open("mutants.csv", "a", newline="") as file:
        write = csv.writer(file).writerow
        for mutant in MUTANTS:
            if options.only in mutant.file:
                name, seconds = found_by(mutant, options.marks)
                write(
                    [mutant.file, mutant.before, mutant.after, options.marks, name, round(seconds)]
                )
                file.flush()
                print(
                    f"{mutant.file}: {mutant.before!r} -> {mutant.after!r}: {name or 'NOT FOUND'}"
                )


if __name__ == "__main__":
    main()
