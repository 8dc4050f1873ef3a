"""Breaks the package on purpose, one line at a time, and shows which tests notice.

    python tests/mutants.py                      each mutant against the quick tests
    python tests/mutants.py --marks "slow"       against the slow tests
    python tests/mutants.py --only clipping      the mutants of files with that in their name

A mutant is tested in a copy of this folder. Tests named after its module run first, and the first
test that fails ends a run. `mutants.csv` in the working directory gets a line for each: the file,
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


PIPELINE = [
    Mutant(
        "core/pipeline/engine.py",
        "steps, 0)\n        self.state.p",
        "steps, 1)\n        self.state.p",
    ),
    Mutant("core/pipeline/engine.py", "scale=steps, finite", "scale=None, finite"),
    Mutant("core/pipeline/engine.py", "gradients if summed else", "gradients if not summed else"),
    Mutant(
        "core/pipeline/engine.py",
        "self._overwrite_when_due(done + 1)",
        "self._overwrite_when_due(done)",
    ),
    Mutant("core/pipeline/engine.py", '        self._count("skipped_steps")\n', ""),
    Mutant("core/pipeline/judge.py", "gradients_serve & rates_serve", "gradients_serve"),
    Mutant("core/pipeline/judge.py", "(rate >= 0) & (rate < math.inf)", "rate < math.inf"),
    Mutant("core/pipeline/judge.py", "int(info.nmant) - 3", "int(info.nmant) + 30"),
    Mutant(
        "core/pipeline/clipping.py",
        "numerics.quotient(norm, largest), 1)",
        "numerics.quotient(norm, largest), 0)",
    ),
    Mutant("core/pipeline/clipping.py", "g, -clipvalue, clipvalue", "g, 0 * clipvalue, clipvalue"),
    Mutant("core/pipeline/accumulation.py", "    write.clear(accumulator, part)\n", ""),
    Mutant("core/pipeline/accumulation.py", "    _mark(marks, part, False)\n", ""),
    Mutant(
        "core/pipeline/writer.py",
        "rates if role is None else multiplied(rates, rates[role])",
        "rates",
    ),
    Mutant("core/pipeline/writer.py", "parameter.has_master and not exact", "False"),
    Mutant(
        "core/pipeline/writer.py",
        "-algorithm.decay(weights, lr, t)",
        "algorithm.decay(weights, lr, t)",
    ),
]
STATE = [
    Mutant("core/state/write.py", "self.indices < self.rows if", "self.indices <= self.rows if"),
    Mutant("core/state/write.py", "(tf.logical_not(condition), other)", "(condition, other)"),
    Mutant(
        "core/state/parameters.py",
        "tf.where(agrees, master, tf.cast",
        "tf.where(~agrees, master, tf.cast",
    ),
    Mutant("core/state/parameters.py", "part.write(replicas.local(error), missing)", "pass"),
    Mutant("core/state/parameters.py", "    if with_masters:\n", "    if False:\n"),
    Mutant("core/state/slots.py", "fits and self.rounds", "fits"),
    Mutant("core/tensors/rows.py", "CHILDREN * node + tf", "node + tf"),
    Mutant(
        "core/tensors/rows.py", "tf.cumsum(below, 1) <= skipped", "tf.cumsum(below, 1) < skipped"
    ),
    Mutant(
        "core/tensors/rows.py",
        "(indices >= 0) & (indices < rows), first, -1",
        "indices < rows, first, -1",
    ),
    Mutant(
        "core/tensors/rows.py", "(rows_given >= 0) & (rows_given < rows)", "(rows_given < rows)"
    ),
    Mutant("core/tensors/rounding.py", "bits + 0x8000", "bits"),
    Mutant(
        "core/tensors/rounding.py", "_hashed(own + _key(t, name))", '_hashed(own + _key(t, ""))'
    ),
    Mutant(
        "core/tensors/numerics.py", "tf.where(tf.math.is_finite(peak), peak", "tf.where(True, peak"
    ),
    Mutant(
        "core/tensors/numerics.py",
        "return x + share * (mean - x)",
        "return mean + (1 - share) * (x - mean)",
    ),
    Mutant("core/places/replicas.py", "int(replica) % len(copies)", "0"),
    Mutant("core/places/replicas.py", "ReduceOp.SUM, distinct", "ReduceOp.MEAN, distinct"),
]
COMPOSED = [
    Mutant("compose/option_table.py", '"clipnorm": (_O, _O, _O', '"clipnorm": (_B, _O, _O'),
    Mutant(
        "compose/option_table.py",
        "            if not _replaced(name, given):\n",
        "            if True:\n",
    ),
    Mutant(
        "compose/option_table.py",
        "acts is Acts.SHARED and not _same",
        "acts is Acts.SHARED and _same",
    ),
    Mutant("compose/wrapper.py", "self.undecayed_paths, self.models", "(), self.models"),
    Mutant(
        "compose/wrapper.py",
        "_replace(rates=_inner(p.rates), bare=p.bare)",
        "_replace(rates=_inner(p.rates), bare=False)",
    ),
    Mutant("compose/wrapper.py", '("learning_rate", "multiplier") if', '("learning_rate",) if'),
    Mutant(
        "compose/wrapper.py",
        "super().exact_on_rows(path) and all(exact)",
        "super().exact_on_rows(path)",
    ),
    Mutant("compose/keras_step.py", "bare=p.bare", "bare=False"),
    Mutant("wrappers/larc.py", "tf.where(local < lr, clipped, one)", "clipped"),
    Mutant("wrappers/larc.py", "(w_norm > 0) & tf", "tf"),
    Mutant("wrappers/cautious.py", "tf.sign(p.g) >= 0", "tf.sign(p.g) > 0"),
    Mutant("wrappers/cautious.py", "size / LARGEST", "1.0"),
    Mutant("wrappers/hyperball.py", "self.step_rate(p) * radius", "self.step_rate(p)"),
    Mutant("wrappers/gradients.py", "[0] if rank == 3 else", "[0] if rank == 4 else"),
    Mutant("wrappers/gradients.py", "return inputs > 1 and not", "return not"),
    Mutant("wrappers/multi_optimizer.py", 'rates["learning_rate"])', "1.0)"),
    Mutant(
        "wrappers/adagraft.py",
        "tf.maximum(d_norm, SMALLEST_NORM)",
        "tf.maximum(m_norm, SMALLEST_NORM)",
    ),
    Mutant("wrappers/adagraft.py", "(d_norm > 0) & tf.math.is_finite(d_norm)", "(d_norm > 0)"),
    Mutant("agn/push.py", "numerics.values(g) * count", "numerics.values(g)"),
    Mutant("agn/push.py", "& (counted > 0)", ""),
    Mutant(
        "agn/push.py",
        "        write.put(self._agn.accumulated_steps, tf.constant(0, tf.int64))\n",
        "",
    ),
    Mutant("agn/center.py", "                p.replace(value)  #", "                pass  #"),
    Mutant(
        "agn/worker_round.py",
        'key.rpartition("/")[2] in pending or not forgets',
        "not forgets",
    ),
    Mutant("agn/outer_steps.py", "SGD(size * period)", "SGD(size)"),
]
RULES = [
    Mutant("optimizers/kernels.py", ">= 0.5 else None", ">= 0.0 else None"),
    Mutant("optimizers/adam.py", 'tf.maximum(s["velocity_hat"], v)', "v"),
    Mutant("optimizers/nadam.py", "(1 - now) / (1 - product)", "(1 - now)"),
    Mutant(
        "optimizers/lars.py",
        "momentum * m + x if self.nesterov",
        "momentum * m - x if self.nesterov",
    ),
    Mutant("optimizers/adafactor.py", "fresh *= tf.minimum(count, 1.0)", "pass"),
    Mutant("optimizers/prodigy.py", "tf.maximum(largest, found)", "found"),
    Mutant("optimizers/shampoo.py", "self.exponent or 0.5 / len(of)", "0.5 / len(of)"),
    Mutant("optimizers/soap.py", "axis=1 + factors", "axis=2 - factors"),
    Mutant("optimizers/roots.py", "(values - negative + ridge)", "(values + negative + ridge)"),
    Mutant(
        "optimizers/schedule_free.py",
        "scalar(1 - self.beta_1, g.dtype)",
        "scalar(self.beta_1, g.dtype)",
    ),
    Mutant("optimizers/muon.py", "g + self.momentum * (m - g)", "g + self.momentum * m"),
    Mutant("optimizers/rmsprop.py", "variance -= a * a", "variance += a * a"),
    Mutant("matrices/axes.py", "self.order.index(axis) for axis", "self.order[axis] for axis"),
    Mutant(
        "matrices/found.py",
        "inputs=(last,), outputs=range(last)",
        "inputs=range(last), outputs=(last,)",
    ),
    Mutant("matrices/found.py", "its[kernel]._replace(by_default=False)", "its[kernel]"),
    Mutant(
        "matrices/last_layer.py",
        'if op.type == "IdentityN" else op.inputs',
        "if False else op.inputs",
    ),
    Mutant("matrices/optimizer.py", "min(rows, columns) <= SMALL", "min(rows, columns) > SMALL"),
    Mutant("matrices/optimizer.py", 'multiplied(own, rates["multiplier"]) if', "own if"),
]
MUTANTS = [*PIPELINE, *STATE, *COMPOSED, *RULES]


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
