"""Prints the matrix: optimizer x execution x option, each held against the float64 oracle.

    python tests/matrix.py [--output matrix.md] [--all] [--jobs 2]

A cell is the largest error of weights and averages after four steps, as a share of what is allowed:
0.2 is a fifth of it. `no` is a refusal, whose reason is below the tables. Takes about six minutes
on two cores; with `--all`, for every configuration of `samples.py`, about a quarter of an hour.
"""

import argparse
import concurrent.futures
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import cells
import column_runs
import samples

# What is run, and the columns that come out of it.
RUNS = {
    "xla": ["xla"],
    "4_replicas": ["4_replicas"],
    "mesh": ["replicated", "rows", "columns", "both"],
    "2_workers": ["2_workers"],
    "function": ["function"],
    "2_replicas": ["2_replicas"],
    "shards": ["shards"],
    "parameter_server": ["parameter_server"],
    "eager": ["eager"],
}
TITLES = {
    "eager": "eager",
    "function": "function",
    "xla": "XLA",
    "2_replicas": "2 replicas",
    "4_replicas": "4 replicas",
    "2_workers": "2 workers",
    "parameter_server": "parameter server",
    "shards": "2 servers, sharded",
    "replicated": "mesh: replicated",
    "rows": "mesh: rows",
    "columns": "mesh: columns",
    "both": "mesh: both",
}
LIMIT = 1800.0


class Matrix:
    """All cells by (sample, option, column), and what could not be run."""

    def __init__(self, names):
        self.names = names
        self.cells = {}
        self.reasons = []

    def fill(self, run):
        """Runs a group of columns; what breaks is a cell too."""
        began = time.monotonic()
        try:
            lines = column_runs.run(run, self.names, seconds=LIMIT)
        except AssertionError as error:
            print(f"{run}: {error}", file=sys.stderr)
            lines = []
        for line in lines:
            self.cells[line["sample"], line["option"], line["column"]] = line
        return run, time.monotonic() - began

    def text(self, name, option, column):
        """A cell: a share of what is allowed, a numbered refusal, or, bold, what is wrong."""
        line = self.cells.get((name, option, column))
        if line is None:
            return "**did not run**"
        if line["refusal"]:
            if line["refusal"] not in self.reasons:
                self.reasons.append(line["refusal"])
            known = cells.known_refusal(line["refusal"])
            mark = f"no [{self.reasons.index(line['refusal']) + 1}]"
            return mark if known else f"**{mark}**"
        error = line["error"]
        return f"{error:.2f}" if error <= 1 else f"**{error:.3g}**"

    def wrong(self):
        """How many cells are neither right nor refused for a known reason."""
        return sum(
            self.text(name, option, column).startswith("**")
            for name in self.names
            for option in cells.OPTIONS
            for column in TITLES
        )

    def worst(self, name, column):
        """The largest error of an optimizer's options, or what is wrong."""
        texts = [self.text(name, option, column) for option in cells.OPTIONS]
        bad = [text for text in texts if text.startswith("**")]
        numbers = [text for text in texts if not text.startswith("no")]
        return bad[0] if bad else max(numbers, key=float, default=texts[0])

    def markdown(self):
        """The page."""
        head = ["| optimizer |", *(f" {title} |" for title in TITLES.values())]
        yield "".join(head)
        yield "| --- |" + " ---: |" * len(TITLES)
        for name in self.names:
            yield f"| {name} | " + " | ".join(self.worst(name, c) for c in TITLES) + " |"
        for name in self.names:
            rtol = cells.rtol(samples.BY_NAME[name])
            yield f"\n### {name}\n"
            yield f"Allowed for each step: one rounding and {rtol:.0e} of the largest step.\n"
            yield "".join(["| option |", *head[1:]])
            yield "| --- |" + " ---: |" * len(TITLES)
            for option in cells.OPTIONS:
                texts = [self.text(name, option, column) for column in TITLES]
                yield f"| {option} | " + " | ".join(texts) + " |"
        yield "\n### Refusals\n"
        for number, reason in enumerate(self.reasons, 1):
            yield f"{number}. {reason}"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--output", type=pathlib.Path)
    arguments.add_argument("--all", action="store_true")
    arguments.add_argument("--jobs", type=int, default=2)
    arguments.add_argument("--samples")
    given = arguments.parse_args()
    names = [sample.name for sample in samples.SAMPLES if given.all or not sample.slow]
    matrix = Matrix(given.samples.split(",") if given.samples else names)
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        for run, seconds in pool.map(matrix.fill, RUNS):
            print(f"{run}: {seconds:.0f} s", file=sys.stderr)
    page = "\n".join(matrix.markdown()) + "\n"
    if given.output:
        given.output.write_text(page)
    else:
        print(page)
    count = len(matrix.names) * len(cells.OPTIONS) * len(TITLES)
    wrong, seconds = matrix.wrong(), time.monotonic() - began
    print(f"{count} cells in {seconds:.0f} s, {wrong} wrong.", file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
