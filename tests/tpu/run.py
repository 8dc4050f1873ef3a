"""What the command does: lowers, has it compiled or replayed, judges, and writes the figures."""

import gc
import json

import filelock

from benchmarks import results
from support import cells, samples, tpu_traced
from tpu import checks, lowering, programs, replays

VERSIONS = ("tensorflow", "keras", "jax", "libtpu")
SHOWN = ("temporary", "accessed", "aliased", "sums", "all_reduces")
OPTIONS_REPLAYED = tuple(cells.OPTIONS)


def unknown_names(given):
    """What the arguments name that is nowhere."""
    known = {
        "samples": {*samples.BY_NAME, *replays.WRAPPERS},
        "options": cells.OPTIONS,
        "wrapped": tpu_traced.MORE,
    }
    return [
        name
        for kind, its in known.items()
        for name in getattr(given, kind) or ()
        if name not in its
    ]


class Run:
    """One run of the command.

    Args:
        jax: the process that has it.
        folder: for programs.
        given: the command's arguments.
    """

    def __init__(self, jax, folder, given):
        self.jax, self.folder, self.given = jax, folder, given
        self.tried = self.wrong = 0
        self.measured = results.machine() | jax.ask("versions") | {"topology": given.topology}

    def programs(self):
        """Compiles, and looks at what was compiled."""
        given = self.given
        rows = programs.rows_of(given.samples, given.options, given.wrapped)
        for program in programs.programs(rows, given.chips):
            figures, fewer = self.compiled(program), None
            if program.by_rows and "error" not in figures:
                fewer = self.compiled(program._replace(rows=programs.FEWER_ROWS))
            wrong, known = checks.judged(program, figures, fewer)
            self.count(program.name, "; ".join(wrong.values()))
            line = {"row": program.row, "chips": program.replicas, "dense": program.dense}
            line |= {name: figures.get(name) for name in SHOWN}
            line |= {"accessed_with_fewer_rows": (fewer or {}).get("accessed")}
            self.save("programs", program.name, line | {"known": known, "wrong": wrong})

    def compiled(self, program):
        """The figures of a program; or the error of whoever did not take it."""
        gc.collect()  # of the tables of the program before
        file = self.folder / "program.hlo"
        try:
            file.write_bytes(lowering.lowered(program))
        except Exception as error:  # TensorFlow has many kinds
            return {"error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
        return self.jax.ask(
            "compiled",
            file=str(file),
            replicas=program.replicas,
            entries=checks.entries(program),
            topology=self.given.topology,
        )

    def replays(self):
        """Runs programs of four replicas."""
        for row, option in self.cells():
            name = f"{row}, {option}"
            try:
                cell = replays.replayed(row, option, self.jax, self.folder)
                line = {"error": cell.error, "refusal": cell.refusal}
                wrong = "" if (cell.error or 0) <= 1 else f"{cell.error:.3g} of what is allowed"
            except Exception as error:
                wrong = f"{type(error).__name__}: {str(error)[:1000]}"
                line = {"error": None, "refusal": "", "wrong": wrong}
            self.count(f"replay of {name}", wrong)
            self.save("replays", name, line)

    def cells(self):
        """The (row, option) of the replays that were asked for."""
        chosen = self.given.samples or [*samples.BY_NAME, *replays.WRAPPERS]
        rows = [name for name in chosen if name not in replays.WRAPPERS]
        options = self.given.options or OPTIONS_REPLAYED
        for name, its in samples.spread(rows, options, self.given.every).items():
            yield from ((name, option) for option in its)
        for name in replays.WRAPPERS:
            if name in chosen:
                yield name, "loss_scale" if name == replays.SCALED else "plain"

    def controls(self):
        """What is broken on purpose must be found."""
        for program in programs.controls():
            figures = self.compiled(program)
            fewer = self.compiled(program._replace(rows=programs.FEWER_ROWS))
            found = checks.failed(program, figures, fewer)
            missing = programs.CONTROLS[program.control] - set(found)
            self.count(f"{program.control}", f"not noticed by {missing}" if missing else "")
            self.save("controls", program.control, found)
        broken = "a sum left out"
        try:
            cell = replays.replayed("adam", "plain", self.jax, self.folder, broken)
            found = f"{cell.error:.3g} of what is allowed" if cell.error > 1 else ""
        except AssertionError as error:
            found = str(error).partition("\n")[0]
        self.count(f"{broken}, replayed", "" if found else "not noticed")
        self.save("controls", f"{broken}, replayed", {"replay": found})

    def count(self, name, wrong):
        self.tried += 1
        self.wrong += bool(wrong)
        print(f"WRONG  {name}: {wrong}" if wrong else f"right  {name}", flush=True)

    def save(self, part, name, line):
        """Adds to the output, which is begun anew with other versions."""
        path = self.given.output
        if path is None:
            return
        with filelock.FileLock(f"{path}.lock"):
            content = json.loads(path.read_text()) if path.exists() else {}
            before = content.get("measured", {})
            if any(before.get(v) != self.measured[v] for v in (*VERSIONS, "topology")):
                content = {}
            content["measured"] = self.measured
            content.setdefault(part, {})[name] = line
            path.write_text(written(content))


def written(content):
    """Names within names as JSON, a line for each."""
    parts = []
    for part, lines in content.items():
        each = ",\n".join(f"  {json.dumps(name)}: {json.dumps(v)}" for name, v in lines.items())
        parts.append(f" {json.dumps(part)}: {{\n{each}\n }}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
