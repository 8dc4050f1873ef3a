"""Computes the matrix: optimizer x execution x option, each held against the float64 oracle.

    python tests/matrix.py [--through model] [--output docs/data/matrix.json] [--all] [--every 1]
        [--jobs 2] [--run 2_clients] [--options exact,plain]

Two parts: through a compiled Keras model, as users meet an optimizer, and through `apply` alone. A
cell is the largest error of weights and averages after four steps, as a share of what is allowed:
0.2 is a fifth of it. `no` is a refusal, whose reason is below the table. The tables show the worst
option of each optimizer. The file, which `docs/guarantees.md` shows, has all of them, and the date
of each column; parts and columns in it that are not computed now stay. So the whole can be computed
in several goes, with `--run`, which computes the columns of one execution. With `--every 3` one
cell in three is computed, which leaves out whole options of an optimizer.
"""

import argparse
import concurrent.futures
import functools
import json
import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from benchmarks import results
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
LIMIT = 7200.0
# Of the samples that have the same class, one goes through the model, unless all do.
THROUGH_APPLY_ALONE = ("sgd", "sgd_nesterov", "rmsprop", "rmsprop_momentum", "adam_amsgrad")


class Part:
    """One part of the matrix: its cells by (row, option, column), and what was refused.

    Args:
        through: "model" or "apply".
        names: the rows.
        every: of how many cells one is computed.
        run: the only execution; None for all.
        options: by name; None for all.
    """

    def __init__(self, through, names, every=1, run=None, options=None):
        self.through, self.names, self.every = through, names, every
        self.options = options or list(cells.OPTIONS)
        wanted = RUNS if run is None else [run]
        self.columns = [
            name
            for name in TITLES
            if ONE_PART_HAS.get(name, through) == through and RUN_OF.get(name, name) in wanted
        ]
        self.runs = [run for run in wanted if run in {RUN_OF.get(c, c) for c in self.columns}]
        self.cells, self.dates = {}, {}
        self.reasons = []

    def fill(self, run):
        """Runs a group of columns; what breaks is a cell too."""
        began = time.monotonic()
        try:
            part = column_runs.Part(run, self.names, self.options, self.every, self.through)
            (lines,) = column_runs.run(part, seconds=LIMIT)
        except AssertionError as error:
            print(f"{self.through}, {run}: {error}", file=sys.stderr)
            lines = []
        for line in lines:
            self.cells[line["sample"], line["option"], line["column"]] = line
            self.dates[TITLES[line["column"]]] = results.machine()["date"]
        return f"through {self.through}, {run}: {time.monotonic() - began:.0f} s"

    @functools.cached_property
    def wanted(self):
        return samples.spread(self.names, self.options, self.every)

    def cell(self, name, option, column):
        """An error as a share of what is allowed, `traced`, a numbered refusal; None: not run."""
        line = self.cells.get((name, option, column))
        if line is None:
            return None
        if line["refusal"]:
            if line["refusal"] not in self.reasons:
                self.reasons.append(line["refusal"])
            return f"no {self.reasons.index(line['refusal']) + 1}"
        return "traced" if column == "tpu" else float(f"{line['error']:.3g}")

    def right(self, cell):
        """Whether a cell is within what is allowed, or refused for a known reason."""
        return right(cell, self.reasons)

    def row(self, name, option):
        return [self.cell(name, option, column) for column in self.columns]

    def wrong(self):
        """How many cells are not right."""
        rows = [self.row(name, option) for name, chosen in self.wanted.items() for option in chosen]
        return sum(not self.right(cell) for row in rows for cell in row)

    def count(self):
        return sum(map(len, self.wanted.values())) * len(self.columns)

    def worst(self, name, column):
        """What is wrong of an optimizer's options, or the largest error; a refusal if all are."""
        found = [self.cell(name, option, column) for option in self.wanted[name]]
        bad = [cell for cell in found if not self.right(cell)]
        numbers = [cell for cell in found if isinstance(cell, float)]
        if bad:
            return f"**{bad[0]}**"
        return f"{max(numbers):.2f}" if numbers else found[0]

    def content(self):
        """All there is to show of the columns that were computed."""
        columns = [column for column in self.columns if TITLES[column] in self.dates]
        return {
            "measured": results.machine(),
            "every": self.every,
            "dates": self.dates,
            "columns": [TITLES[column] for column in columns],
            "options": {name: cells.OPTIONS[name] for name in self.options},
            "optimizers": {
                name: {
                    "allowed": model_rows.ROWS[name].rtol,
                    "options": {
                        option: [self.cell(name, option, column) for column in columns]
                        for option in chosen
                    },
                }
                for name, chosen in self.wanted.items()
            },
            "refusals": self.reasons,
        }

    def markdown(self):
        """The worst option of each optimizer, and the refusals."""
        yield f"Through {self.through}:\n"
        yield "".join(["| optimizer |", *(f" {TITLES[column]} |" for column in self.columns)])
        yield "| --- |" + " ---: |" * len(self.columns)
        for name in self.names:
            yield f"| {name} | {' | '.join(self.worst(name, c) for c in self.columns)} |"
        yield ""
        for number, reason in enumerate(self.reasons, 1):
            yield f"{number}. {reason}"
        yield ""


def right(cell, reasons):
    """Whether a cell is within what is allowed, or refused for a known reason."""
    if isinstance(cell, str) and cell.startswith("no"):
        return cells.known_refusal(reasons[int(cell.split()[1]) - 1])
    return cell == "traced" or (isinstance(cell, float) and cell <= 1)


def merged(before, now):
    """The content of a part with the columns that only an earlier one has, if that has its rows."""
    rows = {name: list(of["options"]) for name, of in now["optimizers"].items()}
    if not before or rows != {n: list(of["options"]) for n, of in before["optimizers"].items()}:
        before = {"columns": [], "dates": {}, "refusals": [], "optimizers": now["optimizers"]}
    dates = before["dates"] | now["dates"]
    columns = [title for title in TITLES.values() if title in dates]
    reasons = list(dict.fromkeys([*now["refusals"], *before["refusals"]]))
    result = now | {"dates": dates, "columns": columns, "refusals": reasons, "optimizers": {}}
    for name, of in now["optimizers"].items():
        options = {}
        for option in of["options"]:
            kept = {
                title: cell
                for part in (before, now)
                for title, cell in columns_of(part, name, option, reasons).items()
            }
            options[option] = [kept[title] for title in columns]
        result["optimizers"][name] = of | {"options": options}
    found = [x for o in result["optimizers"].values() for row in o["options"].values() for x in row]
    return result | {"cells": len(found), "wrong": sum(not right(x, reasons) for x in found)}


def columns_of(part, name, option, reasons):
    """The cells of a row by column, with the refusals numbered as in `reasons`."""
    row = part["optimizers"][name]["options"][option] if part["columns"] else []
    return {
        title: f"no {reasons.index(part['refusals'][int(cell.split()[1]) - 1]) + 1}"
        if isinstance(cell, str) and cell.startswith("no")
        else cell
        for title, cell in zip(part["columns"], row, strict=True)
    }


def save(path, parts):
    """Writes parts into a file, beside what it has; a row of cells is a line."""
    content = json.loads(path.read_text()) if path.exists() else {}
    for part in parts:
        content[part.through] = merged(content.get(part.through), part.content())
    text = json.dumps(dict(sorted(content.items())), indent=1)
    path.write_text(re.sub(r"\[[^\[\]{}]*\]", lambda row: " ".join(row[0].split()), text) + "\n")


def parts_of(given):
    """The parts that are asked for."""
    chosen = [sample.name for sample in samples.SAMPLES if given.all or not sample.slow]
    chosen += [sample.name for sample in samples.ONLY_IN_MATRIX]
    more = [name for name in model_rows.ROWS if name not in samples.BY_NAME]
    rows = {
        "model": [n for n in chosen if given.all or n not in THROUGH_APPLY_ALONE] + more,
        "apply": chosen,
    }
    if given.samples:
        asked = given.samples.split(",")
        rows = {"model": asked, "apply": [name for name in asked if name in samples.BY_NAME]}
    wanted = [given.through] if given.through else ["model", "apply"]
    options = given.options.split(",") if given.options else None
    return [Part(through, rows[through], given.every, given.run, options) for through in wanted]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--output", type=pathlib.Path)
    arguments.add_argument("--through", choices=["model", "apply"])
    arguments.add_argument("--all", action="store_true")
    arguments.add_argument("--every", type=int, default=1)
    arguments.add_argument("--jobs", type=int, default=2)
    arguments.add_argument("--samples")
    arguments.add_argument("--run", choices=RUNS)
    arguments.add_argument("--options")
    given = arguments.parse_args()
    parts = parts_of(given)
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        waiting = [pool.submit(part.fill, run) for part in parts for run in part.runs]
        for done in concurrent.futures.as_completed(waiting):
            print(done.result(), file=sys.stderr, flush=True)
            if given.output:  # what is cut off later does not take it along
                save(given.output, parts)
    print("\n".join(line for part in parts for line in part.markdown()))
    wrong, seconds = sum(part.wrong() for part in parts), time.monotonic() - began
    count = sum(part.count() for part in parts)
    print(f"{count} cells in {seconds:.0f} s, {wrong} wrong.", file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
