"""Computes the matrix: optimizer x execution x option, each held against the float64 oracle.

    python tests/matrix.py [--through model] [--output docs/data/matrix.json] [--all] [--every 1]
        [--jobs 2] [--run 2_clients] [--samples adam,lars] [--options exact,plain]

Two parts: through a compiled Keras model, as users meet an optimizer, and through `apply` alone. A
cell is the largest error of weights and averages after four steps, as a share of what is allowed:
0.2 is a fifth of it. `no` is a refusal, whose reason is below the table. The tables show the worst
option of each optimizer. The file, which `docs/guarantees.md` shows, has all of them; cells in it
that are not computed now stay. So `python tests/evidence --run` can compute the whole in several
goes: `--run` computes the columns of one execution, and `--samples` some rows. With `--every 3` one
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
from typing import NamedTuple

import filelock

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
        self.cells = {}
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
        """The cells that are not right, each in a few words."""
        return [
            f"{name}, {option}, {TITLES[column]}: {self.said(cell)}"
            for name, chosen in self.wanted.items()
            for option in chosen
            for column, cell in zip(self.columns, self.row(name, option), strict=True)
            if not self.right(cell)
        ]

    def said(self, cell):
        """A cell in words: a refusal with its reason."""
        return refusal_of(cell, self.reasons) or cell

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

    def found(self):
        """What was computed, by (row, option, title of the column)."""
        return {
            (name, option, TITLES[column]): self.cell(name, option, column)
            for name, options in self.wanted.items()
            for option in options
            for column in self.columns
            if (name, option, column) in self.cells
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


def refusal_of(cell, reasons):
    """The reason of a cell that is a numbered refusal; None for others."""
    numbered = isinstance(cell, str) and cell.startswith("no")
    return reasons[int(cell.split()[1]) - 1] if numbered else None


def right(cell, reasons):
    """Whether a cell is within what is allowed, or refused for a known reason."""
    if reason := refusal_of(cell, reasons):
        return cells.known_refusal(reason)
    return cell == "traced" or (isinstance(cell, float) and cell <= 1)


class Refusal(NamedTuple):
    """A cell that was refused."""

    reason: str


class Kept:
    """A part of the file: its cells by (row, option, title of the column).

    Args:
        content: the part, as the file has it.
    """

    def __init__(self, content):
        columns = content.get("columns", [])
        self.cells = {}
        self.take(
            {
                (name, option, title): cell
                for name, of in content.get("optimizers", {}).items()
                for option, row in of["options"].items()
                for title, cell in zip(columns, row, strict=True)
                if cell is not None and name in model_rows.ROWS and option in cells.OPTIONS
            },
            content.get("refusals", []),
        )

    def take(self, found, reasons):
        """Takes cells, whose refusals have the numbers of reasons, in place of its own."""
        for place, cell in found.items():
            reason = refusal_of(cell, reasons)
            self.cells[place] = Refusal(reason) if reason else cell

    def content(self):
        """What the file is to have: `null` for cells not computed, and how many are wrong."""
        columns = [title for title in TITLES.values() if any(c == title for *_, c in self.cells)]
        options = [each for each in cells.OPTIONS if any(o == each for _, o, _ in self.cells)]
        names = [each for each in model_rows.ROWS if any(n == each for n, *_ in self.cells)]
        reasons = sorted({c.reason for c in self.cells.values() if isinstance(c, Refusal)})
        numbered = {
            place: f"no {reasons.index(cell.reason) + 1}" if isinstance(cell, Refusal) else cell
            for place, cell in self.cells.items()
        }
        return {
            "columns": columns,
            "options": {option: cells.OPTIONS[option] for option in options},
            "optimizers": {
                name: {
                    "allowed": model_rows.ROWS[name].rtol,
                    "options": {
                        option: [numbered.get((name, option, title)) for title in columns]
                        for option in options
                    },
                }
                for name in names
            },
            "refusals": reasons,
            "wrong": sum(not right(cell, reasons) for cell in numbered.values()),
        }


def save(path, parts):
    """Adds cells to a file, in place of those it has; a row of cells is a line."""
    with filelock.FileLock(f"{path}.lock"):
        content = json.loads(path.read_text()) if path.exists() else {}
        for part in parts:
            kept = Kept(content.get(part.through, {}))
            kept.take(part.found(), part.reasons)
            content[part.through] = kept.content()
        text = json.dumps(dict(sorted(content.items())), indent=1)
        path.write_text(
            re.sub(r"\[[^\[\]{}]*\]", lambda row: " ".join(row[0].split()), text) + "\n"
        )


def rows_of(through, everything=True):
    """The rows of a part: those that are in all columns, of all samples or of the quick ones."""
    chosen = [sample.name for sample in samples.SAMPLES if everything or not sample.slow]
    chosen += [sample.name for sample in samples.ONLY_IN_MATRIX]
    if through == "apply":
        return chosen
    more = [name for name in model_rows.ROWS if name not in samples.BY_NAME]
    return [n for n in chosen if everything or n not in THROUGH_APPLY_ALONE] + more


def parts_of(given):
    """The parts that are asked for."""
    options = given.options.split(",") if given.options else None
    asked = given.samples.split(",") if given.samples else None
    parts = []
    for through in [given.through] if given.through else ["model", "apply"]:
        known = model_rows.ROWS if through == "model" else samples.BY_NAME
        names = [n for n in asked if n in known] if asked else rows_of(through, given.all)
        parts.append(Part(through, names, given.every, given.run, options))
    return parts


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
    wrong = [place for part in parts for place in part.wrong()]
    for place in wrong:
        print(f"WRONG  {place}")
    count, seconds = sum(part.count() for part in parts), time.monotonic() - began
    print(f"{count} tried, {len(wrong)} wrong, in {seconds:.0f} s.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
