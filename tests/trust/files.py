"""Damaged files: each is noticed with a sentence, or has no effect.

A run that was stopped in the middle goes on after something happened to its files; what it leaves
in the end is held against a run that nothing disturbed.
"""

import tempfile
from pathlib import Path

import keras
import numpy as np

from tf_graft import report
from tf_graft.grafting import records
from tf_graft.training import run_checkpoints as checkpoints
from trust import Result, damage, states
from trust.operations import content, put
from trust.stopped import LOGS, SENTENCES, STOP, Stopped, rewritten, unlike_a_sentence

STATE = f"checkpoints/ckpt-{STOP}"
PARTS = (f"{STATE}.index", f"{STATE}.data-00000-of-00001")
FILES = ("config.yaml", *LOGS, "checkpoints/checkpoint", *PARTS)
SPLIT = {"steps.csv": damage.lines, "metrics.csv": damage.lines, records.FILE: damage.records}


def attacks(every):
    """Makes the attacks on files, or one in `every`."""
    with tempfile.TemporaryDirectory() as folder, Stopped(Path(folder)) as run:
        made = [*going_on(run), *crafted(run), *reporting(run), *exported(run), *saved(run)]
        for number, (name, attack) in enumerate(made):
            if (number + number // every) % every == 0:
                yield Result(name, attack())


def going_on(run):
    """A file of the run is damaged, or is another run's."""
    for file in FILES:
        for name, way in ways(file).items():
            yield f"going on: {file} {name}", lambda f=file, w=way: changed(run, run.now, w, f)
        yield f"going on: {file} of another run", lambda f=file: swapped(run, run.now, run.other, f)
    for name, way in damage.of_any_file().items():
        indexes = [file for file in run.now if file.endswith(".index")]
        yield f"going on: all states {name}", lambda i=indexes, w=way: changed(run, run.now, w, *i)
    yield "going on: a state of another run", lambda: swapped(run, run.now, run.other, *PARTS)


def changed(run, found, way, *files):
    """What is wrong with a run that goes on after something happened to files."""
    now = dict(found)
    for file in files:
        value = way(found[file])
        now[file] = None if value is damage.FOLDER else value
        if value is damage.GONE:
            del now[file]
    return run.wrong(now)


def swapped(run, found, others, *files):
    """What is wrong with a run that goes on with another's files."""
    return run.wrong(found | {file: others[file] for file in files})


def ways(file):
    """What can happen to a file."""
    split = SPLIT.get(file)
    return damage.of_any_file() | (damage.of_rows(split) if split else {})


def crafted(run):
    """A state is not one that a run saves, and its files are whole."""
    for name, change in states.changes(run.model.optimizer).items():

        def attack(change=change):
            put(run.folder, run.now)
            rewritten(run.folder / STATE, change)
            return run.wrong(content(run.folder))

        yield f"going on: a state with {name}", attack


def reporting(run):
    """A graft's records are damaged, and reported."""

    def read():
        checkpoints.check_records(run.folder)
        return report.GraftReport.read(run.folder).rates("constant")

    put(run.folder, run.now)
    expected = read()
    others = {"of another run": lambda _: run.other[records.FILE]}
    for name, way in (ways(records.FILE) | others).items():

        def attack(way=way):
            put(run.folder, run.now)
            happen(run.folder / records.FILE, way)
            return noticed(read, expected)

        yield f"report: {name}", attack


def exported(run):
    """A file of rates is damaged, and read."""
    put(run.folder, run.now)
    rates, path = report.GraftReport.read(run.folder).rates("piecewise"), run.folder / "rates.json"
    for name, way in (damage.of_any_file() | damage.of_rows(damage.lines)).items():

        def attack(way=way):
            put(run.folder, {})
            rates.save(path)
            happen(path, way)
            return noticed(lambda: report.MeasuredRates.load(path), rates)

        yield f"rates: {name}", attack


def saved(run):
    """The model that a run has saved is damaged, and loaded. What Keras says then is its own."""
    path = run.folder / "model.keras"

    def read():
        model = keras.models.load_model(path)
        return [np.asarray(v).tobytes() for v in (*model.weights, *model.optimizer.variables)]

    put(run.folder, run.whole)
    expected = read()
    for name, way in damage.of_any_file().items():

        def attack(way=way):
            put(run.folder, run.whole)
            happen(path, way)
            return noticed(read, expected, (Exception,))

        yield f"model.keras: {name}", attack


def happen(path, way):
    """Has something happen to a file."""
    value = way(path.read_bytes())
    path.unlink()
    if value is damage.FOLDER:
        path.mkdir()
    elif value is not damage.GONE:
        path.write_bytes(value)


def noticed(use, expected, sentences=SENTENCES):
    """What is wrong with a use that must end with a sentence, or give what is expected."""
    try:
        found = use()
    except sentences as error:
        return unlike_a_sentence(error)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None if found == expected else "gives something else, and nothing was said"
