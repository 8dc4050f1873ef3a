"""Prints the matrix: optimizer x execution x option, each held against the float64 oracle.

    python tests/matrix.py [--through model] [--output matrix.md] [--all] [--every 1] [--jobs 2]
        [--run 2_clients]

Two parts: through a compiled Keras model, as users meet an optimizer, and through `apply` alone. A
cell is the largest error of weights and averages after four steps, as a share of what is allowed:
0.2 is a fifth of it. `no` is a refusal, whose reason is below the tables. With `--every 3` one
cell in three is computed, and each option of an optimizer in some of the executions; with `--run`
those of one execution.
"""

import argparse
import concurrent.futures
import functools
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from support import cells, column_runs, model_rows, samples

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
    "2_clients": "mesh of 2 processes",
    "tpu": "TPU, traced",
}
# What is run, the slowest first: each is a column, but for the mesh, which has several.
RUNS = ("2_clients", "mesh", "4_replicas", "xla", "2_workers", "2_replicas", "shards", "tpu")
RUNS += ("function", "parameter_server", "eager")
RUN_OF = dict.fromkeys(("replicated", "rows", "columns", "both"), "mesh")  # of columns
ONE_PART_HAS = {"tpu": "model", "rows": "apply", "columns": "apply"}  # columns of one part alone
LIMIT = 3600.0
HEAD = """# Optimizer x execution x option

Made by `python tests/matrix.py --output .github/matrix.md`. A cell is the largest error of weights
and averages against the float64 oracle after four steps, as a share of what is allowed.
"""
# Of the samples that have the same class, one goes through the model, unless all do.
THROUGH_APPLY_ALONE = ("sgd", "sgd_nesterov", "rmsprop", "rmsprop_momentum", "adam_amsgrad")


class Part:
    """One part of the matrix: its cells by (row, option, column), and what was refused.

    Args:
        through: "model" or "apply".
        names: the rows.
        every: of how many cells one is computed.
        run: the only execution; None for all.
    """

    def __init__(self, through, names, every=1, run=None):
        self.through, self.names, self.every = through, names, every
        wanted = RUNS if run is None else [run]
        self.columns = [
            name
            for name in TITLES
            if ONE_PART_HAS.get(name, through) == through and RUN_OF.get(name, name) in wanted
        ]
        self.runs = [run for run in wanted if run in {RUN_OF.get(c, c) for c in self.columns}]
        self.cells = {}
        self.reasons = []

    def fill(self, run):
        """Runs a group of columns; what breaks is a cell too."""
        began = time.monotonic()
        try:
            part = column_runs.Part(run, self.names, None, self.every, self.through)
            (lines,) = column_runs.run(part, seconds=LIMIT)
        except AssertionError as error:
            print(f"{self.through}, {run}: {error}", file=sys.stderr)
            lines = []
        for line in lines:
            self.cells[line["sample"], line["option"], line["column"]] = line
        return f"through {self.through}, {run}: {time.monotonic() - began:.0f} s"

    @functools.cached_property
    def wanted(self):
        return samples.spread(self.names, list(cells.OPTIONS), self.every)

    def text(self, name, option, column):
        """A cell: a share of what is allowed, a numbered refusal, or, bold, what is wrong."""
        if option not in self.wanted[name]:
            return ""
        line = self.cells.get((name, option, column))
        if line is None:
            return "**did not run**"
        if line["refusal"]:
            if line["refusal"] not in self.reasons:
                self.reasons.append(line["refusal"])
            known = cells.known_refusal(line["refusal"])
            mark = f"no [{self.reasons.index(line['refusal']) + 1}]"
            return mark if known else f"**{mark}**"
        if column == "tpu":
            return "traced"
        error = line["error"]
        return f"{error:.2f}" if error <= 1 else f"**{error:.3g}**"

    def wrong(self):
        """How many cells are neither right nor refused for a known reason."""
        texts = [
            self.text(n, o, c) for n in self.names for o in cells.OPTIONS for c in self.columns
        ]
        return sum(text.startswith("**") for text in texts)

    def count(self):
        return sum(map(len, self.wanted.values())) * len(self.columns)

    def worst(self, name, column):
        """The largest error of an optimizer's options, or what is wrong."""
        texts = [self.text(name, option, column) for option in self.wanted[name]]
        bad = [text for text in texts if text.startswith("**")]
        numbers = [text for text in texts if not text.startswith("no")]
        if bad or not numbers or column == "tpu":
            return [*bad, *numbers, *texts][0]
        return max(numbers, key=float)

    def table(self, first, rows):
        yield "".join([f"| {first} |", *(f" {TITLES[column]} |" for column in self.columns)])
        yield "| --- |" + " ---: |" * len(self.columns)
        for name, texts in rows:
            yield f"| {name} | " + " | ".join(texts) + " |"

    def markdown(self):
        """A section of the page."""
        title = "a compiled model" if self.through == "model" else "`apply`"
        yield f"## Through {title}\n"
        yield from self.table(
            "optimizer", [(n, [self.worst(n, c) for c in self.columns]) for n in self.names]
        )
        for name in self.names:
            row = model_rows.ROWS[name]
            more = ", and what float32 makes of the gradient" if self.through == "model" else ""
            yield f"\n### {name}\n"
            yield f"Allowed for each step: one rounding and {row.rtol:.0e} of the largest{more}.\n"
            yield from self.table(
                "option",
                [(o, [self.text(name, o, c) for c in self.columns]) for o in self.wanted[name]],
            )
        yield "\n### Refusals\n"
        for number, reason in enumerate(self.reasons, 1):
            yield f"{number}. {reason}"
        yield ""


def parts_of(given):
    """The parts that are asked for."""
    chosen = [sample.name for sample in samples.SAMPLES if given.all or not sample.slow]
    more = [name for name in model_rows.ROWS if name not in samples.BY_NAME]
    rows = {
        "model": [n for n in chosen if given.all or n not in THROUGH_APPLY_ALONE] + more,
        "apply": chosen,
    }
    if given.samples:
        asked = given.samples.split(",")
        rows = {"model": asked, "apply": [name for name in asked if name in samples.BY_NAME]}
    wanted = [given.through] if given.through else ["model", "apply"]
    return [Part(through, rows[through], given.every, given.run) for through in wanted]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--output", type=pathlib.Path)
    arguments.add_argument("--through", choices=["model", "apply"])
    arguments.add_argument("--all", action="store_true")
    arguments.add_argument("--every", type=int, default=1)
    arguments.add_argument("--jobs", type=int, default=2)
    arguments.add_argument("--samples")
    arguments.add_argument("--run", choices=RUNS)
    given = arguments.parse_args()
    parts = parts_of(given)
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        waiting = [pool.submit(part.fill, run) for part in parts for run in part.runs]
        for done in concurrent.futures.as_completed(waiting):
            print(done.result(), file=sys.stderr)
    page = "\n".join([HEAD, *(line for part in parts for line in part.markdown())])
    if given.output:
        given.output.write_text(page)
    else:
        print(page)
    wrong, seconds = sum(part.wrong() for part in parts), time.monotonic() - began
    count = sum(part.count() for part in parts)
    print(f"{count} cells in {seconds:.0f} s, {wrong} wrong.", file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
