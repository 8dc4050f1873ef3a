"""Records every weight, average and variable of an optimizer over the cells of the matrix.

    python tests/record.py --output before.json [--every 1]
    python tests/record.py --against before.json [--every 1]

Run it before a change of the house and after: the second command names each cell of which a bit
differs, and ends with code 1 if there is one. What is kept of a cell is a digest.
"""

import argparse
import concurrent.futures
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from support import column_runs, samples

COLUMNS = ("mesh", "xla", "2_replicas", "function", "eager")


def recorded(column: str, every: int) -> dict[str, str]:
    """What there is of each cell of a column, refusals included, by the name of the cell."""
    part = column_runs.Part(column, list(samples.BY_NAME), every=every)
    (lines,) = column_runs.run(part, seconds=7200)
    return {
        f"{line['column']} {line['sample']} {line['option']}": line["digest"] or line["refusal"]
        for line in lines
    }


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--output", type=pathlib.Path)
    arguments.add_argument("--against", type=pathlib.Path)
    arguments.add_argument("--every", type=int, default=1)
    given = arguments.parse_args()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        parts = pool.map(lambda column: recorded(column, given.every), COLUMNS)
        found = {name: kept for part in parts for name, kept in part.items()}
    if given.output:
        given.output.write_text(json.dumps(found, indent=1) + "\n")
    before = json.loads(given.against.read_text()) if given.against else found
    differ = [n for n in sorted({*found, *before}) if found.get(n) != before.get(n)]
    print(f"{len(found)} cells, {len(differ)} differ.", *differ, sep="\n")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
