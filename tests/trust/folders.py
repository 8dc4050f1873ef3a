"""Folders that no run can use, or that another uses, and summaries that are damaged."""

import contextlib
import json
import os
from pathlib import Path

from tf_graft.training.lock import locked
from tf_graft.training.source import ConfigError
from trust import Result, operations

FILES = (
    *("config.yaml", "steps.csv", "metrics.csv", "plot.png", "summary.json", "model.keras"),
    *("graft.records", "report.html", "run.lock"),
)
FOLDERS = ("checkpoints", "tensorboard")
FRESH = "run.fresh=true"
# Folders of others, which look like a run's.
FOREIGN = {
    "a text": {"thesis.txt": b"all of it"},
    "checkpoints": {"checkpoints": None, "checkpoints/ckpt-1.index": b"mine"},
    "a model": {"model.keras": b"mine", "summary.json": b"{}"},
    "a text beside what a kill left": {"thesis.txt": b"all of it", "config.yaml.part": None},
}


def attacks(runs, lives, chosen):
    """Yields a `Result` an attack that is `chosen()`."""
    life = lives["first"]
    for attack, found in {**_misplaced(life.end), **FOREIGN}.items():
        for more in ((), (FRESH,)):
            if chosen():
                wrong = _refused(runs, found, (*life.overrides, *more))
                yield Result(f"{attack} {' '.join(more)}", wrong)
    for attack, path in _impossible(runs.folder.parent).items():
        if chosen():
            wrong = _refused(runs, None, (*life.overrides, f"run.dir={path}"))
            yield Result(f"run.dir is {attack}", wrong)
    for attack, text in _damaged(life.end["summary.json"]).items():
        if chosen():
            wrong = runs.wrong({**life.end, "summary.json": text}, life.overrides, life.end)
            yield Result(f"summary.json: {attack}", wrong)
    for more in ((), (FRESH,)):
        if chosen():
            yield Result(f"another process has it {more}", _in_use(runs, life, more))
    for attack, wrong in (("notes", _with_notes), ("a link", _with_a_link)):
        if chosen():
            yield Result(f"a fresh run where there is {attack}", wrong(runs, lives["fresh"]))


def _misplaced(end):
    """A finished run with a folder where a file belongs, or a file where a folder does."""
    found = {}
    for name in FILES:
        others = {key: value for key, value in end.items() if key != name}
        found[f"an empty folder {name}"] = {**others, name: None}
        found[f"a folder {name}"] = {**others, name: None, f"{name}/mine": b"1"}
    for name in FOLDERS:
        others = {key: value for key, value in end.items() if not key.startswith(name)}
        found[f"a file {name}"] = {**others, name: b"mine"}
    return found


def _impossible(folder):
    """Places where no folder can be made."""
    (folder / "file").write_text("mine")
    for name, target in (("broken", "nowhere"), ("loop", "loop")):
        if not (folder / name).is_symlink():
            os.symlink(target, folder / name)
    return {
        "a file": folder / "file",
        "below a file": folder / "file" / "run",
        "a broken link": folder / "broken",
        "a link to itself": folder / "loop",
        "a name too long": folder / ("x" * 300),
        "a path too long": "/".join([str(folder), *["x" * 200] * 30]),
        "no place to write": "/proc/self/run",
        "a device": "/dev/null",
    }


def _refused(runs, found, overrides):
    """What is wrong unless the command is refused in a sentence that changes nothing."""
    operations.put(runs.folder, found)
    beside = operations.content(runs.folder.parent)
    try:
        runs(overrides)
    except ConfigError as error:
        if "\n" in str(error) or "run.dir" not in str(error):
            return f"it says: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    else:
        return "it is accepted"
    return None if operations.content(runs.folder.parent) == beside else "files have changed"


def _damaged(text):
    """Summaries that say something else than the run's, or nothing."""
    values = json.loads(text)
    found = {
        **{f"{value!r:.20}": value for value in (b"", b"{", b"[]", b"null", b"3", b"{}", b"\xff")},
        "nested deeply": b"[" * 100_000,
        "half": text[: len(text) // 2],
        "other steps": text.replace(b'"steps": 6', b'"steps": 9'),
        "twice": text * 2,
    }
    for name in ("steps", "test_loss", "test_accuracy"):
        for value in (None, "6", [], -1, 1e300, True):
            found[f"{name} {value!r}"] = json.dumps({**values, name: value}).encode()
        without = {key: value for key, value in values.items() if key != name}
        found[f"without {name}"] = json.dumps(without).encode()
    for at in range(0, len(text), 7):
        flipped = bytes([text[at] ^ 1])
        found[f"byte {at}"] = text[:at] + flipped + text[at + 1 :]
    return found


def _in_use(runs, life, more):
    """What is wrong unless a command names the process that has the folder, and leaves it."""
    operations.put(runs.folder, life.end)
    with locked(runs.folder / "run.lock"):
        before = operations.content(runs.folder)
        try:
            runs(("run.epochs=3", *more))
        except ConfigError as error:
            if f"in use by process {os.getpid()} on " not in str(error):
                return f"it says: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        else:
            return "it is accepted"
        return None if operations.content(runs.folder) == before else "files have changed"


def _with_notes(runs, life):
    """What else lies in a run's folder is nobody's to remove."""
    notes = {"notes.txt": b"mine", "checkpoints.part": b"mine", "model.part": b"mine"}
    return runs.wrong({**life.found, **notes}, life.overrides, {**life.end, **notes})


def _with_a_link(runs, life):
    """Checkpoints may lie on another disk, which a fresh run uses once it holds nothing."""
    elsewhere = runs.folder.parent / "elsewhere"
    operations.put(runs.folder, {**life.found})
    Path(runs.folder / "checkpoints").rename(elsewhere)
    os.symlink(elsewhere, runs.folder / "checkpoints")
    try:
        with contextlib.suppress(ConfigError):
            runs(life.overrides)
            return "it is emptied"
        if not any(elsewhere.iterdir()):
            return "it is emptied, and refused"
        operations.put(elsewhere, {})
        runs(life.overrides)
        kept = sorted(path.name for path in elsewhere.glob("*.index"))
        said = runs((*life.again[-1], "run.epochs=3"))
        end = sorted(name[12:] for name in life.end if name.endswith(".index"))
        if kept != end or "Resuming" not in said[0]:
            return f"the checkpoints are {kept}, then it says {said[0]}"
    finally:
        (runs.folder / "checkpoints").unlink()
        operations.put(elsewhere, None)
    return None
