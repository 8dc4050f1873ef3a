"""Breaks the package on purpose, one line at a time, and shows which tests notice.

    python tests/mutants.py                      each mutant against the quick tests
    python tests/mutants.py --marks "slow"       against the slow tests
    python tests/mutants.py --only clipping      the mutants of files with that in their name

The mutants are in `mutants.toml`. Each is tested in a copy of this folder. A first run without a
mutant notes which tests execute which lines (in `.coverage.*`; remove it when the code changes).
Tests of a mutant's lines run first, then all, and the first one that fails ends a run. A mutant is
tested on each processor. A line of `mutants.csv` in the working directory says of each: the file,
the line before and after, the test that found it ("" for none), and seconds.
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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, groupby, zip_longest
from pathlib import Path
from typing import NamedTuple

import coverage

ROOT = Path(__file__).parents[1]
MOST = 300  # tests of a mutant's lines that run first


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


def covered(marks: str) -> coverage.CoverageData:
    """Which tests execute which lines, from `.coverage` or a run of all tests with these marks."""
    path = ROOT / f".coverage.{marks.replace(' ', '_')}"
    if not path.exists():
        options = ["--cov", "--cov-context=test", "--cov-report="]
        run_tests(ROOT, marks, options, {"COVERAGE_FILE": str(path)})
    data = coverage.CoverageData(str(path))
    data.read()
    return data


def tests_of(mutant: Mutant, data: coverage.CoverageData) -> list[str]:
    """Tests that execute the lines of a mutant, of each file of tests first one, then another."""
    path = ROOT / "tf_graft" / mutant.file
    first = path.read_text().partition(mutant.before)[0].count("\n") + 1
    lines = range(first, first + mutant.before.rstrip("\n").count("\n") + 1)
    contexts = data.contexts_by_lineno(str(path))
    found = {test.rpartition("|")[0] for line in lines for test in contexts.get(line, ())} - {""}
    files = [sorted(tests) for _, tests in groupby(sorted(found), lambda test: test.split("::")[0])]
    turns = chain.from_iterable(zip_longest(*files))
    return [test for test in turns if test is not None][:MOST]


def run_tests(
    root: Path, marks: str, options: Sequence[str], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Runs the tests in a folder that have these marks."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-m", marks, "-p", "no:cacheprovider", *options],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)} | environment,
        capture_output=True,
        text=True,
        timeout=3600,
    )


def found_by(mutant: Mutant, marks: str, first: Sequence[str]) -> tuple[str, float]:
    """The first test that fails with a mutant, "" if none does, and the seconds that it took."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copy"
        kept = shutil.ignore_patterns(".git", ".venv", "site", "*cache*", ".coverage*")
        shutil.copytree(ROOT, root, ignore=kept)
        mutant.apply(root)
        for tests in [first, []] if first else [[]]:
            run = run_tests(root, marks, ["-x", "-n0", *tests], {})
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
    data = covered(options.marks)
    mutants = [mutant for mutant in MUTANTS if options.only in mutant.file]
    first = [tests_of(mutant, data) for mutant in mutants]
    with open("mutants.csv", "a", newline="") as file, ThreadPoolExecutor(os.cpu_count()) as pool:
        write = csv.writer(file).writerow
        found = pool.map(
            lambda mutant, tests: found_by(mutant, options.marks, tests), mutants, first
        )
        for mutant, (name, seconds) in zip(mutants, found, strict=True):
            write([*mutant, options.marks, name, round(seconds)])
            file.flush()
            print(f"{mutant.file}: {mutant.before!r} -> {mutant.after!r}: {name or 'NOT FOUND'}")


if __name__ == "__main__":
    main()
