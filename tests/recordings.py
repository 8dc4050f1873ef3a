"""Replays every recorded run of another program, and writes how far ours is from it.

    python tests/recordings.py FOLDER

FOLDER has the recordings, one file for each run, and `index.json`, which lists them. The figures go
to docs/data/recordings.json; each is in the measure of the test that holds the run.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from support import recordings

TESTS = pathlib.Path(__file__).parent


def replayed() -> dict[str, dict[str, float]]:
    """What the tests found, by the name of the run."""
    with tempfile.TemporaryDirectory() as folder:
        kept = pathlib.Path(folder) / "kept"
        files = [f for f in TESTS.glob("test_*.py") if "recordings.check(" in f.read_text()]
        options = ["-q", "-n", "0", "-m", "slow or not slow", "-k", "equal", *files]
        command = [sys.executable, "-m", "pytest", *options]
        subprocess.run(command, check=True, env=os.environ | {recordings.KEPT_IN: str(kept)})
        return dict(map(json.loads, kept.read_text().splitlines()))


def main() -> None:
    index = json.loads((pathlib.Path(sys.argv[1]) / "index.json").read_text())
    found, rows = replayed(), {}
    for name in (f"{x['system']}/{x['case']}" for x in index):
        if name in found:
            rows[name] = found[name]
        else:
            rows[name] = dict(zip(("kind", "reason"), recordings.reason(name), strict=True))
    lines = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    output = TESTS.parent / "docs" / "data" / "recordings.json"
    output.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
