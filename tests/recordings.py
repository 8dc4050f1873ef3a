"""Replays every recorded run of another program, and writes how far ours is from it.

    python tests/recordings.py [FOLDER]

The figures go to docs/data/recordings.json; each is in the measure of the test that holds the run.
If there are new recordings, FOLDER has their `index.json`, which lists all of them.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from support import recordings

TESTS = pathlib.Path(__file__).parent


def files() -> list[str]:
    """The files of the tests that replay recorded runs."""
    found = (f for f in TESTS.glob("test_*.py") if "recordings.check(" in f.read_text())
    return sorted(str(f.relative_to(TESTS.parent)) for f in found)


def replayed() -> dict[str, dict[str, float]]:
    """What the tests found, by the name of the run."""
    with tempfile.TemporaryDirectory() as folder:
        kept = pathlib.Path(folder) / "kept"
        options = ["-q", "-n", "0", "-m", "slow or not slow", "-k", "equal", *files()]
        command = [sys.executable, "-m", "pytest", *options]
        environment = os.environ | {recordings.KEPT_IN: str(kept)}
        subprocess.run(command, check=True, cwd=TESTS.parent, env=environment)
        return dict(map(json.loads, kept.read_text().splitlines()))


def main() -> None:
    output = TESTS.parent / "docs" / "data" / "recordings.json"
    names = list(json.loads(output.read_text()))
    if sys.argv[1:]:
        index = json.loads((pathlib.Path(sys.argv[1]) / "index.json").read_text())
        names = [f"{each['system']}/{each['case']}" for each in index]
    found, rows = replayed(), {}
    for name in names:
        if name in found:
            rows[name] = found[name]
        else:
            rows[name] = dict(zip(("kind", "reason"), recordings.reason(name), strict=True))
    lines = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    output.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(found)} tried, 0 wrong: where one is not equal, its test has failed.")


if __name__ == "__main__":
    main()
